"""What a run writes is whole, appended to on a resume, and refused in one line where it cannot be written."""

import errno
import json
import math
import os
import shutil
import struct
import threading
import time

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from jaxnet.checkpoints import manifest
from jaxnet.checkpoints.lock import Lost
from jaxnet.errors import InputError
from jaxnet.report.run_files import read_metrics
from jaxnet.training import records
from jaxnet.training.loop import Loop
from jaxnet.training.records import MetricsWriter, read_settings, write_whole
from jaxnet.training.results import compare
from jaxnet.training.stopping import StopSignal
from jaxnet.training.summary import kept_summary, last_screen
from support.dark_digits import SIZE, config_of
from support.disks import files_no_longer_than
from support.odd_files import DEEP, ODD, deep, pipe
from support.runs import train
from support.training_runs import metrics


def test_write_whole_replaces_the_file_and_leaves_nothing_else(tmp_path):
    for text in ("first", "second"):
        write_whole(tmp_path / "summary.json", text)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("summary.json", "second")]


def test_write_whole_leaves_the_old_file_when_it_fails(tmp_path):
    write_whole(tmp_path / "summary.json", "old")
    with files_no_longer_than(2), pytest.raises(InputError, match=r"summary\.json cannot be written: File too large"):
        write_whole(tmp_path / "summary.json", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("summary.json", "old")]


def test_records_are_appended_to(tmp_path):
    for step in (1, 2):
        records = MetricsWriter(tmp_path, tensorboard=False)
        records.on_metrics(step, "train", {"loss": 0.5})
        records.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": s, "split": "train", "loss": 0.5} for s in (1, 2)]


def test_what_is_not_finite_is_null(tmp_path):
    """JSON has no word for it, and readers other than Python's refuse the line."""
    records = MetricsWriter(tmp_path, tensorboard=False)
    records.on_metrics(1, "train", {"loss": math.nan, "members": {"loss": [math.inf, 2.0]}, "count": 3})
    records.close()
    line = (tmp_path / "metrics.jsonl").read_text()
    wanted = {"step": 1, "split": "train", "loss": None, "members": {"loss": [None, 2.0]}, "count": 3}
    assert json.loads(line, parse_constant=pytest.fail) == wanted


def test_a_summary_of_an_earlier_attempt_is_not_that_of_the_run(tmp_path):
    path = tmp_path / "summary.json"
    assert kept_summary(path, 20, finished=True) is None
    for content in ("{", "[]", "{}"):
        path.write_text(content)
        assert kept_summary(path, 20, finished=True) is None
    for steps, finished, kept in ((20, True, True), (20, False, False), (10, False, False), (10, True, False)):
        path.write_text(json.dumps({"steps": steps, "finished": finished}))
        assert (kept_summary(path, 20, finished=True) is not None) is kept
    path.write_text(json.dumps({"steps": 10, "finished": False}))
    assert kept_summary(path, 10, finished=False) is not None


def test_a_run_that_was_killed_before_its_summary_gets_one(tmp_path):
    """All its steps are done, and what lies there is of an attempt that a signal stopped."""
    whole = train(config_of(steps=20), tmp_path, quiet=True)
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"steps": 7, "finished": False}))
    again = train(config_of(steps=20), tmp_path, quiet=True)
    assert (again["steps"], again["finished"], again["loss"]) == (20, True, whole["loss"])
    assert json.loads(path.read_text()) == again


def test_an_evaluation_that_a_stop_left_out_is_made_up_for(tmp_path, monkeypatch):
    """The stop falls on the step of the second evaluation; whoever continues has the records of an unbroken run."""
    config = config_of(steps=20, eval_every_epochs=5 * SIZE / 1437)
    unbroken = train(config, tmp_path / "unbroken", quiet=True)
    asked = []
    monkeypatch.setattr(StopSignal, "should_stop", lambda self, step: asked.append(step) or step == 10)
    stopped = train(config, tmp_path / "run", quiet=True)
    monkeypatch.undo()
    assert (stopped["steps"], asked[-1]) == (10, 10)
    assert stopped["evaluated_step"] == 5
    assert "after step 5\n" in last_screen(stopped, "run")
    continued = train(config, tmp_path / "run", quiet=True)
    assert continued["evaluated_step"] == 20
    assert "after step" not in last_screen(continued, "run")
    wanted, tested = (metrics(tmp_path / name, "test") for name in ("unbroken", "run"))
    assert tested == wanted
    assert list(tested) == [5, 10, 15, 20]
    assert tested[20]["loss"] == unbroken["loss"]


def test_a_config_that_trains_nothing_is_not_written_down(tmp_path, capsys):
    """The weights that lie there are of the one before."""
    train(config_of(steps=20), tmp_path, quiet=True)
    before = (tmp_path / "config.json").read_text()
    train(config_of(steps=10, seed=3), tmp_path, allow_config_change=True)
    assert (tmp_path / "config.json").read_text() == before
    assert "nothing to train: this config ends at step 10" in "".join(capsys.readouterr())


def test_a_damaged_config_is_written_anew_after_the_last_step_too(tmp_path):
    train(config_of(steps=5), tmp_path, quiet=True)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="--allow-config-change writes it anew"):
        train(config_of(steps=5), tmp_path, quiet=True)
    train(config_of(steps=5), tmp_path, quiet=True, allow_config_change=True)
    train(config_of(steps=5), tmp_path, quiet=True)


def test_a_line_is_on_the_disk_at_once(tmp_path):
    records = MetricsWriter(tmp_path, tensorboard=False)
    records.on_metrics(1, "train", {"loss": 0.5})
    assert (tmp_path / "metrics.jsonl").read_text().endswith("0.5}\n")
    records.close()


def test_tensorboard_files_are_written(tmp_path):
    records = MetricsWriter(tmp_path, tensorboard=True)
    records.on_metrics(1, "train", {"loss": 0.5})
    records.close()
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard"])
def test_what_stands_in_the_way_is_named(name, tmp_path):
    (tmp_path / name).symlink_to("/nowhere/at/all")
    with pytest.raises(InputError, match=rf"{name} cannot be written: .*; mend that, or use another --workdir"):
        MetricsWriter(tmp_path, tensorboard=True)


def test_a_full_disk_is_told_once_and_nothing_fails(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    records = MetricsWriter(tmp_path, tensorboard=False)
    for step in (1, 2):
        records.on_metrics(step, "train", {"loss": 0.5})
    records.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/metrics.jsonl cannot be written: No space left on device; training goes on without, until it can"
    ]


def events_of(content):
    """The events of a file of TFRecords, whose checksums must be right."""
    events = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        header, body, seal = content[:8], content[12 : 12 + length], content[12 + length : 16 + length]
        assert struct.unpack("<II", content[8:12] + seal) == (masked_crc32c(header), masked_crc32c(body))
        events.append(Event.FromString(body))
        content = content[16 + length :]
    return events


def test_no_half_line_is_left_and_the_file_is_written_again(tmp_path, caplog):
    records = MetricsWriter(tmp_path, tensorboard=True)
    records.on_metrics(1, "train", {"loss": 0.5})
    with files_no_longer_than(60):
        for step in (2, 3):
            records.on_metrics(step, "train", {"loss": 0.5})
    records.on_metrics(4, "train", {"loss": 0.25})
    records.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 4]
    [board] = (tmp_path / "tensorboard").iterdir()
    events = events_of(board.read_bytes())
    assert events[0].file_version == "brain.Event:2"
    assert [(event.step, *event.summary.value) for event in events[1:]] == [
        (step, Summary.Value(tag="train/loss", simple_value=loss)) for step, loss in ((1, 0.5), (4, 0.25))
    ]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert said[2] == f"{tmp_path}/metrics.jsonl is written again; 2 records are missing in it"


@pytest.mark.parametrize("half", ['{"step": 2, "spl', "x" * 100])
def test_a_half_line_of_a_killed_run_is_cut_off(tmp_path, half, caplog):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + half)
    records = MetricsWriter(tmp_path, tensorboard=False)
    records.on_metrics(3, "train", {"loss": 0.5})
    records.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 3]
    assert "ended in half a line, which was cut off" in caplog.text


@pytest.mark.parametrize("length", [3, records.TAIL - 1, records.TAIL, 2 * records.TAIL + 5])
@pytest.mark.parametrize("whole", ['{"step": 1}\n', ""])
def test_half_a_line_of_any_length_is_cut_off(tmp_path, length, whole):
    (tmp_path / "log").write_text(whole + "x" * length)
    records.cut_half_line(tmp_path / "log", say=lambda line: None)
    assert (tmp_path / "log").read_text() == whole


def test_half_a_line_that_the_disk_keeps_is_cut_off_before_the_next(tmp_path, monkeypatch):
    """A disk that takes nothing may not even shorten a file."""
    log = MetricsWriter(tmp_path, tensorboard=False)
    with files_no_longer_than(10), monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        for step in (1, 2):
            log.on_metrics(step, "train", {"loss": 0.5})
        assert (tmp_path / "metrics.jsonl").stat().st_size == 10
    log.on_metrics(3, "train", {"loss": 0.5})
    log.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [3]


def test_a_pipe_is_not_written_until_it_is_full(tmp_path):
    pipe(tmp_path / "metrics.jsonl")
    with pytest.raises(InputError, match=r"metrics\.jsonl cannot be written: it is a pipe, wanted a file"):
        MetricsWriter(tmp_path, tensorboard=False)


@pytest.mark.parametrize(
    "line", ["[]", "{", "3", '{"step": 1}', '{"step": "1", "split": "train"}', '{"step": 1, "split": []}', DEEP]
)
def test_a_line_that_is_no_metrics_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 1}\n' + line + "\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl is no run's metrics: line 2: ."):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, make) for name in ("metrics.jsonl", "summary.json") for make in ODD),
        *(("summary.json", make) for make in (deep, lambda path: path.write_text('{"strategy": 3}'))),
    ],
)
def test_a_file_of_results_that_is_none_is_named(tmp_path, name, make):
    (tmp_path / "summary.json").write_text('{"strategy": "xla", "steps": 3}')
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises(InputError, match=rf"{name} cannot be read: .+; wanted the workdir of a run"):
        compare({"a": tmp_path})
    assert kept_summary(tmp_path / "summary.json", 3, finished=True) is None


def test_a_directory_that_vanishes_and_comes_back(tmp_path, caplog):
    workdir = tmp_path / "run"
    workdir.mkdir()
    records = MetricsWriter(workdir, tensorboard=False)
    shutil.rmtree(workdir)
    records.on_metrics(1, "train", {"loss": 0.5})
    workdir.mkdir()
    records.on_metrics(2, "train", {"loss": 0.5})
    records.close()
    assert json.loads((workdir / "metrics.jsonl").read_text())["step"] == 2
    assert [
        text
        for record in caplog.records
        for text in ("No such file or directory", "is written again")
        if text in record.getMessage()
    ] == ["No such file or directory", "is written again"]


def test_a_run_that_may_write_no_more_writes_nothing(tmp_path):
    def fence():
        raise InputError("taken over")

    records = MetricsWriter(tmp_path, tensorboard=False, fence=fence)
    with pytest.raises(InputError, match="taken over"):
        records.on_metrics(1, "train", {"loss": 0.5})
    records.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_settings_are_read_as_written(tmp_path):
    write_whole(tmp_path / "config.json", '{"epochs": 1}\n')
    assert read_settings(tmp_path / "config.json") == {"epochs": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", DEEP.encode()])
def test_damaged_settings_are_refused(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json is damaged: .*; --allow-config-change writes it anew"):
        read_settings(tmp_path / "config.json")


@pytest.mark.parametrize("make", ODD)
def test_settings_that_are_no_file_are_refused(make, tmp_path):
    make(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"config\.json cannot be read: .*; move it away, or use another --workdir"):
        read_settings(tmp_path / "config.json")


def test_a_run_whose_directory_vanishes_ends_with_one_error(tmp_path, monkeypatch):
    one = Loop._one

    def vanishing(self, state, batches, step):
        if step == 3:
            (tmp_path / "run").rename(tmp_path / "gone")
        return one(self, state, batches, step)

    monkeypatch.setattr(Loop, "_one", vanishing)
    with pytest.raises(InputError, match=r"summary\.json cannot be written: No such file or directory"):
        train(config_of(5), tmp_path / "run", quiet=True)


def test_what_is_being_saved_when_an_exception_leaves_is_finished_first(tmp_path, monkeypatch):
    one, write, failed = Loop._one, manifest.write, threading.Event()

    def failing(self, state, batches, step):
        if step == 12:
            failed.set()
            raise RuntimeError("a bug")
        return one(self, state, batches, step)

    def slow(*given):
        failed.wait()
        time.sleep(0.3)  # the slow disk that it stands for
        write(*given)

    monkeypatch.setattr(Loop, "_one", failing)
    monkeypatch.setattr(manifest, "write", slow)
    with pytest.raises(RuntimeError, match="a bug"):
        train(config_of(30), tmp_path / "run", quiet=True)
    assert manifest.check(tmp_path / "run/checkpoints/000010").about["step"] == 10


def test_a_save_that_fails_then_does_not_hide_the_exception(tmp_path, monkeypatch):
    one = Loop._one

    def failing(self, state, batches, step):
        if step == 12:
            raise RuntimeError("a bug")
        return one(self, state, batches, step)

    def refused(*given):
        raise Lost("another run has taken over")

    monkeypatch.setattr(Loop, "_one", failing)
    monkeypatch.setattr(manifest, "write", refused)
    with pytest.raises(RuntimeError, match="a bug"):
        train(config_of(30), tmp_path / "run", quiet=True)
