"""What crosses processes in training: one curve on any topology, and resumes that lose nothing."""

import json
import os
import re
import shutil
import signal
import sys
import time

import numpy as np
import optax
import pytest

from jaxnet.data import Digits
from jaxnet.models import from_linen
from jaxnet.report import read_traces, timeline
from support.checkpointing import assert_same_bits, flip_a_bit, largest_file
from support.paced_digits import SAVE_EVERY, STEPS, get_config
from support.programs import ROOT, launch
from support.training_runs import (
    CONFIG,
    EIGHT,
    FOUR,
    ONE,
    TWO,
    Place,
    arrays,
    await_path,
    finish,
    losses,
    metrics,
    pid_of,
    saved_steps,
    start,
    summary,
)

pytestmark = pytest.mark.processes

WAYS = {"2 processes": (TWO,)}
# tests/training/test_step.py shows that every exact strategy and mode trains alike on the devices of one process.
MORE_WAYS = {
    "8 devices as 2 hosts": (EIGHT, "hosts=2"),
    "xla, 2 processes": (TWO, "strategy=xla"),
    "pmap": (EIGHT, "mode=pmap"),
    "4 processes": (FOUR,),
    "8 devices": (EIGHT,),
    "xla": (EIGHT, "strategy=xla"),
}
EVERY_WAY = pytest.mark.parametrize(
    "way",
    [
        *(pytest.param(way, id=name) for name, way in WAYS.items()),
        *(pytest.param(way, id=name, marks=pytest.mark.slow) for name, way in MORE_WAYS.items()),
    ],
)


@EVERY_WAY
def test_the_loss_curve_is_the_same_every_way(run, way):
    got, reference = losses(run(*way)), losses(run(ONE))
    np.testing.assert_allclose(got[:10], reference[:10], rtol=1e-5)
    np.testing.assert_allclose(got, reference, rtol=1e-3)


@pytest.mark.slow
def test_what_auto_has_chosen_is_kept(tmp_path):
    """Two processes of two devices measure their link once, and go on as they began, whatever it would say now."""
    finish(tmp_path, Place(2, 2), "epochs=0.1")
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["strategy"] == "auto"
    chosen = settings["strategy.choice"]["strategy"]
    assert chosen in ("ddp", "hierarchical")
    assert summary(tmp_path)["strategy"] == chosen
    assert "over this link" in settings["strategy.choice"]["why"]

    other = {"ddp": "hierarchical", "hierarchical": "ddp"}[chosen]
    settings["strategy.choice"] |= {"strategy": other, "why": "as before"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    program = finish(tmp_path, Place(2, 2), "epochs=0.2", "--allow-config-change")
    assert summary(tmp_path)["strategy"] == other
    assert any("chosen by auto: as before" in line for line in program.out)
    assert json.loads((tmp_path / "config.json").read_text())["strategy.choice"] == settings["strategy.choice"]


@EVERY_WAY
def test_evaluation_counts_every_example_once_every_way(run, way):
    """360 examples in global batches of 64, beside all of them in one batch on one device."""
    workdir = run(*way)
    state, images = arrays(workdir), Digits().load("test").rows(np.arange(360))
    model, pixels = from_linen(get_config().model), get_config().task.pixels
    logits, _ = model.apply(state["params"], state["stats"], pixels.normalize(images["image"]), train=False, keys=None)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, images["label"]).mean()
    right = int((logits.argmax(-1) == images["label"]).sum())
    got = summary(workdir)
    assert (got["examples"], got["accuracy"]) == (360, right / 360)
    assert got["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert got["loss"] == pytest.approx(summary(run(ONE))["loss"], rel=1e-3)
    assert abs(got["accuracy"] - summary(run(ONE))["accuracy"]) < 1.5 / 360  # one example may stand on the edge


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    """The workdir of a run of two processes that write all there is to write."""
    run(TWO)  # leaves its programs in the cache that all runs here share: a trace would lack them
    workdir = tmp_path_factory.mktemp("written")
    extra = (
        "log.tensorboard=true",
        "log.hlo=true",
        "profile.start=5",
        "profile.steps=2",
        "eval_every_epochs=1",
    )
    finish(workdir, TWO, *extra)
    return workdir


def assert_same_run(workdir, other):
    assert_same_bits(arrays(workdir), arrays(other))
    assert losses(workdir).tolist() == losses(other).tolist()


def test_the_same_run_twice_has_the_same_bits(run, written):
    """The second is traced, so that it compiles for itself, and tested on the way, which changes nothing."""
    assert_same_run(written, run(TWO))


@pytest.mark.slow
@pytest.mark.parametrize("place", [TWO, EIGHT])
def test_the_very_same_run_twice_has_the_same_bits(run, tmp_path, place):
    finish(tmp_path, place)
    assert_same_run(tmp_path, run(place))


def assert_as_unbroken(workdir, unbroken):
    """To the last bit: the final state, the curve, the evaluation."""
    assert_same_bits(arrays(workdir), arrays(unbroken))
    assert losses(workdir).tolist() == losses(unbroken).tolist()
    assert metrics(workdir, "test") == metrics(unbroken, "test")
    assert summary(workdir)["finished"]


def kill_one(workdir, rank, after):
    """Start, or continue, a run of two processes and kill -9 one of them past the checkpoint at `after`."""
    with start(workdir, TWO, PACE_SECONDS="0.1") as program:
        program.wait_for(f"[0] step {after + 2:>6}/{STEPS}")
        await_path(workdir / f"checkpoints/{after:06d}")
        os.kill(pid_of(program, rank), signal.SIGKILL)
        killed = time.monotonic()
        assert program.finish() == 137
        assert time.monotonic() - killed < 30
        assert program.err[-1].startswith(f"launch: rank {rank} was killed by SIGKILL (9) after "), program.err
        assert program.err[-1].endswith("; ended the other 1"), program.err


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The workdir of a run of two processes of which rank 1 was killed after step 20."""
    workdir = tmp_path_factory.mktemp("killed")
    kill_one(workdir, rank=1, after=SAVE_EVERY)
    assert saved_steps(workdir) == [SAVE_EVERY]
    return workdir


def copied(workdir, tmp_path):
    return shutil.copytree(workdir, tmp_path / "copy")


@pytest.mark.slow
def test_killed_twice_and_continued_it_ends_as_unbroken(run, killed, tmp_path):
    workdir = copied(killed, tmp_path)
    kill_one(workdir, rank=0, after=2 * SAVE_EVERY)
    assert saved_steps(workdir) == [SAVE_EVERY, 2 * SAVE_EVERY]
    program = finish(workdir, TWO)
    assert f"[0] continuing {workdir} from step {2 * SAVE_EVERY}" in program.out
    assert_as_unbroken(workdir, run(TWO))


@pytest.mark.parametrize("place", [EIGHT, pytest.param(FOUR, marks=pytest.mark.slow)])
def test_a_killed_run_continues_on_another_topology(run, killed, tmp_path, place):
    workdir = copied(killed, tmp_path)
    program = finish(workdir, place)
    assert any(line.endswith(f"continuing {workdir} from step {SAVE_EVERY}") for line in program.out)
    np.testing.assert_allclose(losses(workdir), losses(run(TWO)), rtol=1e-3)
    got, unbroken = summary(workdir), summary(run(TWO))
    assert got["loss"] == pytest.approx(unbroken["loss"], rel=1e-3)
    assert (got["steps"], got["processes"]) == (STEPS, place.processes)


def stop_one(workdir, number, rank, before):
    """Continue a run from step `before` and send a signal to a rank, or to the launcher; the step of the stop."""
    with start(workdir, TWO, PACE_SECONDS="0.2") as program:
        program.wait_for(f"[0] step {before + 1:>6}/{STEPS}")
        os.kill(program.pid if rank is None else pid_of(program, rank), number)
        assert program.finish() == 0, program.err
    stopped = summary(workdir)
    step = stopped["steps"]
    assert before < step < STEPS, (program.out, program.err)
    assert not stopped["finished"]
    assert saved_steps(workdir)[-1] == step
    told = "SIGTERM" if rank else number.name
    assert f"[0] stopped by {told} after step {step}; run again to continue" in program.out
    assert not before or f"[0] continuing {workdir} from step {before}" in program.out
    return step


@pytest.mark.slow
def test_stopped_by_signals_and_continued_it_ends_as_unbroken(run, tmp_path):
    """Each time all save the same step and exit with 0, whoever got the signal: the launcher or one rank."""
    step, given = 0, [(signal.SIGTERM, None), (signal.SIGINT, 1), (signal.SIGINT, None), (signal.SIGTERM, 1)]
    for number, rank in given:
        step = stop_one(tmp_path, number, rank, step)
    finish(tmp_path, TWO)
    assert_as_unbroken(tmp_path, run(TWO))


@pytest.mark.slow
def test_a_flipped_bit_costs_one_checkpoint(run, tmp_path):
    workdir = copied(run(TWO), tmp_path)
    victim = largest_file(workdir / f"checkpoints/{STEPS:06d}")
    flip_a_bit(victim)
    program = finish(workdir, TWO)
    (warning,) = program.err
    assert warning.startswith(f"[0] warning: checkpoint step {STEPS} is damaged: ")
    assert victim.name in warning
    assert f"[0] continuing {workdir} from step {2 * SAVE_EVERY}" in program.out
    assert_as_unbroken(workdir, run(TWO))


@pytest.mark.parametrize(
    ("command", "difference"),
    [
        ('exec "$@" seed=$JAX_PROCESS_ID', r"config is '\w+' on rank 0, '\w+' on rank 1"),
        pytest.param(
            'JAX_NUM_CPU_DEVICES=$((JAX_PROCESS_ID + 1)) exec "$@"',
            "devices per process is '1' on rank 0, '2' on rank 1",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_that_differ_all_say_how(tmp_path, command, difference):
    train = [sys.executable, str(ROOT / "train.py"), "--config", str(CONFIG), "--workdir", str(tmp_path / "run")]
    with launch("sh", "-c", command, "sh", *train) as program:
        assert program.finish() == 2
    assert not program.out
    first, second = sorted(program.err[:2])
    assert first.removeprefix("[0] ") == second.removeprefix("[1] ")
    assert first.startswith("[0] error: the processes differ: ")
    assert re.search(difference, first)
    assert program.err[2].startswith("launch: rank ")
    assert not (tmp_path / "run").exists()


def test_what_a_run_leaves_in_its_workdir(written):
    """Two processes that write all there is to write."""
    names = {path.name for path in written.iterdir()}
    expected = {"config.json", "metrics.jsonl", "summary.json", "checkpoints", "tensorboard", "hlo", "profile"}
    expected |= {"lock", "ledger.jsonl", "plan.json"}
    assert names == expected
    assert json.loads((written / "config.json").read_text())["profile.steps"] == 2
    assert saved_steps(written) == [40, 45, 60]  # of 20, 22, 40, 45, 60 the newest three, the best among them
    assert len(list((written / "tensorboard").glob("events.out.tfevents.*"))) == 1
    assert {path.name for path in (written / "hlo").iterdir()} == {
        "train_step.stablehlo.txt",
        "train_step.optimized_hlo.txt",
    }
    assert "all-reduce" in (written / "hlo/train_step.optimized_hlo.txt").read_text()
    for rank in (0, 1):
        assert len(list((written / f"profile/process_{rank}").rglob("*.xplane.pb"))) == 1
    assert all(device.collectives for device in timeline(read_traces(written)).devices)
    training = {"loss", "accuracy", "examples_per_second", "step_seconds", "data_wait_seconds"}
    lines = metrics(written)
    assert list(lines) == list(range(1, STEPS + 1))
    assert all(training < line.keys() for line in lines.values())
    assert list(metrics(written, "test")) == [22, 45, STEPS]  # 22.45 steps are an epoch
    final = summary(written)
    assert (final["finished"], final["strategy"], final["processes"]) == (True, "ddp", 2)
    assert final["loss"] > 0
    assert 0.5 < final["accuracy"] <= 1
    assert 0 <= final["data_wait_fraction"] < 1
    assert final["wire_bytes_per_step"] > 0
