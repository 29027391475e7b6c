"""The plan that is chosen: candidates, what is timed of them, and when one is worth a setting."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.comm import make_mesh
from jaxnet.config.file import load_config
from jaxnet.cost import tuning
from jaxnet.cost.prediction import PredictedStep
from jaxnet.cost.step_bench import labelled_strategy
from jaxnet.cost.tuning import candidates, default_of, is_enough, is_gain, predict, settings, tune
from jaxnet.cost.workloads import LOSSES, synthetic
from jaxnet.training.prepare import workload_of
from support.parts import SIZES, parts_of, plan, small_workload
from support.programs import ROOT

DEFAULT = "ddp:4MiB"  # on several devices of a process


@pytest.fixture(scope="module")
def workload():
    return small_workload()


def test_what_an_older_version_has_measured_may_be_too_little(workload):
    parts = parts_of(workload)
    plans = candidates(workload, default_of(workload))
    assert is_enough(parts, plans, workload)
    less = {way: curve for way, curve in parts.curves.items() if way[0] != "reduce-scatter"}
    assert not is_enough(parts._replace(curves=less), plans, workload)
    assert not is_enough(parts._replace(ready=parts.ready[:-1]), plans, workload)


def test_every_plan_is_a_candidate_once(workload):
    found = candidates(workload, default_of(workload))
    assert list(found)[:2] == ["xla", DEFAULT]
    assert {"flat", "per_leaf", "ddp:512KiB", "blueconnect:1MiB"} <= set(found)
    assert "horovod:2MiB" in found  # during backward; the same message as flat's, which travels after it
    assert "ddp:2MiB" not in found  # its first bucket is of 1 MiB, so it is ddp:1MiB
    assert "ddp:8MiB" not in found  # all gradients are one message of 2 MiB already
    assert not any("pieces" in label or "priority" in label for label in found)  # of several devices a process
    assert {"per_leaf:after=true", "hierarchical:after=true:512KiB"} <= set(found)  # likewise


def test_strategies_that_differ_in_axes_of_one_device_are_one_plan():
    """Between hosts of one device each `hierarchical` is `ddp`, where no gradient is cut."""
    alone = synthetic("small", LOSSES["small"], SIZES, make_mesh(2, jax.devices()[:2]))
    found = candidates(alone, "ddp:512KiB")
    assert "ddp:512KiB" in found
    assert "hierarchical:512KiB" not in found
    assert "per_leaf:after=true" in found  # of one process


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


def test_what_cannot_win_is_not_timed(workload, monkeypatch):
    """Predicted to be slower than the default, not at all; faster by less than what is worth a setting, not again."""
    made_up = MadeUp(monkeypatch, {DEFAULT: 10.0, "flat": 10.1})
    assert tune(workload).best == DEFAULT
    assert made_up.asked[2:] == []
    made_up = MadeUp(monkeypatch, {DEFAULT: 10.0, "flat": 9.9})
    assert tune(workload).best == DEFAULT
    assert made_up.asked[2:] == [("flat", 2)]
    made_up = MadeUp(monkeypatch, {DEFAULT: 10.0, "flat": 9.7})
    assert tune(workload).best == "flat"
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
    MadeUp(monkeypatch, {"xla": 12.0, DEFAULT: 6.0, "flat": 6.1}, said={"flat": 5.9})
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
