"""A run whose numbers go wrong skips, goes back, or stops with one clear error; and nothing saved is lost."""

import contextlib
import json
import math
import re
import shutil
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.checkpoints import Checkpointer
from jaxnet.config.check import check_config
from jaxnet.config.run import Guard
from jaxnet.errors import InputError
from jaxnet.optimizer import learning_rate
from jaxnet.parallel.device_step import LOSS_SCALE, NOT_FINITE, SKIPPED
from jaxnet.parallel.state import abstract_state, stored_scale
from jaxnet.training.guard import GuardCounts, GuardMonitor, GuardState, spike_limit
from jaxnet.training.loop import Loop
from support import poison, training_runs
from support.checkpointing import assert_same_bits
from support.dark_digits import config_of
from support.runs import train
from support.training_runs import metrics, saved_steps

NAMES = ["the loss", "the gradient of a", "the gradient of b"]


def seen(watch, outcomes, **more):
    """The lines of a watch that sees steps 1, 2, ...: a number is a loss, None a step that was skipped."""
    lines = []
    for step, loss in enumerate(outcomes, 1):
        values = {"loss": math.nan if loss is None else loss, SKIPPED: float(loss is None)}
        lines += watch.push(step, {**values, NOT_FINITE: np.array([loss is None, False, loss is None]), **more})
    return lines + list(watch.drain())


def test_steps_skipped_in_a_row_send_it_back_before_the_first_of_them():
    watch = GuardMonitor(Guard(rollback_after=3), NAMES)
    lines = seen(watch, [1.0, None, None, 1.0, None, None])
    assert lines == [f"step {n}: skipped, the loss, the gradient of b were not finite" for n in (2, 5)]
    assert (watch.limit, watch.counts) == (None, GuardCounts(4, 0, 0))
    watch = GuardMonitor(Guard(rollback_after=3), NAMES)
    seen(watch, [1.0, None, None, None])
    assert watch.limit == 1
    assert watch.rolled_back(0, 4) == (
        "the loss, the gradient of b were not finite in 3 steps in a row (2 to 4): back to the checkpoint of step 0, "
        "on with the examples after step 4"
    )
    assert (watch.limit, watch.counts.rollbacks) == (None, 1)


def test_what_it_went_back_to_in_vain_is_not_used_again():
    watch = GuardMonitor(Guard(rollback_after=2), NAMES)
    for _ in range(2):
        watch.push(1, {})
        watch._pending.clear()
    assert seen(watch, [1.0, None, None])[0].startswith("step 2: skipped")
    assert watch.limit == 1
    watch.rolled_back(40, 50)
    seen(watch, [None, None])
    assert watch.limit == 0
    watch = GuardMonitor(Guard(rollback_after=2), NAMES)
    seen(watch, [None, None])
    watch.rolled_back(40, 50)
    watch.limit, watch._row = None, []
    list(watch._examine(60, {"loss": 0.0, SKIPPED: 1.0, NOT_FINITE: np.ones(3, bool)}))
    list(watch._examine(61, {"loss": 0.0, SKIPPED: 1.0, NOT_FINITE: np.ones(3, bool)}))
    assert watch.limit == 39


def test_a_loss_scale_that_is_being_found_is_no_reason_to_go_back():
    watch = GuardMonitor(Guard(rollback_after=2), NAMES)
    overflow = {"loss": 1.0, SKIPPED: 1.0, NOT_FINITE: np.array([False, True, True])}
    for step in range(1, 9):
        [line] = watch._examine(step, {**overflow, LOSS_SCALE: 2.0**15})
        assert line == f"step {step}: skipped, the gradient was too large for float16; loss scale 32768 -> 16384"
    assert watch.limit is None
    for step in (9, 10):
        list(watch._examine(step, {**overflow, LOSS_SCALE: 1.0}))
    assert watch.limit == 8


def test_the_lag_is_that_of_the_state():
    watch = GuardMonitor(Guard(rollback_after=2), NAMES, GuardState(GuardCounts(7), 5))
    for step, skipped in enumerate([0, 1, 0, 1, 1], 1):
        list(watch.push(step, {"loss": 1.0, SKIPPED: float(skipped), NOT_FINITE: np.array([skipped > 0] * 3)}))
    assert watch.past.lag == 6  # the last two steps are still in flight
    assert [watch.lag_at(step) for step in (3, 4, 5)] == [6, 7, 8]
    list(watch.drain())
    assert watch.lag_at(5) == watch.past.lag == 8
    watch.rolled_back(2, 5, lag=6)  # after step 5 the state is that of step 2, in which 6 updates were missing
    assert watch.past == GuardState(GuardCounts(10, 0, 1), 9, source=2)
    assert GuardState.saved({"guard": watch.past.to_save()}) == watch.past
    assert GuardState.saved({"guard": GuardCounts(3, 2, 1)._asdict()}) == GuardState(
        GuardCounts(3, 2, 1), 0
    )  # from before there was one
    watch.rewound(GuardState(GuardCounts(9), 6, row=(7,), wrong="the loss was"))
    assert watch.past == GuardState(GuardCounts(10, 0, 2), 6, row=(7,), wrong="the loss was")
    unguarded = GuardMonitor(Guard(skip=False), NAMES)
    list(unguarded.push(1, {"loss": math.nan}))
    assert unguarded.lag_at(1) == 0


def test_steps_whose_metrics_are_not_shared_do_not_send_it_back():
    watch = GuardMonitor(Guard(rollback_after=2), NAMES, is_shared=lambda step: step % 4 == 0)
    seen(watch, [None] * 7)
    assert watch.limit is None
    seen(watch, [None] * 4)
    assert watch.limit == 3


@pytest.mark.parametrize("stopped", range(1, 8))
def test_a_row_that_a_stop_interrupts_goes_on(stopped):
    """Saved after any step, and taken up by another process, it is the row of an unbroken run."""
    limits = []
    for breaks in (False, True):
        watch = GuardMonitor(Guard(rollback_after=3), NAMES)
        watch.past = GuardState(row=(5, 6), source=4)
        for step, skipped in enumerate([0, 1, 1, 0, 1, 1, 1], 1):
            values = {"loss": 1.0, SKIPPED: float(skipped), NOT_FINITE: np.array([skipped > 0] * 3)}
            list(watch._examine(step, values))
            if breaks and step == stopped:
                extra = json.loads(json.dumps({"guard": watch.past.to_save()}))
                watch = GuardMonitor(Guard(rollback_after=3), NAMES, GuardState.saved(extra))
        limits.append((watch.limit, watch.past, watch.rolled_back(1, 9)))
    assert limits[0] == limits[1]
    assert limits[0][0] == 4


def test_a_spike_is_six_deviations_above_the_median():
    draw = np.random.RandomState(0)
    losses = 2 + 0.1 * draw.standard_normal(200)
    losses[[150, 151, 170]] = 3.0
    watch = GuardMonitor(Guard(), NAMES)
    lines = seen(watch, losses.tolist())
    assert watch.counts.loss_spikes == 3
    assert [line.split(",")[0] for line in lines] == ["step 151: the loss is 3", "step 171: the loss is 3"]
    before = losses[32:160]
    median = np.median(before)
    wanted = median + 6 * 1.4826 * np.median(np.abs(before - median))
    assert spike_limit(before.tolist()) == pytest.approx(wanted)
    assert spike_limit(losses[:31].tolist()) == math.inf
    assert spike_limit([2.0] * 128) == pytest.approx(2 + 6 * 1.4826 * 0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"guard": Guard(rollback_after=0)}, "guard.rollback_after=0: wanted at least 1"),
        ({"guard": Guard(check_replicas_every=0)}, "guard.check_replicas_every=0: wanted at least 1, or none"),
        ({"guard": Guard(max_rollbacks=-1)}, "guard.max_rollbacks=-1: wanted at least 0"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(change, message):
    with pytest.raises(InputError, match=re.escape(message)):
        check_config(config_of(10, **change))


def test_float16_is_refused_where_no_scale_can_be_found():
    from jaxnet.models import CNN

    half = {"model": CNN(10, dtype="float16")}
    check_config(config_of(10, **half))
    with pytest.raises(
        InputError, match=r"model.dtype=float16 does not go with guard.skip=false.*leave guard.skip=true"
    ):
        check_config(config_of(10, guard=Guard(skip=False), **half))
    with pytest.raises(InputError, match=r"model.dtype=float16 does not go with strategy=local_sgd"):
        check_config(config_of(10, strategy="local_sgd", **half))


# ---- Whole runs ---------------------------------------------------------------------------------------------


def rate_of_newest_update(workdir, step, total):
    """What the schedule gave for the last update of a saved state, by the optimizer's own count."""
    leaves = jax.tree.leaves(training_runs.arrays(workdir, step)["optimizer"])
    [count] = [leaf for leaf in leaves if leaf.dtype == np.int32]
    return float(learning_rate(config_of(total).optimizer, total)(count - 1))


def parameters(workdir, step):
    return training_runs.arrays(workdir, step)["params"]


def test_a_row_of_bad_batches_sends_the_run_back_and_past_them(tmp_path, capsys):
    """Step 3 alone is skipped; steps 27 to 31 bring back the parameters of step 20, though 30 was saved."""
    config = config_of(40, dark=[2, *range(26, 31)])
    summary = train(config, tmp_path)
    assert summary["finished"]
    assert [summary[key] for key in GuardCounts._fields] == [6, 0, 1]
    assert summary["loss"] < 2.3
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("step 3: skipped, the loss") for line in lines)
    assert any(line.endswith("back to the checkpoint of step 20, on with the examples after step 33") for line in lines)
    assert saved_steps(tmp_path) == [10, 20, 30, 33, 40]
    assert_same_bits(parameters(tmp_path, 33), parameters(tmp_path, 20))
    counted = {step: line["skipped"] for step, line in metrics(tmp_path).items()}
    assert counted == {5: 1, 10: 0, 15: 0, 20: 0, 25: 0, 30: 4, 35: 1, 40: 0}
    assert all(math.isfinite(line["loss"]) for line in metrics(tmp_path).values())
    rates = {step: line["learning_rate"] for step, line in metrics(tmp_path).items()}
    for step in (10, 20, 30, 40):
        assert rates[step] == pytest.approx(rate_of_newest_update(tmp_path, step, 40), rel=1e-5)
    assert rates[20] > rates[35] > rates[40] > 0.01  # that of 40 updates is 0.00015
    unbroken = training_runs.arrays(tmp_path, 40)
    for lost in ([40], [33, 40]):  # goes on after step 33; then after step 30, amid the row
        for step in lost:
            shutil.rmtree(tmp_path / f"checkpoints/{step:06d}")
        train(config, tmp_path, quiet=True)
        assert rates == {step: line["learning_rate"] for step, line in metrics(tmp_path).items()}
        assert_same_bits(training_runs.arrays(tmp_path, 40), unbroken)


def test_a_run_that_cannot_be_helped_stops_and_says_why(tmp_path):
    guard = Guard(rollback_after=2, max_rollbacks=2)
    with pytest.raises(InputError) as stopped:
        train(config_of(60, dark=range(25, 60), guard=guard), tmp_path, quiet=True)
    words = str(stopped.value)
    first = r"stopped at step \d+: the loss, the gradient of Dense_0/kernel, the gradient of Dense_1/bias and 1 more"
    assert re.match(first, words), words
    assert "the run has gone back 2 times already (guard.max_rollbacks)" in words
    saved = saved_steps(tmp_path)
    assert_same_bits(parameters(tmp_path, saved[-1]), parameters(tmp_path, 10))  # 20 was tried first, in vain
    with pytest.raises(InputError, match="gone back 2 times already"):  # started again, it does not begin to count anew
        train(config_of(60, dark=range(25, 60), guard=guard), tmp_path, quiet=True)


def plant(monkeypatch, at):
    """After step `at`, once, one device's copy of a parameter loses a bit."""
    one, done = Loop._one, []

    def faulty(self, state, batches, step):
        state = one(self, state, batches, step)
        if step + 1 == at and not done:
            done.append(step)
            leaves, tree = jax.tree.flatten(state.params)
            copies = [np.array(shard.data) for shard in leaves[1].addressable_shards]
            copies[3].reshape(-1).view(np.uint32)[0] ^= 1 << 20
            parts = [jax.device_put(c, s.device) for c, s in zip(copies, leaves[1].addressable_shards, strict=True)]
            leaves[1] = jax.make_array_from_single_device_arrays(leaves[1].shape, leaves[1].sharding, parts)
            state = state._replace(params=jax.tree.unflatten(tree, leaves))
        return state

    monkeypatch.setattr(Loop, "_one", faulty)


def test_a_device_that_differs_stops_the_run_or_has_it_trained_again(tmp_path, monkeypatch):
    unbroken = train(config_of(30), tmp_path / "unbroken", quiet=True)
    plant(monkeypatch, at=17)
    restore = Guard(on_difference="restore", check_replicas_every=6)
    repaired = train(config_of(30, guard=restore), tmp_path / "repaired", quiet=True)
    assert (unbroken["rollbacks"], repaired["rollbacks"]) == (0, 1)
    assert repaired["loss"] == unbroken["loss"]
    assert_same_bits(parameters(tmp_path / "repaired", 30), parameters(tmp_path / "unbroken", 30))
    by_step = [metrics(tmp_path / name).items() for name in ("repaired", "unbroken")]
    logged = [{step: line["loss"] for step, line in lines} for lines in by_step]
    assert logged[0] == logged[1]  # of steps that were done again, the second time alone
    monkeypatch.undo()
    plant(monkeypatch, at=17)
    with pytest.raises(InputError) as stopped:
        train(config_of(30), tmp_path / "stopped", quiet=True)
    assert "after step 20, devices that should hold the same state do not: device 3 of rank 0 differs" in str(
        stopped.value
    )
    assert saved_steps(tmp_path / "stopped") == [10]  # never one of a state that was in doubt


# ---- Older checkpoints --------------------------------------------------------------------------------------


class OldState(NamedTuple):
    """A train state as it was before it had a loss scale."""

    step: Any
    params: Any
    stats: Any
    optimizer: Any
    comm: Any
    average: Any
    key: Any


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_checkpoint_from_before_there_was_a_loss_scale_restores(tmp_path, dtype):
    made = poison.setup("int8", dtype=dtype)
    old = OldState(*made.state[:7])
    with contextlib.closing(Checkpointer(tmp_path)) as checkpoints:
        checkpoints.save(3, old, extra={"next_step": 3})
        like = abstract_state(made.layout.whole_shapes, made.mesh)
        restored = checkpoints.restore_latest(like, defaults=stored_scale())
    assert_same_bits(jax.device_get(restored.state[:7]), jax.device_get(tuple(old)))
    assert GuardState.saved(restored.extra) == GuardState(GuardCounts(), 0)
    if dtype == "float16":
        assert (float(restored.state.scale.scale), int(restored.state.scale.good)) == (2**15, 0)
        assert restored.state.scale.scale.sharding == comm.replicated(made.mesh)
    state, _ = made.step(restored.state, poison.batch(made, 0))
    assert int(state.step) == 1


def test_a_run_that_needs_no_scale_goes_on_from_one_that_had_it(tmp_path):
    half, full = (poison.setup(dtype=dtype) for dtype in ("float16", "float32"))
    with contextlib.closing(Checkpointer(tmp_path)) as checkpoints:
        checkpoints.save(3, half.state, extra={})
        like = abstract_state(full.layout.whole_shapes, full.mesh)
        restored = checkpoints.restore_latest(like, defaults=stored_scale())
        with pytest.raises(InputError, match="scale/scale"):  # nothing else may be lacking
            checkpoints.restore_latest(like)
    assert restored.state.scale is None
    assert_same_bits(jax.device_get(restored.state[:7]), jax.device_get(half.state[:7]))
