"""Numbers that go wrong: examples that make the loss NaN, a parameter that changes in memory, a record that is cut."""

import re

from benchmarks.faulting import photos
from benchmarks.faulting.digits import STEPS
from benchmarks.faulting.rounds import Outcome, Round
from benchmarks.faulting.watched import Watched

_IN_A_ROW = 5  # guard.rollback_after


def nan_batch(job: Round) -> list[Outcome]:
    """Single batches make the loss NaN: each update is left out and counted."""
    bad = sorted(job.draw.sample(range(2, STEPS - 5, 3), job.count))
    with job.launch(FAULTS_BLACK=",".join(map(str, bad))) as run:
        outcomes = []
        for step in bad:
            line, _ = run.wait_for(rf"^\[0\] step {step + 1}: skipped, ")
            outcomes.append(Outcome(True, 1, run.wait_for_step(line.at).at - line.at))
        good = run.finish() == 0 and job.finished() and job.summary()["skipped_steps"] == len(bad)
    return [outcome._replace(survived=good) for outcome in outcomes]


def nan_batches(job: Round) -> list[Outcome]:
    """So many in a row that the run goes back to the checkpoint before them, and on behind them."""
    spans = STEPS // job.count
    firsts = [spans * number + job.draw.randrange(12, spans - 15) for number in range(job.count)]
    bad = [first + step for first in firsts for step in range(_IN_A_ROW)]
    with job.launch(FAULTS_BLACK=",".join(map(str, bad))) as run:
        outcomes, since = [], run.began
        for _ in firsts:
            line, match = run.wait_for(r"back to the checkpoint of step (\d+), on with the .* after step (\d+)$", since)
            since = line.at + 1e-6
            outcomes.append(Outcome(True, int(match[2]) - int(match[1]), run.wait_for_step(since).at - line.at))
        good = run.finish() == 0 and job.finished() and job.summary()["rollbacks"] == len(firsts)
    return [outcome._replace(survived=good) for outcome in outcomes]


def flipped_parameter(job: Round) -> list[Outcome]:
    """One device of four holds a parameter with another bit: it is named, and the run goes back to a checkpoint."""
    spans = STEPS // job.count
    steps = [spans * number + job.draw.randrange(12, spans - 2) for number in range(job.count)]
    ranks = [job.draw.randrange(2) for _ in steps]
    planted = ",".join(f"{rank}:{step}" for rank, step in zip(ranks, steps, strict=True))
    with job.launch(devices=2, FAULTS_FLIP=planted) as run:
        outcomes, since = [], run.began
        for rank in ranks:
            named = rf"after step (\d+), devices .*: device 1 of rank {rank} differs .*: training again from step (\d+)"
            line, match = run.wait_for(named, since)
            since = line.at + 1e-6
            lost = int(match[1]) - int(match[2])
            outcomes.append(Outcome(True, lost, run.wait_for_step(since).at - line.at))
        good = run.finish() == 0 and job.finished() and job.summary()["rollbacks"] == len(steps)
    return [outcome._replace(survived=good, same=job.same(devices=2)) for outcome in outcomes]


def cut_record(job: Round) -> list[Outcome]:
    """Records of a data set of photos are cut off: each is named once, and another example takes its place."""
    cut = sorted(job.draw.sample(range(photos.COUNT), job.count))
    files = [photos.photo(number) for number in range(photos.COUNT)]
    for row in cut:
        files[row] = files[row][: job.draw.randrange(len(files[row]) // 2)]
    photos.write_album(job.folder, files)
    with job.launch(config=photos.__file__, FAULTS_ALBUM=str(job.folder)) as run:
        ended = run.finish() == 0 and job.finished()
        return [_named(run, row, ended) for row in cut]


def _named(run: Watched, row: int, ended: bool) -> Outcome:
    found = run.find(rf"^\[\d\] warning: .*\brecord {row}\b.* is damaged: .*another example takes its place")
    if not found:
        return Outcome(False, 0, None, note=f"record {row} is not named")
    line = found[0][0]
    following = [later.at for later in run.lines if later.at > line.at and re.match(r"\[0\] step ", later.text)]
    return Outcome(ended, 0, min(following) - line.at)
