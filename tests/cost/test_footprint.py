"""What a strategy sends and when, by hand: three leaves of 400, 800 and 1200 bytes, backward from the last."""

import jax
import pytest

from jaxnet.comm import HOST, KiB, named_strategy
from jaxnet.cost.bounds import Compute, Wire, bound_after, bound_deferred, bound_during, footprint

SHAPES = [jax.ShapeDtypeStruct((size,), "float32") for size in (100, 200, 300)]
ORDER = (2, 1, 0)
TWO_HOSTS = {"host": 2, "device": 1}
PEAKS = {"host+device": 100.0, "host": 100.0, "device": 1000.0}
COMPUTE = Compute(forward=1, first=2, gradients=5, step=6)


def of(label, sizes=TWO_HOSTS):
    return footprint(SHAPES, ORDER, named_strategy(*label), sizes)


def sent(collectives):
    return [collective.wire_bytes for collective in collectives]


def test_per_leaf():
    """Two hosts: each sends as many bytes as there are; the last leaf's gradient is ready first."""
    found = of(("per_leaf",))
    assert (found.schedule, found.first) == ("during", (2,))
    assert (sent(found.collectives), sent(found.last)) == ([1200, 800, 400], [400])
    assert found.bound(COMPUTE, PEAKS) == bound_during(COMPUTE, Wire(scatter=24, last=4)) == 2 + 24


def test_a_tree_of_two_hosts_sends_each_way_once():
    """The one to the other, and the sum back: a link of both ways at once is busy for 2400 bytes, not for 4800."""
    found = of(("s_caffe_b",))
    assert sum(sent(found.collectives)) == 4800
    assert found.bound(COMPUTE, PEAKS) == 6 + 24


def test_a_bucket_of_several_leaves_is_ready_with_its_last():
    found = of(("ddp", 2000))
    assert found.first == (2, 1)
    assert (sent(found.collectives), sent(found.last)) == ([2000, 400], [400])


def test_flat_waits_for_backward():
    found = of(("flat",))
    assert (found.schedule, sent(found.collectives)) == ("after", [2400])
    assert found.bound(COMPUTE, PEAKS) == bound_after(COMPUTE, Wire(scatter=24, last=24)) == 6 + 24


def test_xla_is_allowed_to_send_every_leaf_when_it_is_ready():
    ours = of(("per_leaf",))
    found = of(("xla",))
    assert found.schedule == "xla"
    assert found.collectives == ours.collectives
    assert found.bound(COMPUTE, PEAKS) == ours.bound(COMPUTE, PEAKS)


def test_deferred_counts_both_halves():
    found = of(("zero", 1 * KiB), {"host": 2, "device": 1})
    gathers = [c.wire_bytes for c in found.collectives if c.kind == "all-gather"]
    scatters = [c.wire_bytes for c in found.collectives if c.kind == "reduce-scatter"]
    assert sum(gathers) == sum(scatters) == 1200
    assert found.first == (2,)
    last = sum(sent(found.last)) / 2
    wire = Wire(scatter=12, last=last / 100, gather=12, head=last / 100)
    assert found.bound(COMPUTE, PEAKS) == pytest.approx(bound_deferred(COMPUTE, wire))


def test_of_two_links_the_busier_one_counts():
    """2x4, one bucket of 2400 bytes: 3600 inside each host at 1000 bytes a second, 600 across at 100."""
    found = of(("hierarchical",), {"host": 2, "device": 4})
    assert found.axes == [("device",), (HOST,)]
    assert found.bound(COMPUTE, PEAKS) == pytest.approx(max(5 + 3.6 + 6, 5 + 6, 2 + 6))
