"""Processes that are killed, stopped, told to end, or come twice."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.faulting.digits import PACE_SECONDS
from benchmarks.faulting.rounds import SHORT_LIMITS, Outcome, Round, train_command
from benchmarks.faulting.story import failures
from benchmarks.faulting.watched import PATIENCE_SECONDS, Unmet, Watched

_START_SECONDS = 2.0  # about what a start takes on a quiet machine: a later kill might find that the run has ended
MOST_STEPS = 20  # that an attempt does before a fault, at most; a round of five then ends before the run does
_SILENT = {0: "rank 0, through which ranks talk, does not answer", 1: "rank 1 is silent"}


def killed(job: Round) -> list[Outcome]:
    """A random rank at a random time: one time in five while it starts, else after one to twenty steps."""

    def moment(run: Watched, begun: float) -> None:
        if job.draw.random() < 0.2:
            time.sleep(job.draw.uniform(0, _START_SECONDS))
        else:
            run.wait_for_step(begun, job.draw.randint(1, MOST_STEPS))
            time.sleep(job.draw.uniform(0, PACE_SECONDS))

    return killed_at(job, moment)


def killed_in_a_save(job: Round) -> list[Outcome]:
    """A random rank within the second save of an attempt, at a moment drawn from the length of the first."""
    checkpoints = job.workdir / "checkpoints"
    inside: list[bool] = []
    published: list[int] = []

    def moment(run: Watched, begun: float) -> None:
        run.wait_for_step(begun)
        length = min(saving_seconds(checkpoints, run), 1.0)
        saving = next_save(checkpoints, run)
        time.sleep(job.draw.uniform(0, length))
        published.append(max(_steps(checkpoints)))
        inside.append(saving.exists())

    outcomes = killed_at(job, moment)
    whole = not (checkpoints / "damaged").exists()
    resumed = [failure.resumed for failure in failures(job.jobs[-1].lines)]
    return [
        outcome._replace(
            survived=outcome.survived and whole and (after is None or after >= before),
            note=outcome.note or ("" if within else "the save had ended"),
        )
        for outcome, within, before, after in zip(outcomes, inside, published, resumed, strict=True)
    ]


def killed_starting(job: Round) -> list[Outcome]:
    """A random rank while it starts: before it has met the other, while JAX joins them, while they compile."""
    return killed_at(job, lambda run, begun: time.sleep(job.draw.uniform(0, _START_SECONDS)))


def killed_at(job: Round, moment: Callable[[Watched, float], None]) -> list[Outcome]:
    """A random rank, at each `moment(run, begun)`: when that returns, in the attempt that has begun at that time."""
    with job.launch(restarts=job.count + 3) as run:
        expected = []
        for number in range(job.count):
            rank = job.draw.randrange(2)
            process, begun = run.rank(rank), time.monotonic()
            moment(run, begun)
            os.kill(process, signal.SIGKILL)
            run.wait_for(rf"^launch: rank .*, attempt {number + 2}$")
            expected.append((rank, "was killed by SIGKILL (9)", 0.0))
        return job.restarted(run, expected)


def stuck(job: Round) -> list[Outcome]:
    """A random rank is stopped (SIGSTOP), so that it lives and does nothing; the watchdog has to notice it."""
    with job.launch(*SHORT_LIMITS, restarts=job.count + 3) as run:
        expected = []
        for number in range(job.count):
            rank = job.draw.randrange(2)
            process = run.rank(rank)
            run.wait_for_step(time.monotonic(), job.draw.randint(10, MOST_STEPS))
            stopped = time.monotonic()
            os.kill(process, signal.SIGSTOP)
            line, _ = run.wait_for(rf"^\[{1 - rank}\] watchdog: .*{_SILENT[rank]}", stopped)
            expected.append((1 - rank, "exited with status 79", line.at - stopped))
            run.wait_for(rf"^launch: rank .*, attempt {number + 2}$")
        return job.restarted(run, expected)


def told_to_end(job: Round) -> list[Outcome]:
    """SIGTERM to a random rank: both save the same step and end well; the command, given again, goes on from there."""
    outcomes: list[Outcome] = []
    told, stopped_at = 0.0, 0
    for _ in range(job.count):
        with job.launch() as run:
            if told:
                outcomes.append(_went_on(run, told, stopped_at))
            run.wait_for_step(count=job.draw.randint(3, MOST_STEPS))
            told = time.monotonic()
            os.kill(run.rank(job.draw.randrange(2)), signal.SIGTERM)
            if run.finish() != 0:
                raise Unmet("it did not end well")
            stopped_at = int(run.wait_for(r"stopped by SIGTERM after step (\d+); run again")[1][1])
    with job.launch() as run:
        outcomes.append(_went_on(run, told, stopped_at))
        finished = run.finish() == 0 and job.finished()
    return [outcome._replace(survived=finished, same=job.same()) for outcome in outcomes]


def _went_on(run: Watched, told: float, stopped_at: int) -> Outcome:
    resumed = int(run.wait_for(r"^\[0\] continuing .* from step (\d+)$")[1][1])
    return Outcome(True, stopped_at - resumed, run.wait_for_step().at - told)


def second_run(job: Round) -> list[Outcome]:
    """Another run on the workdir of one that lives: refused in a line that names the process; the first goes on."""
    outcomes = []
    with job.launch(FAULTS_PACE="0.5") as run:
        for _ in range(job.count):
            run.wait_for_step()
            begun = time.monotonic()
            with job.start(train_command(job.workdir)) as second:
                status = second.finish()
                owner = f"^error: .* is in use by process {run.rank(0)} of user "
                refused = status == 2 and len(second.find(owner)) == 1
            outcomes.append(Outcome(refused, 0, run.wait_for_step(begun).at - begun))
        finished = run.finish() == 0 and job.finished()
    return [outcome._replace(survived=outcome.survived and finished, same=job.same()) for outcome in outcomes]


def saving_seconds(checkpoints: Path, run: Watched) -> float:
    """How long the next save takes."""
    saving, begun = next_save(checkpoints, run), time.monotonic()
    _await(lambda: [] if saving.exists() else [saving], run)
    return time.monotonic() - begun


def next_save(checkpoints: Path, run: Watched) -> Path:
    """Where the next save is made, once it has begun; what a killed one has left is not meant."""
    before = set(checkpoints.glob("*.saving"))
    return _await(lambda: sorted(set(checkpoints.glob("*.saving")) - before), run)[0]


def _steps(checkpoints: Path) -> set[int]:
    return {int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal()}


def _await(find: Callable[[], list[Path]], run: Watched) -> list[Path]:
    """What is found, once it is something."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not (found := find()):
        if time.monotonic() > until:
            raise Unmet(f"no save after {len(run.lines)} lines")
        time.sleep(0.001)
    return found
