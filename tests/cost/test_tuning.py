"""Steps predicted from parts, and the plan that is chosen."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.comm import AXES, make_mesh
from jaxnet.config.file import load_config
from jaxnet.cost import prediction, tuning
from jaxnet.cost.fit import Curve, Line
from jaxnet.cost.measured import measured_parts
from jaxnet.cost.prediction import (
    Parts,
    Plan,
    PredictedStep,
    calibrated,
    predicted_step,
    ways_of,
)
from jaxnet.cost.shapes import Sizes
from jaxnet.cost.step_bench import labelled_strategy
from jaxnet.cost.tuning import candidates, default_of, is_enough, is_gain, predict, settings, tune
from jaxnet.cost.workloads import LOSSES, synthetic
from jaxnet.errors import InputError
from jaxnet.training.prepare import workload_of
from support.programs import ROOT

# ---- Steps ----------------------------------------------------------------------------------------------

SIZES = Sizes(leaves=((256, 256),) * 8, example=(256,), batch=8)  # 2 MiB of gradients


@pytest.fixture(scope="module")
def workload():
    return synthetic("small", LOSSES["small"], SIZES, make_mesh(2, jax.devices()[:8]))


def line(latency, per_byte):
    return Curve({1: latency}, Line(latency, per_byte, per_byte, per_byte, 0.0))


def parts_of(workload, share=0.0, per_byte=1e-6):
    """Forward in a second, then a gradient each second in the order of backward; a MB takes a second on any link."""
    ready = np.empty(8)
    ready[list(workload.order)] = 2.0 + np.arange(8)
    ways = ways_of([labelled_strategy(name) for name in ("ddp", "hierarchical", "blueconnect")], workload)
    curves = {way: line(0.0, per_byte) for way in ways}
    return Parts(1.0, tuple(ready), 9.0, 9.5, curves, share)


@pytest.fixture
def links_apart(monkeypatch):
    """As between accelerators."""
    monkeypatch.setattr(prediction, "platform_of", lambda mesh: "gpu")


def plan(label):
    return Plan(labelled_strategy(label), label.endswith("+pieces"))


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


def test_what_an_older_version_has_measured_may_be_too_little(workload):
    parts = parts_of(workload)
    plans = candidates(workload, default_of(workload))
    assert is_enough(parts, plans, workload)
    less = {way: curve for way, curve in parts.curves.items() if way[0] != "reduce-scatter"}
    assert not is_enough(parts._replace(curves=less), plans, workload)


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


# ---- The choice -----------------------------------------------------------------------------------------

DEFAULT = "ddp:4MiB"  # on several devices of a process


def test_every_plan_is_a_candidate_once(workload):
    found = candidates(workload, default_of(workload))
    assert list(found)[:2] == ["xla", DEFAULT]
    assert {"flat", "per_leaf", "ddp:512KiB", "blueconnect:1MiB"} <= set(found)
    assert "horovod:2MiB" in found  # during backward; the same message as flat's, which travels after it
    assert "ddp:2MiB" not in found  # its first bucket is of 1 MiB, so it is ddp:1MiB
    assert "ddp:8MiB" not in found  # all gradients are one message of 2 MiB already
    assert not any("pieces" in label or "priority" in label for label in found)  # of several devices a process


def test_strategies_that_differ_in_axes_of_one_device_are_one_plan():
    """Between hosts of one device each `hierarchical` is `ddp`, where no gradient is cut."""
    alone = synthetic("small", LOSSES["small"], SIZES, make_mesh(2, jax.devices()[:2]))
    found = candidates(alone, "ddp:512KiB")
    assert "ddp:512KiB" in found
    assert "hierarchical:512KiB" not in found


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        (["batch_norm=host"], ["xla", "priority:1MiB"]),
        (["ensemble.members=2"], ["priority:1MiB"]),
        (["compiler_options=xla_cpu_enable_fast_min_max=true"], ["priority:1MiB"]),
    ],
    ids=str,
)
def test_plans_that_a_config_forbids_are_no_candidates(changes, refused, monkeypatch):
    config = load_config(ROOT / "configs/digits.py", "batch_size=8", *changes)
    digits = workload_of("digits", config, make_mesh(2, jax.devices()[:2]))
    several = lambda strategy, mesh: strategy.schedule == "priority"  # noqa: E731  # as between one device each
    monkeypatch.setattr("jaxnet.cost.steps.crosses_steps", several)
    monkeypatch.setattr(tuning, "computes_apart", lambda mesh: True)
    monkeypatch.setattr(tuning, "choice_of", lambda _: SimpleNamespace(label="ddp:4MiB+pieces"))
    assert default_of(digits) == "ddp:4MiB"
    found = candidates(digits, "ddp:4MiB")
    assert not set(refused) & set(found)
    assert not any("pieces" in label for label in found)
    assert {"xla", "priority:1MiB"} - set(refused) <= set(found)
    assert "ddp:4MiB" in found


def test_without_xla_a_tuning_goes_on(workload, monkeypatch):
    made_up = MadeUp(monkeypatch, {DEFAULT: 10.5, "ddp:512KiB": 6.0})
    del made_up.plans["xla"]
    assert tune(workload).why == f"6000.0 ms a step, the default {DEFAULT} 10500.0"


class MadeUp:
    """A tuning whose steps take what the test says, 11 s where it says nothing; as predicted, but for what is `said`.

    Attributes:
        asked: the label of each timing and its steps; the labels of the last one, its rounds and steps.
    """

    def __init__(self, monkeypatch, times, rounds=(), said=()):
        self.times, self.rounds, self.said, self.asked = times, dict(rounds), dict(said), []
        self.plans = {label: plan(label) for label in ("xla", DEFAULT, "per_leaf", "flat", "ddp:512KiB")}
        self.labels = {id(each): label for label, each in self.plans.items()}
        monkeypatch.setattr(tuning, "measured_parts", lambda workload, ways: parts_of(workload))
        monkeypatch.setattr(tuning, "full_step", self.task)
        monkeypatch.setattr(tuning, "seconds_a_step", self.timed)
        monkeypatch.setattr(tuning, "interleave", self.interleaved)
        monkeypatch.setattr(tuning, "predicted_step", self.predicted)
        monkeypatch.setattr(tuning, "calibrated", lambda parts, timed, _: parts)
        monkeypatch.setattr(tuning, "candidates", lambda *_: self.plans)

    def task(self, workload, strategy, pieces):
        label = next(each for each, (of, cut) in self.plans.items() if of is strategy and cut == pieces)
        return SimpleNamespace(label=label, calls=0)

    def timed(self, task, steps):
        self.asked.append((task.label, steps))
        task.calls += steps
        return self.seconds(task.label)

    def interleaved(self, tasks, rounds, steps):
        self.asked.append((sorted(tasks), rounds, steps))
        for task in tasks.values():
            task.calls += rounds * steps
        return {label: self.rounds.get(label, rounds * [self.seconds(label)]) for label in tasks}

    def predicted(self, parts, each, workload):
        label = self.labels[id(each)]
        return PredictedStep(self.said.get(label, self.seconds(label)), 0.0, (), ())

    def seconds(self, label):
        return self.times.get(label, 11.0)


def test_a_tuning_times_what_it_recommends(workload, monkeypatch):
    """One plan is clearly the fastest: it is found, though nothing was learned from it."""
    made_up = MadeUp(monkeypatch, {"xla": 12.0, DEFAULT: 10.5, "ddp:512KiB": 6.0}, said={"ddp:512KiB": 5.0})
    found = tune(workload)
    assert found.best == "ddp:512KiB"
    assert found.why == f"6000.0 ms a step, the default {DEFAULT} 10500.0, xla 12000.0"
    assert [row.label for row in found.rows if row.learned] == [DEFAULT, "xla"]
    assert made_up.asked == [
        *(("xla", 2), (DEFAULT, 2), ("ddp:512KiB", 2)),  # all others are predicted to be slower than the default
        ([DEFAULT, "ddp:512KiB"], *tuning._LAST),
    ]
    assert found.steps == 3 * 2 + 2 * 3
    assert found.errors == pytest.approx([1 / 6])  # of the promising one


def test_what_is_slower_than_the_default_is_not_timed_again(workload, monkeypatch):
    """Predicted to be so by two percent, it is not timed at all."""
    made_up = MadeUp(monkeypatch, {DEFAULT: 10.0, "flat": 10.1, "per_leaf": 10.3})
    assert tune(workload).best == DEFAULT
    assert made_up.asked[2:] == [("flat", 2)]
    made_up = MadeUp(monkeypatch, {DEFAULT: 10.0, "flat": 9.9, "per_leaf": 10.3})
    assert tune(workload).best == DEFAULT
    assert made_up.asked[2:] == [("flat", 2), ([DEFAULT, "flat"], *tuning._LAST)]


def test_of_equal_plans_all_processes_time_the_same(workload, monkeypatch):
    made_up = MadeUp(monkeypatch, {DEFAULT: 12.0})
    tune(workload)
    assert made_up.asked[2:4] == [("per_leaf", 2), ("flat", 2)]


def test_a_plan_that_was_timed_teaches_what_is_tried_next(workload, monkeypatch):
    """Two are said to win; once the first was timed, the second is not."""
    made_up = MadeUp(monkeypatch, {DEFAULT: 10.0}, said={"ddp:512KiB": 8.0, "per_leaf": 9.0})

    def learned(parts, timed, _):
        if any(plan is made_up.plans["ddp:512KiB"] for plan, _ in timed):
            made_up.said = {}
        return parts

    monkeypatch.setattr(tuning, "calibrated", learned)
    found = tune(workload)
    assert made_up.asked[2:] == [("ddp:512KiB", 2)]
    row = next(row for row in found.rows if row.label == "ddp:512KiB")
    assert row.predicted == 8.0  # as it was before it was timed


@pytest.mark.parametrize("default", ["ddp:4MiB+pieces", "hierarchical:4MiB"])
def test_a_plan_of_each_kind_is_learned_from(workload, monkeypatch, default):
    """The default and XLA's plan count, so that no program is compiled that teaches nothing."""
    made_up = MadeUp(monkeypatch, {})
    monkeypatch.setattr(tuning, "default_of", lambda _: default)
    made_up.plans |= {label: plan(label) for label in (default, *tuning._PROBES)}
    made_up.labels |= {id(each): label for label, each in made_up.plans.items()}
    learned = [row.label for row in tune(workload).rows if row.learned]
    assert default in learned
    kinds = ["after backward", "one program", "pieces", "priority"]
    assert Counter(made_up.plans[label].kind for label in learned) == dict.fromkeys(kinds, 1)


def test_a_default_that_nothing_beats_stays(workload, monkeypatch):
    MadeUp(monkeypatch, {"xla": 12.0, DEFAULT: 6.0, "flat": 6.1})
    found = tune(workload)
    assert found.best == DEFAULT
    assert found.why == "6000.0 ms a step, flat 6100.0 is not surely faster, xla 12000.0"


def test_a_default_that_was_slow_by_chance_stays_beside_nothing_else(workload, monkeypatch):
    """With running statistics, where there is no other plan."""
    made_up = MadeUp(monkeypatch, {"xla": 1.0, DEFAULT: 6.0})
    monkeypatch.setattr(tuning, "candidates", lambda *_: {label: made_up.plans[label] for label in ("xla", DEFAULT)})
    assert tune(with_statistics(workload)).best == DEFAULT


def test_a_gain_that_the_last_rounds_deny_is_none(workload, monkeypatch):
    made_up = MadeUp(monkeypatch, {DEFAULT: 6.0, "flat": 5.0}, rounds={"flat": [5.0, 5.0, 6.1]})
    assert tune(workload).best == DEFAULT
    assert made_up.asked[-1] == ([DEFAULT, "flat"], *tuning._LAST)


def test_what_was_measured_before_is_not_measured_again(workload, monkeypatch):
    MadeUp(monkeypatch, {DEFAULT: 10.0, "flat": 5.0})
    monkeypatch.setattr(tuning, "measured_parts", lambda *_: pytest.fail("measured again"))
    found = tune(workload, parts_of(workload))
    assert found.best == "flat"
    assert not any(row.learned for row in found.rows)


def test_a_prediction_alone_tells_the_fastest(workload, monkeypatch):
    made_up = MadeUp(monkeypatch, {"xla": 4.0, DEFAULT: 10.0, "flat": 5.0})
    found = predict(workload, parts_of(workload))
    assert (found.best, found.steps, made_up.asked) == ("xla", 0, [])
    assert found.why == f"predicted: 4000.0 ms a step, the default {DEFAULT} 10000.0"


rounds_of = st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=7)


@given(rounds_of)
def test_a_gain_is_two_percent_and_in_all_rounds(rounds):
    own, default = zip(*rounds, strict=True)
    won = all(one < other for one, other in rounds)
    assert is_gain(own, default) == (won and np.median(own) <= 0.98 * np.median(default))
    assert not (is_gain(own, default) and is_gain(default, own))


def test_running_statistics_are_others_under_xla(workload, monkeypatch):
    """So it is not recommended for a network that has them, however fast."""
    MadeUp(monkeypatch, {"xla": 1.0, DEFAULT: 6.0})
    assert tune(workload).best == "xla"
    assert tune(with_statistics(workload)).best == DEFAULT


def with_statistics(workload):
    other = replace(workload)
    vars(other)["first_state"] = workload.first_state._replace(stats={"mean": np.zeros(3)})  # a cached property
    return other


@pytest.mark.parametrize("label", ["xla", "flat", "ddp:1MiB", "hierarchical:4MiB+pieces", "priority:512KiB"])
def test_a_config_takes_the_settings(label):
    config = load_config(ROOT / "configs/digits.py", *settings(label).split())
    strategy = labelled_strategy(label)
    assert config.strategy == strategy.name
    assert (config.mode == "pieces") == label.endswith("+pieces")
    assert config.bucket_bytes == ({"1M": 1 << 20, "4M": 4 << 20, "51": 512 << 10}.get(label.partition(":")[2][:2]))
