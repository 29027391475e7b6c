"""The launcher itself: its keeper is killed, it is stopped or killed, and two are started at one instant."""

import os
import signal
import time
from contextlib import ExitStack

from benchmarks.faulting.digits import STEPS
from benchmarks.faulting.processes import MOST_STEPS, killed_at
from benchmarks.faulting.rounds import Outcome, Round
from benchmarks.faulting.watched import PATIENCE_SECONDS, Unmet, Watched, descendants, lives, words

_STOPPED_SECONDS = 3.0
_SLOWLY = "0.25"  # seconds a batch: of five tries, all that the ranks do meanwhile is less than the run
_GONE_SECONDS = 10.0  # what a launcher that was killed has left behind may take to end
_REFUSED = r"^\[\d\] error: .* is in use by process \d+ of user "


def keeper_killed(job: Round) -> list[Outcome]:
    """The keeper is killed, which the launcher says; then a random rank, and all start again as ever."""

    def moment(run: Watched, begun: float) -> None:
        run.wait_for_step(begun, job.draw.randint(1, MOST_STEPS))
        killed = time.monotonic()
        os.kill(_keeper(run), signal.SIGKILL)
        run.wait_for(r"^launch: the keeper, .* was killed by SIGKILL \(9\); started another$", killed)

    return killed_at(job, moment)


def launcher_stopped(job: Round) -> list[Outcome]:
    """It stands still for some seconds, as after Ctrl-Z: the ranks go on, and no line is lost."""
    outcomes = []
    with job.launch(FAULTS_PACE=_SLOWLY) as run:
        for _ in range(job.count):
            run.wait_for_step(time.monotonic(), job.draw.randint(1, MOST_STEPS // 2))
            os.kill(run.pid, signal.SIGSTOP)
            time.sleep(job.draw.uniform(0, _STOPPED_SECONDS))
            os.kill(run.pid, signal.SIGCONT)
            again = time.monotonic()
            outcomes.append(Outcome(True, 0, run.wait_for_step(again).at - again))
        finished = run.finish() == 0 and job.finished()
        whole = len(run.find(r"^\[0\] step +\d+/")) == STEPS
    return [outcome._replace(survived=finished and whole, same=job.same()) for outcome in outcomes]


def launcher_killed(job: Round) -> list[Outcome]:
    """Nothing of the job stays behind; the command, given again, goes on from the last checkpoint."""
    outcomes: list[Outcome] = []
    killed, done, gone = 0.0, 0, False
    for _ in range(job.count):
        with job.launch() as run:
            if killed:
                outcomes.append(_goes_on(run, killed, done, gone))
            run.wait_for_step(count=job.draw.randint(3, MOST_STEPS))
            everything = descendants(run.pid)
            os.kill(run.pid, signal.SIGKILL)
            killed = time.monotonic()
            run.finish()
            done = int(run.find(r"^\[0\] step +(\d+)/")[-1][1][1])
            gone = _end(everything)
    with job.launch() as run:
        outcomes.append(_goes_on(run, killed, done, gone))
        finished = run.finish() == 0 and job.finished()
    return [outcome._replace(survived=outcome.survived and finished, same=job.same()) for outcome in outcomes]


def _goes_on(run: Watched, killed: float, done: int, gone: bool) -> Outcome:
    """Of the command, given again; without a checkpoint yet it begins anew. The last lines of the first may be lost."""
    line, match = run.wait_for(r"^\[0\] step +(\d+)/")
    return Outcome(gone, max(0, done - int(match[1]) + 1), line.at - killed)


def two_starts(job: Round) -> list[Outcome]:
    """Two launchers at one instant in one workdir: one is refused; SIGTERM stops the other, and a third goes on."""
    outcomes = []
    for _ in range(job.count):
        with ExitStack() as during:
            begun = time.monotonic()
            twins = [during.enter_context(job.launch()) for _ in range(2)]
            trains, refused = twins if _that_trains(twins) is twins[0] else twins[::-1]
            seconds = trains.wait_for_step().at - begun
            right = refused.finish() == 2 and bool(refused.find(_REFUSED))
            trains.wait_for_step(count=job.draw.randint(3, MOST_STEPS))
            os.kill(trains.pid, signal.SIGTERM)
            outcomes.append(Outcome(right and trains.finish() == 0, 0, seconds))
    with job.launch() as run:
        finished = run.finish() == 0 and job.finished()
    return [outcome._replace(survived=outcome.survived and finished, same=job.same()) for outcome in outcomes]


def _that_trains(twins: list[Watched]) -> Watched:
    """The one that trains, once the other has ended; Unmet if neither does."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        for twin, other in (twins, twins[::-1]):
            if twin.has_ended():
                other.wait_for_step()
                return other
        time.sleep(0.02)
    raise Unmet("neither of two is refused")


def _keeper(run: Watched) -> int:
    found = [pid for pid in descendants(run.pid) if words(pid)[-1:] == ["keep"]]
    if len(found) != 1:
        raise Unmet(f"there are {len(found)} keepers")
    return found[0]


def _end(pids: list[int]) -> bool:
    """Whether all of them end in time."""
    until = time.monotonic() + _GONE_SECONDS
    while any(lives(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
