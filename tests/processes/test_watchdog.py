"""A rank that is alive but stuck ends the run, and the others name it."""

import os
import signal
import sys

import pytest

from support.paced_digits import STEPS
from support.programs import Program, await_gone, write_program
from support.training_runs import TWO, pid_of, start

pytestmark = pytest.mark.processes

LIMITS = ("watchdog.floor_seconds=2", "watchdog.factor=5")

STUCK = """
import time
from jaxnet.training.watchdog import Watchdog, WatchdogLimits

def waits_for_ever():
    time.sleep(600)

with Watchdog(WatchdogLimits(factor=2, floor_seconds=1, other_seconds=1)) as alarm:
    for step in range(1, 8):
        time.sleep(0.1)
        alarm.stepped(step)
    exec(compile("time.sleep(2)", "somewhere/jax/_src/compiler.py", "exec"))
    print("compiled", flush=True)
    alarm.stepped(8)
    waits_for_ever()
"""


def test_a_stuck_process_shows_its_stacks_and_ends(tmp_path):
    """What it spends in the compiler does not count."""
    with Program([sys.executable, write_program(tmp_path, STUCK)]) as program:
        assert program.finish() == 79, program.err
        assert program.out == ["compiled"]
        assert any("in waits_for_ever" in line for line in program.err)
        assert program.err[-1] == "watchdog: step 9 takes longer than 1 s: this process waits for nobody else"


@pytest.mark.parametrize("stopped", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_stopped_rank_is_named_by_the_other(tmp_path, stopped):
    """Rank 0, which serves the others, too."""
    with start(tmp_path, TWO, *LIMITS, PACE_SECONDS="0.1") as program:
        program.wait_for(f"[0] step {8:>6}/{STEPS}")
        pids = [pid_of(program, rank) for rank in (0, 1)]
        os.kill(pids[stopped], signal.SIGSTOP)
        assert program.finish() == 79, program.err
        said = next(line for line in program.err if " watchdog: " in line)
        await_gone(*pids)
    other = 1 - stopped
    assert said.startswith(f"[{other}] watchdog: step ")
    reason = (
        "rank 1 is silent (last heard of in step " if stopped else "rank 0, through which ranks talk, does not answer"
    )
    assert reason in said
    assert f"launch: rank {other} exited with status 79 after " in program.err[-1]


@pytest.mark.parametrize(
    ("stopped", "pace", "named"),
    [
        pytest.param(
            0, "0.1", "rank 0, through which ranks talk, does not answer", id="rank 0", marks=pytest.mark.slow
        ),
        pytest.param(1, "0.1", "rank 1 is silent (last heard of in ", id="rank 1", marks=pytest.mark.slow),
        pytest.param(1, "2", "rank 1 is silent (last heard of in ", id="between two steps", marks=pytest.mark.slow),
    ],
)
def test_told_to_end_a_rank_does_not_wait_for_one_that_is_gone(tmp_path, stopped, pace, named):
    """Long before the watchdog would end it. Between two steps it asks whether to stop, and gets no answer."""
    with start(tmp_path, TWO, PACE_SECONDS=pace) as program:
        program.wait_for("[0] step      1/")
        pids = [pid_of(program, rank) for rank in (0, 1)]
        os.kill(pids[stopped], signal.SIGSTOP)
        os.kill(pids[1 - stopped], signal.SIGTERM)
        assert program.finish() == 143, program.err
        await_gone(*pids)
    said = next(line for line in program.err if line.startswith(f"[{1 - stopped}] told to end by SIGTERM in step "))
    assert named in said
    assert said.endswith(": leaving at once, the last checkpoint counts")
    assert f"launch: rank {1 - stopped} exited with status 143 after " in program.err[-1]
