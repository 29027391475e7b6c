"""Lower bounds: values by hand, and the laws that make them bounds."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.comm import Collective
from jaxnet.cost.bounds import (
    Compute,
    Wire,
    bound_after,
    bound_deferred,
    bound_during,
    bound_priority,
    busiest_link,
    one_by_one,
)

seconds = st.floats(0, 100)
computes = st.lists(seconds, min_size=4, max_size=4).map(lambda times: Compute(*sorted(times)))
wires = st.tuples(seconds, st.floats(0, 1), seconds, st.floats(0, 1)).map(
    lambda w: Wire(scatter=w[0], last=w[0] * w[1], gather=w[2], head=w[2] * w[3])
)
bounds = pytest.mark.parametrize("bound", [bound_after, bound_during, bound_priority, bound_deferred])
EXAMPLE = Compute(forward=60, first=70, gradients=180, step=190)


def all_reduce(wire):
    """The same without gathers, as the schedules 'during' and 'after' have it."""
    return replace(wire, gather=0.0, head=0.0)


def test_a_step_that_the_link_rules():
    wire = Wire(scatter=280, last=35)
    assert bound_after(EXAMPLE, wire) == 470
    assert bound_during(EXAMPLE, wire) == 350  # from the first bucket on, the link is never idle
    assert bound_priority(EXAMPLE, wire) == 290  # nor between the steps, but for the start of backward
    halves = Wire(scatter=140, last=17.5, gather=140, head=17.5)
    assert bound_deferred(EXAMPLE, halves) == 280  # the link is never idle at all


def test_a_step_that_compute_rules():
    wire = Wire(scatter=28, last=4)
    assert bound_after(EXAMPLE, wire) == 218
    assert bound_during(EXAMPLE, wire) == 190
    assert bound_priority(EXAMPLE, wire) == 190
    assert bound_during(EXAMPLE, Wire(scatter=40, last=40)) == 220  # one bucket: as 'after', but for the update
    halves = Wire(scatter=14, last=2, gather=14, head=2)
    assert bound_deferred(EXAMPLE, halves) == 184  # the first gather and the last scatter have nothing to hide behind


def test_backward_waits_for_the_last_gather():
    wire = Wire(scatter=30, last=1, gather=100, head=1)
    assert bound_deferred(EXAMPLE, wire) == 100 + 120 + 1


@given(computes, wires)
def test_what_may_overlap_more_is_never_above(compute, wire):
    wire = all_reduce(wire)
    assert bound_priority(compute, wire) <= bound_during(compute, wire) <= bound_after(compute, wire)


@bounds
@given(compute=computes, wire=wires)
def test_no_bound_is_below_its_compute_or_its_wire(bound, compute, wire):
    wire = wire if bound is bound_deferred else all_reduce(wire)
    least = max(compute.gradients, wire.scatter + wire.gather)
    assert bound(compute, wire) >= least * (1 - 1e-12)  # rounding


@bounds
@given(compute=computes)
def test_without_traffic_compute_is_the_bound(bound, compute):
    assert bound(compute, Wire(0, 0)) == (compute.gradients if bound is bound_deferred else compute.step)


@bounds
@given(wire=wires)
def test_without_compute_the_link_is_the_bound(bound, wire):
    wire = wire if bound is bound_deferred else all_reduce(wire)
    assert bound(Compute(0, 0, 0, 0), wire) == pytest.approx(wire.scatter + wire.gather)


@bounds
@given(compute=computes, wire=wires, more=st.floats(0, 10), part=st.sampled_from([f.name for f in fields(Wire)]))
def test_more_traffic_never_lowers_a_bound(bound, compute, wire, more, part):
    heavier = replace(wire, **{part: getattr(wire, part) + more})
    assert bound(compute, heavier) >= bound(compute, wire)


@given(st.tuples(seconds, seconds, seconds, seconds))
def test_measured_times_are_put_in_order(times):
    compute = Compute.measured(*times)
    assert compute.forward <= compute.first <= compute.gradients <= compute.step
    assert compute.step == times[3]


def test_links_work_at_the_same_time_and_stages_of_a_bucket_one_after_the_other():
    """Sent: 300 of 400 bytes twice inside a host of 4 devices, 100 across two hosts."""
    collectives = [
        Collective("reduce-scatter", ("device",), 4, 100, "float32"),
        Collective("all-reduce", ("host",), 2, 25, "float32"),
        Collective("all-gather", ("device",), 4, 100, "float32"),
    ]
    peaks = {"device": 300.0, "host": 20.0}
    assert busiest_link(collectives, peaks) == 5
    assert one_by_one(collectives, peaks) == 7
    assert busiest_link([], peaks) == one_by_one([], peaks) == 0
