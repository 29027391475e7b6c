"""`jaxnet launch local --max-restarts`: what fails is started again as far as it makes sense, and nothing is left."""

import os
import signal

import pytest

from support.checkpointing import assert_same_bits
from support.paced_digits import SAVE_EVERY, STEPS
from support.programs import ROOT, await_gone, keeper_of, launch, write_program
from support.training_runs import CONFIG, TWO, arrays, await_path, losses, pid_of, summary

pytestmark = pytest.mark.processes

RANK = """\
import os, signal, sys, time
from jaxnet.cluster.progress import noted
rank, attempt = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAXNET_ATTEMPT"])
note = noted(os.environ)
print("pid", os.getpid(), os.environ["JAX_COORDINATOR_ADDRESS"])
"""


@pytest.fixture
def restarting(tmp_path):
    """`restarting(text, most)`: a program of two ranks, started; afterwards no file of the launcher is left."""
    folder = tmp_path / "scratch"
    folder.mkdir()

    def start(text, most=3, processes=2, options=()):
        program = write_program(tmp_path, RANK + text)
        options = ["--max-restarts", str(most), *options]
        return launch(program, processes=processes, options=options, TMPDIR=str(folder))

    yield start
    assert not list(folder.iterdir())


def pids(job):
    return [int(line.split()[2]) for line in job.out if " pid " in line and " 127.0.0.1:" in line]


def test_it_fails_twice_and_then_ends_well(restarting):
    text = """
for step in range(10 * attempt, 10 * attempt + 5):
    note(step)
if attempt < 3:
    if rank == 1:
        sys.exit(f"the {attempt}th misfortune")
    signal.pause()
"""
    with restarting(text, most=1) as job:  # each attempt begins later than the one before: the budget is full again
        assert job.finish() == 0, job.err
        lines = [line for line in job.err if line.startswith("launch: ")]
        assert lines[0].startswith("launch: rank 1 exited with status 1 after ")
        assert lines[0].endswith(" s; ended the other 1; all start again in 1 s, attempt 2")
        assert [line.split(" after")[0] for line in lines[2:]] == [
            "launch: attempt 1: rank 1 exited with status 1",
            "launch: attempt 2: rank 1 exited with status 1",
            "launch: attempt 3: ended well",
        ]
        assert ", at step 14 (the 1th misfortune); the next step came " in lines[2]
        # Rank 0 is ended, maybe in the middle of a line.
        addresses = [line.split()[3] for line in job.out if line.startswith("[1]")]
        assert len(set(addresses)) == 3  # a port for each attempt
        await_gone(*pids(job))


def test_the_budget_ends(restarting):
    with restarting("note(7)\nif rank == 0: os.kill(os.getpid(), signal.SIGKILL)\nsignal.pause()", most=1) as job:
        assert job.finish() == 137
        assert job.err[1].endswith("not started again: 1 restarts without progress are used up (--max-restarts)")
        assert job.err[2].startswith("launch: attempt 1: rank 0 was killed by SIGKILL (9) after ")
        assert job.err[3].startswith("launch: attempt 2: rank 0 was killed by SIGKILL (9) after ")
        assert job.err[3].endswith(" s, at step 7")
        await_gone(*pids(job))


def test_a_mistake_is_not_repeated(restarting):
    with restarting("sys.exit('no such key: learnin_rate')", most=9) as job:
        assert job.finish() == 1
        assert sum("all start again" in line for line in job.err) == 1
        assert sum("failed twice in the same way" in line for line in job.err) == 1


def test_without_a_rank_that_always_fails_it_goes_on_with_fewer(restarting):
    text = """
count = int(os.environ["JAX_NUM_PROCESSES"])
if count == 3:
    sys.exit("error: batch_size=64: wanted a multiple of 3")
note(1)
if count == 4:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
print(rank, "of", count)
"""
    with restarting(text, most=1, processes=4, options=["--min-processes", "2"]) as job:
        assert job.finish() == 0, job.err
        assert {"[0] 0 of 2", "[1] 1 of 2"} < set(job.out)
        said = [line for line in job.err if " processes, attempt " in line]
        assert [line.partition(": on ")[2] for line in said] == [
            "with 3 processes, attempt 3",
            "with 2 processes, attempt 5",
        ]


def test_a_keeper_that_was_killed_takes_no_restart_away(restarting, tmp_path):
    """In the attempt that fails, and in the next."""
    text = f"""
print("ready", attempt)
while not os.path.exists(f"{tmp_path}/go-{{attempt}}"):
    time.sleep(0.02)
if attempt == 1 and rank == 1:
    sys.exit(5)
"""
    with restarting(text) as job:
        for attempt in (1, 2):
            job.wait_for(f"[0] ready {attempt}", f"[1] ready {attempt}")
            os.kill(keeper_of(job.pid), signal.SIGKILL)
            (tmp_path / f"go-{attempt}").touch()
        assert job.finish() == 0, job.err
        assert job.err[-1].startswith("launch: attempt 2: ended well after ")
        await_gone(*pids(job))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_while_it_waits_it_ends(restarting, number):
    with restarting("os.kill(os.getpid(), signal.SIGKILL)", most=9) as job:
        job.wait_for("launch: rank")
        os.kill(job.pid, number)
        assert job.finish() in (137, 128 + number), job.err


def test_told_to_end_while_it_runs_it_does_not_start_again(restarting):
    with restarting("note(1)\nprint('ready')\nsignal.pause()", most=9) as job:
        job.wait_for("[0] ready", "[1] ready")
        os.kill(job.pid, signal.SIGTERM)
        assert job.finish() == 143
        assert any(line.endswith("not started again: it was told to end") for line in job.err), job.err


def train(workdir, **environment):
    command = [str(ROOT / "train.py"), "--config", str(CONFIG), "--workdir", str(workdir)]
    return launch(*command, options=["--max-restarts", "1"], PACE_SECONDS="0.05", **environment)


@pytest.mark.slow
def test_a_killed_rank_costs_some_steps_and_changes_no_bit(run, tmp_path):
    with train(tmp_path) as program:
        program.wait_for(f"[0] step {SAVE_EVERY + 2:>6}/{STEPS}")
        await_path(tmp_path / f"checkpoints/{SAVE_EVERY:06d}")
        os.kill(pid_of(program, 1), signal.SIGKILL)
        assert program.finish() == 0, program.err
        assert f"[0] continuing {tmp_path} from step {SAVE_EVERY}" in program.out
        first, second = program.err[-2:]
    assert first.startswith("launch: attempt 1: rank 1 was killed by SIGKILL (9) after ")
    assert "; the next step came " in first
    assert second.startswith("launch: attempt 2: ended well after ")
    assert second.endswith(f" s, at step {STEPS}")
    assert_same_bits(arrays(tmp_path), arrays(run(TWO)))
    assert losses(tmp_path).tolist() == losses(run(TWO)).tolist()


def test_a_rank_that_is_preempted_stops_all_in_good_order_and_that_is_no_failure(tmp_path):
    with train(tmp_path) as program:
        program.wait_for(f"[0] step {2:>6}/{STEPS}")
        os.kill(pid_of(program, 1), signal.SIGTERM)
        assert program.finish() == 0, program.err
        assert not any(line.startswith("launch: ") for line in program.err)
    stopped = summary(tmp_path)
    assert not stopped["finished"]
    assert (tmp_path / f"checkpoints/{stopped['steps']:06d}").is_dir()
