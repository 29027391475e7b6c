"""Every second of a run is of one kind, and a kill at any instant loses few of them."""

import json
import threading
import time

import pytest

from jaxnet.cli.main import run
from jaxnet.errors import InputError
from jaxnet.report.goodput import Attempt, goodput, goodput_line, read_ledger
from jaxnet.training import ledger as module
from jaxnet.training.ledger import Ledger, process_start
from jaxnet.training.observer import Dispatched
from support.dark_digits import config_of
from support.odd_files import DEEP, ODD
from support.runs import train


class Clock:
    """Both clocks that the ledger reads, set by hand."""

    now = 1000.0

    def time(self):
        return self.now

    perf_counter = time


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def dispatched(step, waited=0.0):
    return Dispatched(step, None, {}, waited, 0.0)


def trained(ledger, clock, first, steps, *, seconds=2.0):
    ledger.began(first)
    with ledger.during("step"):
        for step in range(first, first + steps):
            clock.now += seconds
            ledger.after_step(dispatched(step + 1))


def test_time_is_of_the_innermost_kind_and_none_is_lost(clock):
    ledger = Ledger(start=990.0)
    clock.now += 1
    with ledger.during("compile"):
        clock.now += 2
    trained(ledger, clock, 0, 5)
    with ledger.during("step"):
        ledger.after_step(dispatched(5, waited=0.5))
        with ledger.during("evaluation"):
            clock.now += 4
    ledger.enter("other")
    clock.now += 8
    expected = {"start-up": 11.0, "compile": 2.0, "step": 9.5, "data wait": 0.5, "evaluation": 4.0, "other": 8.0}
    assert ledger.seconds() == expected
    assert sum(expected.values()) == clock.now - 990


def test_steps_done_again_in_one_attempt_are_lost_work(clock):
    ledger = Ledger()
    trained(ledger, clock, 10, 10)
    ledger.on_rewind(15)
    assert ledger.seconds() == pytest.approx({"start-up": 0, "step": 10, "data wait": 0, "lost work": 10})


def test_a_step_does_not_wait_for_a_slow_disk(tmp_path):
    ledger, asked, goes_on = Ledger(), threading.Event(), threading.Event()

    def fence():
        if threading.current_thread() is beating:
            asked.set()
            assert goes_on.wait(60)

    beating = threading.Thread(target=ledger.beat)
    ledger.open(tmp_path / "ledger.jsonl", fence=fence)
    beating.start()
    assert asked.wait(60)
    ledger.began(0)
    ledger.after_step(dispatched(1))
    assert beating.is_alive()
    goes_on.set()
    beating.join()
    ledger.close()
    assert [attempt.step for attempt in read_ledger(tmp_path / "ledger.jsonl")][-1:] == [1]


def test_what_killed_attempts_did_is_counted_once(clock, tmp_path):
    path = tmp_path / "ledger.jsonl"
    for first, steps in ((0, 10), (6, 10), (4, 20)):
        ledger = Ledger()
        clock.now += 1
        ledger.open(path)
        trained(ledger, clock, first, steps)
        ledger.beat()
        clock.now += 30  # killed a moment after the beat; another starts
    assert ledger.close().rows[0].attempt.attempt == 1
    found = goodput(read_ledger(path))
    assert [row.attempt.attempt for row in found.rows] == [1, 2, 3]
    assert [row.seconds["step"] for row in found.rows] == [8.0, 0.0, 40.0]
    assert [row.seconds["lost work"] for row in found.rows] == [12.0, 20.0, 0.0]
    assert [row.seconds["restart"] for row in found.rows] == [0.0, 30.0, 30.0]
    assert found.lost_steps == 6 + 10
    assert found.useful_seconds == 48.0
    assert found.wall_seconds == sum(sum(row.seconds.values()) for row in found.rows)
    assert goodput_line(found).startswith(
        "goodput 27.7%: 48.0 s of useful steps in 173.0 s since the first start; 3 at"
    )


def test_half_lines_and_strangers_lines_are_passed_over(clock, tmp_path, capsys, caplog):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger()
    ledger.open(path)
    trained(ledger, clock, 0, 4)
    ledger.beat()
    with path.open("a") as file:
        file.write('[]\n{"attempt": "x"}\n{"attempt": 1, "host"')
    second = Ledger()
    second.open(path)
    assert "half a line" in caplog.text
    assert [attempt.attempt for attempt in read_ledger(path)] == [1, 2]
    assert run(["report", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "0-4" in text
    assert text.splitlines()[-1] == goodput_line(goodput(read_ledger(path)))
    assert run(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["useful_seconds"] == 8.0


GOOD = {
    **{"attempt": 2, "host": "h", "pid": 1, "start": 0.0, "time": 5.0, "first": 0, "step": 4},
    **{"seconds": {"step": 2.0}, "ended": False, "ranks": [{"rank": 0, "step": 0.1, "host": 0.1, "device": None}]},
}


@pytest.mark.parametrize(
    "changed",
    [
        *({"attempt": "2"}, {"host": 3}, {"start": "now"}, {"time": None}, {"step": 10**400}, {"first": []}),
        *({"seconds": []}, {"seconds": {"step": "long"}}, {"ranks": [3]}, {"ranks": [{"rank": 0}]}, {"more": 1}),
    ],
)
def test_a_line_of_other_types_is_left_out_and_named(tmp_path, changed, caplog):
    path = tmp_path / "ledger.jsonl"
    lines = [json.dumps({**GOOD, "attempt": 1}), json.dumps({**GOOD, **changed}), DEEP]
    path.write_text("\n".join(lines) + "\n")
    assert [attempt.attempt for attempt in read_ledger(path)] == [1]
    assert f"{path} is damaged in line 2: it" in caplog.text
    assert "; and 1 more; what stands there is left out" in caplog.text
    assert run(["report", str(tmp_path)]) == 0


def test_half_a_line_that_is_being_written_is_no_damage(tmp_path, caplog):
    (tmp_path / "ledger.jsonl").write_text(json.dumps(GOOD) + '\n{"attempt"')
    assert [attempt.attempt for attempt in read_ledger(tmp_path / "ledger.jsonl")] == [2]
    assert caplog.records == []


def test_a_report_shows_the_name_of_a_host_as_text(tmp_path, capsys):
    (tmp_path / "ledger.jsonl").write_text(json.dumps({**GOOD, "host": "\x1b[31mh"}) + "\n")
    assert run(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "\\x1b[31mh, last sign of life" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize("make", ODD)
def test_a_ledger_that_is_no_file_is_named(tmp_path, make):
    make(tmp_path / "ledger.jsonl")
    with pytest.raises(InputError, match=r"ledger\.jsonl cannot be read: .+; wanted the workdir of a run"):
        run(["report", str(tmp_path)])


def test_an_attempt_that_never_trained_loses_nothing():
    attempts = [
        Attempt(
            number, "h", 1, start=start, time=start + 5, first=first, step=0, seconds={"start-up": 5.0}, ended=False
        )
        for number, start, first in ((1, 0.0, None), (2, 7.0, 0))
    ]
    found = goodput(attempts)
    assert (found.lost_steps, found.useful_seconds, found.fraction) == (0, 0.0, 0.0)


def test_what_was_refused_is_no_attempt(clock, tmp_path):
    path = tmp_path / "ledger.jsonl"
    for trains in (False, True, False, True):
        ledger = Ledger()
        ledger.open(path)
        clock.now += 1
        if trains:
            trained(ledger, clock, 0, 4)
        found = ledger.close()
        assert (found is None) is (len(path.read_text().splitlines()) == 2)
        clock.now += 1000
    assert [row.attempt.attempt for row in found.rows] == [2, 4]
    assert found.rows[1].seconds["restart"] == 2001
    assert found.wall_seconds == sum(sum(row.seconds.values()) for row in found.rows)


def test_a_mistake_before_training_costs_no_goodput(tmp_path):
    with pytest.raises(InputError, match=r"initial_weights=.*: there is no such file"):
        train(config_of(steps=4, initial_weights="none.safetensors"), tmp_path, quiet=True)
    assert train(config_of(steps=4), tmp_path, quiet=True)["finished"]
    [row] = goodput(read_ledger(tmp_path / "ledger.jsonl")).rows
    assert row.attempt.step == 4


def test_what_is_no_workdir_is_told(tmp_path):
    with pytest.raises(InputError, match=r"ledger\.jsonl cannot be read: No such file or directory; wanted the workd"):
        run(["report", str(tmp_path)])
    (tmp_path / "ledger.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no attempt"):
        run(["report", str(tmp_path)])


def test_the_start_of_the_process_lies_before_now():
    assert 0 <= time.time() - process_start() < 24 * 3600
