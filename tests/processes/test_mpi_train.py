"""`train.py transport=mpi` under mpirun: its curve, what it writes, how it stops and how it fails."""

import os
import signal
import sys

import numpy as np
import pytest

from support.mpirun import MpiProgram, missing
from support.programs import ROOT, Program, await_gone
from support.training_runs import CONFIG, Place, metrics, saved_steps, summary

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

STEPS = 12
# Global BatchNorm, which that config has, sums over the mesh; with local BatchNorm, devices differ in running averages.
SHORT = ("batch_norm=local", f"epochs={STEPS * 64 / 1437}", "checkpoints.every_steps=5")
LONG = ("batch_norm=local",)


def arguments(workdir, *overrides, config=CONFIG):
    return [str(ROOT / "train.py"), "--config", str(config), "--workdir", str(workdir), "transport=mpi", *overrides]


def start(workdir, *overrides, ranks=2, config=CONFIG, **more):
    return MpiProgram(ranks, *arguments(workdir, *overrides, config=config), **more)


def finish(workdir, *overrides, **more):
    """Run until all ranks have ended well."""
    with start(workdir, *overrides, **more) as program:
        assert program.status() == 0, program.err
        return program


def losses(workdir):
    return [line["loss"] for _, line in sorted(metrics(workdir).items())]


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5)


# test_mpi.py sums by every strategy over MPI, and below ranks of two devices have the curve of one process.
@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=pytest.mark.slow) for name in ("hierarchical", "per_leaf", "flat")],
)
def test_two_ranks_have_the_curve_of_two_devices(strategy, tmp_path, run):
    alone = run(Place(devices=2), *SHORT, "strategy=flat")
    program = finish(tmp_path, *SHORT, f"strategy={strategy}")
    close(losses(tmp_path), losses(alone))
    got, want = summary(tmp_path), summary(alone)
    assert (got["strategy"], got["processes"], got["mesh"]) == (strategy, 2, {"host": 2, "device": 1})
    assert (got["steps"], got["accuracy"], got["examples"]) == (STEPS, want["accuracy"], want["examples"])
    close(got["loss"], want["loss"])
    # To each message an element is added where its length is odd.
    assert 0 <= got["wire_bytes_per_step"] - want["wire_bytes_per_step"] <= 4 * 16
    assert any(line.endswith("; the compiled program does as planned") for line in program.out)
    # One rank alone writes and prints: a line for each step and one for the test.
    assert len([line for line in program.out if line.startswith("step ")]) == STEPS
    assert len([line for line in program.out if line.startswith("test at step ")]) == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == STEPS + 1
    assert saved_steps(tmp_path) == [5, 10, STEPS]


@pytest.mark.slow
def test_ranks_are_hosts(tmp_path, run):
    overrides = [*SHORT, "batch_norm=host"]
    finish(tmp_path, *overrides, ranks=2, devices=2)
    alone = run(Place(devices=4), *overrides, "hosts=2")
    close(losses(tmp_path), losses(alone))
    close(summary(tmp_path)["loss"], summary(alone)["loss"])
    assert summary(tmp_path)["mesh"] == summary(alone)["mesh"]


# mpirun hands SIGUSR1 on to all ranks. SIGTERM it takes for itself: it sends it to them a while later, and as much
# later SIGKILL, and ends with status 1 however they end.
@pytest.mark.slow
def test_a_signal_stops_all_ranks_and_the_run_continues(tmp_path, run):
    step, patient = 0, ["--mca", "odls_base_sigkill_timeout", "5"]
    for rank, name, status in [(1, "TERM", 0), (None, "TERM", 1), (None, "USR1", 0)]:
        with start(tmp_path, *LONG, options=patient, PACE_SECONDS="0.3") as program:
            program.wait_for(f"step {step + 3:>6}/60")
            os.kill(program.pid if rank is None else program.rank(rank), signal.Signals[f"SIG{name}"])
            assert program.status() == status, (name, program.err)
        assert not step or f"continuing {tmp_path} from step {step}" in program.out
        before, step = step, summary(tmp_path)["steps"]
        assert not summary(tmp_path)["finished"]
        assert before < saved_steps(tmp_path)[-1] == step < 60
        assert any(line.startswith("stopped by SIG") for line in program.out), name
    program = finish(tmp_path, *LONG)
    assert f"continuing {tmp_path} from step {step}" in program.out
    assert (summary(tmp_path)["steps"], summary(tmp_path)["finished"]) == (60, True)
    close(losses(tmp_path), losses(run(Place(devices=2), *LONG, "strategy=flat")))


def test_ranks_that_differ_are_told_so(tmp_path):
    others = [arguments(tmp_path, *SHORT, "seed=1")]
    with start(tmp_path, *SHORT, ranks=1, others=others) as program:
        assert program.status() == 2
    errors = [line for line in program.err if line.startswith("error: ")]
    assert len(errors) == 2
    assert all("the processes differ: config is " in line and "on rank 1; give all the same" in line for line in errors)


def test_what_rank_0_cannot_write_ends_all_ranks(tmp_path):
    (tmp_path / "checkpoints").write_text("in the way")
    with start(tmp_path, *SHORT) as program:
        assert program.status() == 2
    errors = [line for line in program.err if line.startswith("error: ")]
    assert errors == 2 * [f"error: checkpoints cannot be written to {tmp_path / 'checkpoints'}: File exists"]


FAILING = """
import os
from dataclasses import replace
from support import paced_digits

class Failing(paced_digits.Slow):
    rows_before = 5

    def rows(self, indices):
        self.rows_before -= 1
        if self.rows_before < 0 and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            raise ZeroDivisionError("rank 1 has had enough")
        return super().rows(indices)

class Data(paced_digits.PacedDigits):
    def load(self, split):
        return Failing(super().load(split), 0)

def get_config():
    return replace(paced_digits.get_config(), data=Data())
"""


def test_an_error_on_one_rank_ends_all(tmp_path):
    (tmp_path / "config.py").write_text(FAILING)
    with start(tmp_path, *LONG, config=tmp_path / "config.py") as program:
        program.wait_for("step      1/60")
        ranks = [program.rank(0), program.rank(1)]
        assert program.status() == 1
        assert "ZeroDivisionError: rank 1 has had enough" in program.err
        await_gone(*ranks)


def test_without_mpirun_nobody_trains_alone(tmp_path):
    with Program([sys.executable, *arguments(tmp_path, *SHORT)]) as program:
        assert program.finish() == 2
    [said] = [line for line in program.err if line.startswith("error: ")]
    assert "neither mpirun nor srun has started this process, which would train alone" in said
    assert "Traceback" not in "".join(program.err)
    assert not (tmp_path / "config.json").exists()


def test_one_rank_is_a_run_of_one(tmp_path):
    program = finish(tmp_path, *SHORT, ranks=1)
    assert (summary(tmp_path)["processes"], summary(tmp_path)["steps"]) == (1, STEPS)
    sent = "sends      0 bytes a step from the busiest device"
    assert any(line.startswith(sent) for line in program.out), program.out


def test_variables_of_jax_are_refused_beside_mpirun(tmp_path):
    with start(tmp_path, *SHORT, JAX_NUM_PROCESSES="2") as program:
        assert program.status() == 2
    assert any("JAX_NUM_PROCESSES=2 is for processes that JAX joins" in line for line in program.err)
    assert not (tmp_path / "config.json").exists()
