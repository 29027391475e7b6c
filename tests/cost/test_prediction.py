"""Steps predicted from parts, what is learned from those that were timed, and how parts are measured."""

from itertools import pairwise

import jax
import pytest

from jaxnet.comm import AXES, make_mesh, named_strategy
from jaxnet.cost import prediction
from jaxnet.cost.measured import measured_parts
from jaxnet.cost.prediction import Parts, Plan, calibrated, predicted_step
from jaxnet.cost.workloads import LOSSES, synthetic
from jaxnet.errors import InputError
from support.parts import SIZES, parts_of, plan, small_workload


@pytest.fixture(scope="module")
def workload():
    return small_workload()


@pytest.fixture
def links_apart(monkeypatch):
    """As between accelerators."""
    monkeypatch.setattr(prediction, "platform_of", lambda mesh: "gpu")


def test_steps_by_hand(workload):
    """Eight gradients of 262,144 bytes, of which each takes 0.262 s; all at once 2.097."""
    parts = parts_of(workload)
    assert predicted_step(parts, plan("flat"), workload).seconds == pytest.approx(9.0 + 2.097152 + 0.5)
    assert predicted_step(parts, plan("xla"), workload).seconds == pytest.approx(9.0 + 2.097152 + 0.5)
    assert predicted_step(parts, plan("per_leaf"), workload).seconds == pytest.approx(9.0 + 0.262144 + 0.5)
    assert predicted_step(parts, plan("ddp:512KiB"), workload).seconds == pytest.approx(9.0 + 0.524288 + 0.5)
    nothing = parts_of(workload, per_byte=0.0)
    assert predicted_step(nothing, plan("ddp:512KiB"), workload).seconds == pytest.approx(9.5)


def test_what_is_packed_is_copied_before_it_travels_and_behind(workload, links_apart):
    """Half a second for a MB before, and half behind: 2.097 s for all, none for a message that is one gradient."""
    parts = parts_of(workload)._replace(packing=1e-6)
    seconds = {label: predicted_step(parts, plan(label), workload).seconds for label in ("flat", "ddp:512KiB")}
    assert seconds["flat"] == pytest.approx(9.0 + 1.048576 + 2.097152 + 1.048576 + 0.5)
    assert seconds["ddp:512KiB"] == pytest.approx(9.0 + 1.048576 + 0.524288 + 1.048576 + 0.5)
    bare = parts_of(workload)
    for label in ("per_leaf", "xla", "ddp:256KiB+pieces"):
        assert predicted_step(parts, plan(label), workload) == predicted_step(bare, plan(label), workload)
    # Halves of gradients: the last one is packed while the one before is scattered; then both are gathered.
    halves = predicted_step(parts, plan("hierarchical:128KiB"), workload).seconds
    assert halves == pytest.approx(9.0 + 15 * 0.065536 + 4 * 0.131072 + 1.048576 + 0.5)


def test_axes_of_cpus_are_one_link(workload):
    """Stages of four messages that are ready at once: two of 0.524 s in a host each, and one of 0.131 across."""
    parts = parts_of(workload)._replace(ready=(9.0,) * 8)
    step = predicted_step(parts, plan("hierarchical:512KiB"), workload)
    assert step.seconds == pytest.approx(9.5 + 2.25 * 2.097152)


def test_other_axes_are_links_beside_each_other(workload, links_apart):
    parts = parts_of(workload)._replace(ready=(9.0,) * 8)
    step = predicted_step(parts, plan("hierarchical:512KiB"), workload)
    assert step.seconds == pytest.approx(9.5 + 2 * 2.097152)


@pytest.mark.parametrize("label", ["per_leaf", "ddp:512KiB", "hierarchical:1MiB", "blueconnect:1MiB", "flat"])
def test_slower_links_never_help(workload, label):
    def seconds(**changes):
        return predicted_step(parts_of(workload, **changes), plan(label), workload).seconds

    assert 9.5 <= seconds(per_byte=1e-7) <= seconds(per_byte=1e-6) <= seconds(per_byte=1e-5)
    assert seconds(per_byte=1e-6) <= seconds(per_byte=1e-6, share=0.3)


@pytest.mark.parametrize(("label", "hidden"), [("flat", 0), ("xla", 0), ("per_leaf", 7), ("ddp:512KiB", 6)])
def test_what_is_not_hidden_makes_a_step_longer(workload, label, hidden):
    """Of eight gradients of 0.262 s all but those of the last message are; half of it hidden is half as much gained."""
    parts, kind = parts_of(workload), plan(label).kind
    step = predicted_step(parts, plan(label), workload)
    assert step.hidden == pytest.approx(hidden * 0.262144)
    for part in (0.0, 0.5, 1.0, 3.0):
        told = predicted_step(parts._replace(unhidden={kind: part}), plan(label), workload)
        assert told.seconds == pytest.approx(step.seconds + part * step.hidden)
        assert told.hidden == pytest.approx((1 - part) * step.hidden)


@pytest.mark.parametrize("label", ["hierarchical:512KiB", "blueconnect:1MiB", "ddp:512KiB+pieces", "priority:512KiB"])
def test_where_nothing_is_hidden_messages_follow_computation(workload, label, links_apart):
    """As if backward made all at its end; the two links of a hierarchy still run side by side."""
    parts = parts_of(workload, per_byte=4e-6)
    told = predicted_step(parts._replace(unhidden={plan(label).kind: 1.0}), plan(label), workload)
    late = parts._replace(ready=(parts.gradients,) * 8)
    by_ddp = plan(label.replace("priority", "ddp"))
    assert told.seconds == pytest.approx(predicted_step(late, by_ddp, workload).seconds)


@pytest.mark.parametrize("label", ["per_leaf", "ddp:512KiB", "hierarchical:1MiB", "flat", "xla", "priority:512KiB"])
def test_a_step_in_time_has_all_that_is_computed_and_all_that_travels(workload, label):
    """Also where messages cross its end: what they take after it they have taken of the step before."""
    seconds, _, computed, sent = predicted_step(parts_of(workload), plan(label), workload)
    assert all(0 <= begin <= end <= seconds + 1e-9 for begin, end in [*computed, *(each[2:] for each in sent)])
    assert sum(end - begin for begin, end in computed) == pytest.approx(9.5)
    by_link = {}
    for each in sent:
        by_link.setdefault(each.collective.axes, []).append(each[2:])
    assert len(by_link) == (2 if label.startswith("hierarchical") else 1)
    taken = {axes: sum(end - begin for begin, end in spans) for axes, spans in by_link.items()}
    whole = 1e-6 * workload.gradient_bytes
    assert taken == pytest.approx({axes: whole / 4 if axes == ("host",) else whole * len(by_link) for axes in by_link})
    for spans in by_link.values():
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(sorted(spans)))


def test_priority_hides_what_a_step_that_ends_with_its_sums_cannot(workload):
    """Of 9.5 s of computation and as many of messages: forward runs beside messages too."""
    parts = parts_of(workload, per_byte=4.5e-6)
    assert (
        predicted_step(parts, plan("priority:256KiB"), workload).seconds
        < predicted_step(parts, plan("ddp:256KiB"), workload).seconds
    )


@pytest.mark.parametrize("label", ["ddp:{}", "ddp:{}+pieces", "priority:{}"])
def test_steps_that_were_timed_teach_those_of_their_kind(workload, label):
    """Three that hide 0.4 s less in all than predicted; what another kind was taught stays."""
    parts, held_out = parts_of(workload), plan(label.format("512KiB"))
    bare = {size: predicted_step(parts, plan(label.format(size)), workload) for size in ("256KiB", "1MiB", "2MiB")}
    longer = dict(zip(bare, (0.1, 0.3, 0.0), strict=True))
    timed = [(plan(label.format(size)), step.seconds + longer[size]) for size, step in bare.items()]
    found = calibrated(parts._replace(unhidden={held_out.kind: 3.0, "other": 1.0}), timed, workload)
    part = 0.4 / sum(step.hidden for step in bare.values())
    assert found.unhidden == {held_out.kind: pytest.approx(part), "other": 1.0}
    told, untold = (predicted_step(each, held_out, workload) for each in (found, parts))
    assert told.seconds == pytest.approx(untold.seconds + part * untold.hidden)
    for each in ("xla", "flat"):  # nothing travels beside their computation
        assert predicted_step(found, plan(each), workload) == predicted_step(parts, plan(each), workload)


@pytest.mark.parametrize(("label", "beyond"), [("ddp:512KiB", 3.0), ("flat", 3.0), ("ddp:512KiB+pieces", 0.0)])
def test_what_a_step_that_hides_nothing_takes_beyond_its_parts_each_of_one_program_does(workload, label, beyond):
    """Two that hide nothing take 2 and 4 s more than predicted; one that hides, not more than they."""
    parts = parts_of(workload)._replace(beyond=7.0)
    bare = {
        name: predicted_step(parts_of(workload), plan(name), workload) for name in ("xla", "flat", "ddp:1MiB", label)
    }
    timed = [(plan(name), bare[name].seconds + more) for name, more in (("xla", 2.0), ("flat", 4.0), ("ddp:1MiB", 3.0))]
    found = calibrated(parts, timed, workload)
    assert (found.beyond, found.unhidden) == (pytest.approx(3.0), {"one program": pytest.approx(0.0, abs=1e-9)})
    told = predicted_step(found, plan(label), workload)
    assert told.seconds == pytest.approx(bare[label].seconds + beyond)
    assert told.hidden == pytest.approx(bare[label].hidden)
    assert calibrated(parts, timed[2:], workload).beyond == 7.0  # nothing is known of it anew
    assert calibrated(parts, [(plan("xla"), 1.0)], workload).beyond == 0.0


@pytest.mark.parametrize(("label", "seconds"), [("ddp:1MiB", 1.0), ("hierarchical:4MiB", 60.0)])
def test_what_is_shorter_than_predicted_or_hides_next_to_nothing_teaches_nothing(workload, label, seconds):
    parts, each = parts_of(workload), plan(label)
    assert calibrated(parts, [(each, seconds)], workload).unhidden == {each.kind: 0.0}


@pytest.mark.parametrize(("label", "launches"), [("ddp:512KiB+pieces", 4), ("ddp:512KiB", 0), ("flat", 0)])
def test_each_message_of_several_programs_is_launched(workload, label, launches):
    """By computation, before it travels: eight gradients of a quarter of a MiB in four messages."""
    parts = parts_of(workload, per_byte=0.0)
    bare, launched = (predicted_step(parts._replace(launch=each), plan(label), workload) for each in (0.0, 0.01))
    assert launched.seconds == pytest.approx(bare.seconds + launches * 0.01)
    later = [after.begin - before.begin for after, before in zip(launched.sent, bare.sent, strict=True)]
    assert later == pytest.approx([0.01 * (number + 1) if launches else 0.0 for number in range(len(later))])


def test_a_launch_of_priority_takes_time_too(workload):
    parts, each = parts_of(workload, per_byte=0.0), plan("priority:512KiB")
    launched = predicted_step(parts._replace(launch=0.01), each, workload).seconds
    assert launched == pytest.approx(predicted_step(parts, each, workload).seconds + 4 * 0.01)


def test_means_of_parameters_are_refused(workload):
    with pytest.raises(InputError, match="strategy=local_sgd is not predicted: its steps are not alike"):
        predicted_step(parts_of(workload), Plan(named_strategy("local_sgd")), workload)


@pytest.mark.parametrize("label", ["zero", "parameter_server"])
def test_what_does_not_sum_message_by_message_is_refused(workload, label):
    with pytest.raises(InputError, match=f"strategy={label} is not predicted: .*; try ddp or hierarchical"):
        predicted_step(parts_of(workload), plan(label), workload)


def test_what_was_not_measured_is_named(workload):
    parts = parts_of(workload)._replace(curves={})
    with pytest.raises(InputError, match="strategy=ddp is not predicted: its all-reduce was not measured"):
        predicted_step(parts, plan("ddp:1MiB"), workload)


def test_one_device_is_refused():
    alone = synthetic("small", LOSSES["small"], SIZES, make_mesh(1, jax.devices()[:1]))
    with pytest.raises(InputError, match="one device sends nothing"):
        predicted_step(Parts(1.0, (2.0,) * 8, 9.0, 9.5, {}, 0.0), plan("xla"), alone)


def test_parts_are_moments_in_order(workload):
    ways = {("all-reduce", AXES), ("all-gather", ("device",))}
    parts = measured_parts(workload, ways)
    in_order = [parts.ready[leaf] for leaf in workload.order]
    assert in_order == sorted(in_order)
    assert 0 < parts.forward <= in_order[0]
    assert in_order[-1] == parts.gradients <= parts.step
    assert set(parts.curves) == ways
    assert 0 < parts.share <= 0.9
    assert 0 < parts.launch < 1
    with pytest.raises(InputError, match="all-to-all are not timed"):
        measured_parts(workload, {("all-to-all", AXES)})
