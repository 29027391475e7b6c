"""`python -m benchmarks.faults`: its table, what it keeps, what it reads, and one fault for real."""

import json
import re
import threading

import pytest

from benchmarks import faults
from benchmarks.faulting import kept, processes, storage
from benchmarks.faulting.kept import Tried
from benchmarks.faulting.rounds import Fault, Outcome
from benchmarks.faulting.story import Failure, failures
from benchmarks.faulting.watched import Line, Unmet
from jaxnet.cluster.progress import Progress
from jaxnet.operations.restarts import LaunchAttempt, report
from jaxnet.operations.supervise import ChildResult, Ended

pytestmark = pytest.mark.processes

TRIED = Tried("kill", 0, 0, True, 4, 12.0, True, "", 9.0, 2.0, 1.5)


def test_a_row_has_medians_and_the_most_of_what_is_known():
    tries = [TRIED, TRIED._replace(lost=9, seconds=None), TRIED._replace(lost=5, seconds=20.0, survived=False)]
    other = TRIED._replace(fault="nan", same=None, seconds=None)
    lines = kept.table([*tries, other], {"stop": "not tried", "kill": "killed", "nan": "NaN"}).splitlines()
    assert lines[2:] == ["| killed | 3 | 2 | 5 (9) | 16.0 (20.0) | all |", "| NaN | 1 | 1 | 4 (4) | — | — |"]
    assert kept.table([TRIED, TRIED._replace(same=False)], {"kill": "killed"}).endswith("| 1 of 2 |")
    words = kept.where_time_goes(tries)
    assert words.startswith(
        "of 16.0 s to the next step: start-up 9.0, compilation 2.0 (medians); load of the machine 1.5"
    )


def test_a_try_that_was_made_is_not_made_again(tmp_path, monkeypatch, capsys):
    made = []

    def plant(job):
        made.append((job.first, job.count, job.draw.random()))
        if job.first == 4:
            raise Unmet("the machine went away")
        return [Outcome(True, 1, 2.0)] * job.count

    monkeypatch.setattr(faults, "FAULTS", (Fault("kill", "killed", 5, plant, at_once=2),))
    assert faults.main(["--tries", "3", "--out", str(tmp_path)]) == 0
    path = tmp_path / "tries.jsonl"
    path.write_text(path.read_text()[:-20])  # the last line was not written to its end
    assert faults.main(["--out", str(tmp_path), "--json"]) == 1
    assert [(first, count) for first, count, _ in made] == [(0, 2), (2, 1), (2, 2), (4, 1)]
    assert made[1][2] == made[2][2], "the draws follow from the number of the first try"
    printed = capsys.readouterr()
    shown = [json.loads(line) for line in printed.out.splitlines() if line.startswith("{")]
    assert [each["number"] for each in shown] == [0, 1, 2, 3, 4]
    assert shown[-1]["note"] == "the machine went away"
    assert (tmp_path / "failed-kill-4.txt").exists()
    assert not list(tmp_path.glob("kill-*")), "folders of rounds are removed"


def test_what_a_launcher_reports_is_read():
    """Its own words, so that a change of them shows here."""

    def attempt(index, code, at, progress):
        return LaunchAttempt(ChildResult(Ended(index, code, 9.0), 1, at, "", False), 9.0, progress)

    attempts = [
        attempt(1, -9, 100.0, Progress(1, 90.0, 17)),
        attempt(0, -9, 110.0, None),
        attempt(0, 79, 130.0, Progress(11, 125.0, 25)),
        LaunchAttempt(ChildResult(None, 0, 160.0, "", False), 20.0, Progress(21, 150.0, 60)),
    ]
    said = [
        *("[0] step     17/60", "launch: rank 1 was killed; all start again in 1 s, attempt 2"),
        *("launch: rank 0 was killed; all start again in 1 s, attempt 3", "[0] continuing x from step 10"),
        *("[0] step     25/60", "launch: rank 0 exited; all start again in 1 s, attempt 4"),
        *("[0] continuing x from step 20", *(f"launch: {line}" for line in report(attempts))),
    ]
    assert failures([Line(float(at), text) for at, text in enumerate(said)]) == [
        Failure(1, "was killed by SIGKILL (9)", 17, None, None),
        Failure(0, "was killed by SIGKILL (9)", None, 10, 15.0),
        Failure(0, "exited with status 79", 25, 20, 20.0),
    ]


def test_what_a_killed_save_has_left_is_not_taken_for_the_next(tmp_path):
    (tmp_path / "000030-a-1.saving").mkdir()
    later = threading.Timer(0.1, (tmp_path / "000040-b-1.saving").mkdir)
    later.start()
    assert processes.next_save(tmp_path, run=None).name == "000040-b-1.saving"
    later.join()


def test_a_try_that_fails_is_counted_as_such(tmp_path):
    def plant(job):
        job.start(["sh", "-c", "echo hello; sleep 0.2"]).finish()
        return [Outcome(True, 0, 1.0, same=False)]

    (tried,) = faults.run_round(Fault("kill", "killed", 1, plant), [7], 0, tmp_path)
    assert (tried.number, tried.same, tried.start_up) == (7, False, None)
    assert re.search(r"\d hello$", (tmp_path / "failed-kill-7.txt").read_text(), re.MULTILINE)


@pytest.mark.slow
def test_a_fault_for_real(tmp_path):
    fault = next(fault for fault in faults.FAULTS if fault.name == "nan")
    tries = faults.run_round(fault, [0, 1], 0, tmp_path)
    assert [(each.survived, each.lost, each.same) for each in tries] == [(True, 1, None)] * 2, tries
    assert all(each.seconds > 0 for each in tries)
    assert not list(tmp_path.iterdir())


def test_kinds_of_files_are_told_by_their_names(tmp_path):
    names = ["manifest.json", f"state/d/{'a' * 32}", f"state/d/{'b' * 32}", "state/ocdbt.process_0/manifest.ocdbt"]
    for name in (*names, "state/ocdbt.process_1/manifest.ocdbt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [path.relative_to(tmp_path).as_posix() for path in storage.kinds_of_files(tmp_path)]
    assert found == [names[0], names[1], names[3]]
