"""When a job starts again, and when it does not."""

import signal
from dataclasses import replace

import pytest

from jaxnet.cluster.progress import PROGRESS, Progress, furthest, noted, read_progress, sign_of_life, stopped_status
from jaxnet.errors import InputError
from jaxnet.operations.restarts import LaunchAttempt, RestartLoop, RestartPolicy, report
from jaxnet.operations.supervise import ChildResult, Ended, ending

KILL = -signal.SIGKILL


def attempt(returncode=KILL, first=None, last_line="", signalled=False):
    progress = None if first is None else Progress(first, 0.0, first + 10)
    return LaunchAttempt(ChildResult(Ended(1, returncode, 5.0), 1, 5.0, last_line, signalled), 5.0, progress)


def test_the_wait_doubles_up_to_a_minute_and_the_budget_ends():
    restarts = RestartPolicy(9)
    waits = [restarts.after(attempt()).wait for _ in range(9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert restarts.after(attempt()) == (None, "9 restarts without progress are used up (--max-restarts)", True)


def test_a_checkpoint_between_two_failures_refills_the_budget():
    restarts = RestartPolicy(2)
    assert [restarts.after(attempt(first=step)).wait for step in (1, 21, 21, 41)] == [1, 1, 2, 1]


def test_steps_done_anew_are_no_progress():
    restarts = RestartPolicy(2)
    decisions = [restarts.after(attempt(1, first=21)) for _ in range(3)]
    assert [decision.wait for decision in decisions] == [1, 2, None]


@pytest.mark.parametrize("status", [1, 2])
def test_the_same_failure_twice_before_the_first_step_is_a_mistake(status):
    restarts = RestartPolicy(9)
    assert restarts.after(attempt(status, last_line="error: port 123 is in use")).wait == 1
    assert "failed twice in the same way" in restarts.after(attempt(status, last_line="error: port 456 is in use")).why


def test_other_failures_before_the_first_step_are_tried_again():
    restarts = RestartPolicy(9)
    lines = ["error: no file a", "error: no file b", "error: no file a"]
    assert [restarts.after(attempt(1, last_line=line)).wait for line in lines] == [1, 2, 4]
    assert [restarts.after(attempt(KILL)).wait for _ in range(3)] == [8, 16, 32]


def test_what_the_user_has_to_mend_is_not_trained_towards_again_and_again():
    restarts = RestartPolicy(9)
    assert restarts.after(attempt(2, first=1, last_line="error: stopped at step 30")).wait == 1
    assert "failed twice" in restarts.after(attempt(2, first=21, last_line="error: stopped at step 30")).why


def test_nothing_starts_again_that_was_told_to_end():
    assert RestartPolicy(9).after(attempt(signalled=True)) == (None, "it was told to end", False)


def test_one_less_only_where_the_same_rank_failed_every_time():
    other = attempt()
    other = other._replace(result=replace(other.result, failure=Ended(0, KILL, 5.0)))
    restarts = RestartPolicy(1)
    assert [restarts.after(each).fewer for each in (other, attempt())] == [False, False]


def test_the_report_counts_seconds_to_the_next_step_across_an_attempt_that_made_none():
    done = LaunchAttempt(ChildResult(None, 0, 30.0, "", False), 9.0, Progress(11, 22.0, 60))
    first, second, last = report([attempt(first=1), attempt(1, last_line="error: x"), done])
    assert first.endswith("at step 11; the next step came 17.0 s later")
    assert (
        second == "attempt 2: rank 1 exited with status 1 after 5.0 s, before its first step (error: x); "
        "the next step came 17.0 s later"
    )
    assert last == "attempt 3: ended well after 9.0 s, at step 60"


def test_progress_is_read_as_it_was_written(tmp_path):
    assert read_progress(tmp_path / "0") is None
    note = noted({PROGRESS: str(tmp_path / "0")})
    for step in (21, 22, 123):
        note(step)
    found = read_progress(tmp_path / "0")
    assert (found.first, found.step) == (21, 123)
    assert furthest([found, None, Progress(21, found.began + 1, 122)]) == (21, found.began + 1, 123)
    assert furthest([None, None]) is None


def test_no_launcher_no_file(tmp_path):
    noted({})(1)
    assert not list(tmp_path.iterdir())


def test_a_sign_of_life_that_cannot_be_given_is_none(tmp_path):
    sign_of_life({})()
    sign_of_life({"JAXNET_ALIVE_FILE": str(tmp_path / "no/such/folder")})()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["-1", "256", "x", "1e2", "٣"])
def test_a_status_that_no_process_can_have(text):
    with pytest.raises(InputError, match=r"JAXNET_STOPPED_STATUS is .*; it must be a whole number from 0 to 255"):
        stopped_status({"JAXNET_STOPPED_STATUS": text})


def test_a_signal_while_an_attempt_is_being_started_ends_it(tmp_path, monkeypatch):
    """It comes after the loop has looked, and before what watches the processes takes signals."""
    loop = RestartLoop(_Alone(), tmp_path, 1.0, 3)

    def run(ranks, grace_seconds, beside):
        loop._signals.put(signal.SIGTERM)
        stopped = []
        with beside(lambda: stopped.append(True)):
            pass
        return ChildResult(None, 0, 1.0, "", False, stopped=bool(stopped))

    monkeypatch.setattr("jaxnet.operations.restarts.run_together", run)
    assert loop.run() == 0
    assert [each.result.stopped for each in loop._attempts] == [True]


class _Alone:
    def gather(self, attempt):
        return []

    def await_more(self, over):
        return ""


def test_any_signal_has_a_word():
    assert ending(-9) == "was killed by SIGKILL (9)"
    assert ending(-37) == "was killed by a real-time signal (37)"
