"""Processes that are killed at certain moments, and a run that goes on with other devices."""

import os
import signal
import time

from benchmarks.faulting.digits import STEPS
from benchmarks.faulting.processes import next_save, saving_seconds
from benchmarks.faulting.rounds import Outcome, Round
from benchmarks.faulting.watched import PATIENCE_SECONDS, Unmet

_KILLED = "was killed by SIGKILL (9)"
_EVALUATION_SECONDS = 0.4  # about; the five batches of test examples take longer
_ON_ANY = ("batch_size=48", f"epochs={STEPS * 48 / 1437}")  # what eight devices can share, and three


def killed_in_evaluation(job: Round) -> list[Outcome]:
    """A random rank while the test examples are evaluated, twice an epoch."""
    mark, expected = job.folder / "evaluating", []
    with job.launch("eval_every_epochs=0.5", restarts=job.count + 3, FAULTS_MARK=str(mark)) as run:
        for number in range(job.count):
            rank = job.draw.randrange(2)
            process, since = run.rank(rank), time.monotonic()
            run.wait_for_step(since)
            mark.unlink(missing_ok=True)
            until = time.monotonic() + PATIENCE_SECONDS
            while not mark.exists():
                if time.monotonic() > until:
                    raise Unmet("there is no evaluation")
                time.sleep(0.001)
            time.sleep(job.draw.uniform(0, _EVALUATION_SECONDS))
            os.kill(process, signal.SIGKILL)
            expected.append((rank, _KILLED, 0.0))
            run.wait_for(rf"^launch: rank .*, attempt {number + 2}$")
        return job.restarted(run, expected)


def killed_in_the_last_save(job: Round) -> list[Outcome]:
    """A random rank while the state of the last step is written."""
    checkpoints = job.workdir / "checkpoints"
    with job.launch(restarts=3) as run:
        rank = job.draw.randrange(2)
        process = run.rank(rank)
        run.wait_for_step()
        length = min(saving_seconds(checkpoints, run), 0.5)
        run.wait_for(rf"^\[0\] step +{STEPS - 1}/")
        saving = next_save(checkpoints, run)
        time.sleep(job.draw.uniform(0, length))
        within = saving.exists()
        os.kill(process, signal.SIGKILL)
        run.wait_for(r"^launch: rank .*, attempt 2$")
        [outcome] = job.restarted(run, [(rank, _KILLED, 0.0)])
        return [outcome._replace(note=outcome.note or ("" if within else "the save had ended"))]


def on_other_devices(job: Round) -> list[Outcome]:
    """Told to end within an epoch on 8 devices of 2 processes, it goes on with 3 devices of one, and back again."""
    outcomes: list[Outcome] = []
    told, stopped_at = 0.0, 0
    for number in range(job.count + 1):
        processes, devices = (1, 3) if number % 2 else (2, 4)
        with job.launch(*_ON_ANY, processes=processes, devices=devices) as run:
            if number:
                resumed = int(run.wait_for(r"^\[0\] continuing .* from step (\d+)$")[1][1])
                outcomes.append(Outcome(True, stopped_at - resumed, run.wait_for_step().at - told))
            if number == job.count:
                finished = run.finish() == 0 and job.finished()
                continue
            run.wait_for_step(count=job.draw.randint(3, 20))
            told = time.monotonic()
            os.kill(run.rank(0), signal.SIGTERM)
            if run.finish() != 0:
                raise Unmet("it did not end well")
            stopped_at = int(run.wait_for(r"stopped by SIGTERM after step (\d+); run again")[1][1])
    close = job.near(4, *_ON_ANY)
    return [outcome._replace(survived=finished, note=close) for outcome in outcomes]
