"""One run at a time: a living owner is named, a dead one is replaced, and a replaced one is stopped."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxnet.checkpoints.lock import Heartbeat, Lock, Lost, Owner, started
from jaxnet.errors import InputError
from support.odd_files import ODD, deep


@pytest.fixture
def process():
    with subprocess.Popen(["sleep", "600"]) as other:
        yield other
        other.kill()


def locks(directory):
    return sorted(path.name for path in (directory / "lock").iterdir())


def left_by(directory, number=1, **changes):
    """The lock that another process left."""
    (directory / "lock").mkdir(exist_ok=True)
    owner = Owner.this(locked=True)._replace(**changes)
    path = directory / f"lock/{number:06d}.json"
    path.write_text(json.dumps(owner._asdict()) + "\n")
    return path


def quiet(line):
    raise AssertionError(line)


def test_a_second_run_is_refused_and_the_owner_named(tmp_path):
    held = Lock(tmp_path, say=quiet)
    me = Owner.this(locked=True)
    for _ in range(2):
        with pytest.raises(InputError, match=rf"is in use by process {me.pid} of user {me.user} on host {me.host} si"):
            Lock(tmp_path, say=quiet)
    held.require()
    held.release()
    Lock(tmp_path, say=quiet).release()
    assert locks(tmp_path) == ["000002.free"]


def test_a_copy_of_the_directory_is_free_while_its_owner_goes_on(tmp_path):
    first, copy, said = tmp_path / "first", tmp_path / "copy", []
    first.mkdir()
    held = Lock(first, say=quiet)
    shutil.copytree(first, copy)
    Lock(copy, say=said.append)
    assert [line.partition(" since ")[0] for line in said] == [
        f"{copy} was copied from that of {str(Owner.this(locked=True)).partition(' since ')[0]}"
    ]
    for directory in (first, copy):
        with pytest.raises(InputError, match="is in use by"):
            Lock(directory, say=quiet)
    held.require()


def test_a_file_of_another_number_that_is_locked_is_in_use(tmp_path):
    """As where a file system numbers its files anew."""
    path = left_by(tmp_path)
    left_by(tmp_path, file=path.stat().st_ino + 1)
    with held(path), pytest.raises(InputError, match="is in use by"):
        Lock(tmp_path, say=quiet)


def test_a_dead_process_of_this_machine_is_no_obstacle(tmp_path, process):
    left_by(tmp_path, pid=process.pid, started=started(process.pid))
    with pytest.raises(InputError, match=f"in use by process {process.pid}"):
        Lock(tmp_path, say=quiet)
    process.kill()
    process.wait()
    said = []
    lock = Lock(tmp_path, say=said.append)
    assert len(said) == 1
    assert f"was left by process {process.pid}" in said[0]
    lock.release()


def test_a_later_process_with_the_same_number_is_not_the_owner(tmp_path, process):
    left_by(tmp_path, pid=process.pid, started="1")
    Lock(tmp_path, say=lambda line: None).release()


ELSEWHERE = {"host": "far", "machine": "other", "boot": "other", "pid": 7, "user": "ann"}


def test_another_host_is_judged_by_its_sign_of_life(tmp_path):
    path = left_by(tmp_path, **ELSEWHERE)
    os.utime(path, (0, 0))
    said = []
    Lock(tmp_path, say=said.append).release()
    [line] = said
    assert line.startswith(f"{tmp_path} was left by process 7 of user ann on host far since ")
    assert line.endswith(", which has ended; taking over")


def test_another_host_that_beats_is_refused(tmp_path):
    path = left_by(tmp_path, **ELSEWHERE)
    said = []
    with (
        Heartbeat(0.05, lambda: os.utime(path)),
        pytest.raises(InputError, match="in use by process 7 of user ann on host far"),
    ):
        Lock(tmp_path, patience=60.0, say=said.append)
    assert ["waiting for a sign of life" in line for line in said] == [True]


@pytest.mark.parametrize("ahead", [0, 3600])
def test_another_host_that_falls_silent_is_waited_for_and_replaced(tmp_path, ahead):
    """Not longer because its clock went ahead, or this one was set back."""
    path = left_by(tmp_path, **ELSEWHERE)
    os.utime(path, 2 * (time.time() + ahead,))
    said = []
    Lock(tmp_path, patience=0.3, say=said.append).release()
    assert [line.rpartition("; ")[2] for line in said] == ["waiting for a sign of life", "taking over"]


HOLD = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(path):
    """Another process holds the file's lock of the operating system."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        yield
        other.stdin.close()


def test_a_file_that_the_system_says_is_locked_is_in_use_however_old(tmp_path):
    path = left_by(tmp_path, **{**ELSEWHERE, "boot": Owner.this(locked=True).boot})
    os.utime(path, (0, 0))
    with held(path), pytest.raises(InputError, match="in use by process 7"):
        Lock(tmp_path, say=quiet)
    Lock(tmp_path, say=lambda line: None).release()


def test_a_file_server_that_keeps_the_lock_of_a_dead_host_is_not_believed(tmp_path):
    path = left_by(tmp_path, **ELSEWHERE)
    said = []
    with held(path):
        with (
            Heartbeat(0.05, lambda: os.utime(path)),
            pytest.raises(InputError, match="in use by process 7 of user ann on host far"),
        ):
            Lock(tmp_path, patience=60.0, say=lambda line: None)
        Lock(tmp_path, patience=0.3, say=said.append).release()
    assert [line.rpartition("; ")[2] for line in said] == ["waiting for a sign of life", "taking over"]


def test_a_killed_container_of_this_machine_is_replaced_at_once(tmp_path):
    left_by(tmp_path, **{**ELSEWHERE, "boot": Owner.this(locked=True).boot})
    said = []
    Lock(tmp_path, patience=600, say=said.append).release()
    assert [line.rpartition("; ")[2] for line in said] == ["taking over"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_lock_that_is_not_whole_is_judged_by_its_time(tmp_path, content):
    path = left_by(tmp_path)
    path.write_text(content)
    os.utime(path, (0, 0))
    Lock(tmp_path, say=lambda line: None).release()


@pytest.mark.parametrize("make", [*ODD, deep])
def test_a_lock_that_is_no_file_is_judged_by_its_time(tmp_path, make):
    (tmp_path / "lock").mkdir()
    path = tmp_path / "lock/000001.json"
    make(path)
    os.utime(path, (0, 0), follow_symlinks=False)
    Lock(tmp_path, patience=0.05, say=lambda line: None).release()
    assert (tmp_path / "lock/000002.free").is_file()


@pytest.mark.parametrize("changed", [{"pid": "../../etc"}, {"pid": True}, {"boot": None}, {"locked": 1}, {"more": 1}])
def test_an_owner_of_other_types_is_none(tmp_path, changed):
    path = left_by(tmp_path)
    path.write_text(json.dumps({**Owner.this(locked=True)._asdict(), **changed}))
    assert Owner.read(path) is None


def test_the_words_of_a_stranger_are_shown_as_text():
    owner = Owner.this(locked=True)._replace(pid=7, user="\x1b[31m", host="x" * 500, since="now")
    assert str(owner) == f"process 7 of user \\x1b[31m on host {'x' * 100}... (500 characters) since now"


def test_the_clock_of_the_file_system_is_no_way_to_another_file(tmp_path):
    """Its name was that of the host and the process once, and a link there was followed."""
    (tmp_path / "victim").write_text("precious")
    left_by(tmp_path, **ELSEWHERE)
    (tmp_path / f"lock/.clock-{os.uname().nodename}-{os.getpid()}").symlink_to(tmp_path / "victim")
    Lock(tmp_path, patience=0.1, say=lambda line: None).release()
    assert (tmp_path / "victim").read_text() == "precious"


def test_of_many_at_once_one_gets_it(tmp_path):
    path = left_by(tmp_path, **ELSEWHERE)
    os.utime(path, (0, 0))
    together = threading.Barrier(8)

    def attempt(_):
        together.wait()
        try:
            return Lock(tmp_path, say=lambda line: None)
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(attempt, range(8)))
    [lock] = [one for one in got if isinstance(one, Lock)]
    assert all("is in use by" in one for one in got if one is not lock)
    lock.require()
    lock.release()


def test_who_was_replaced_is_stopped_and_changes_nothing(tmp_path):
    lock = Lock(tmp_path, say=quiet)
    left_by(tmp_path, number=2, **ELSEWHERE)
    with pytest.raises(Lost, match="taken over by process 7 of user ann on host far"):
        lock.require()
    lock.beat()
    lock.release()
    assert "000002.json" in locks(tmp_path)
    with (
        Heartbeat(0.05, lambda: os.utime(tmp_path / "lock/000002.json")),
        pytest.raises(InputError, match="in use by process 7"),
    ):
        Lock(tmp_path, say=lambda line: None)


def test_a_lock_removed_by_hand_is_lost_and_a_directory_that_vanished_is_an_error_of_the_disk(tmp_path):
    lock = Lock(tmp_path, say=quiet)
    (tmp_path / "lock/000001.json").unlink()
    with pytest.raises(Lost, match="was removed"):
        lock.require()
    (tmp_path / "lock").rmdir()
    with pytest.raises(FileNotFoundError):
        lock.require()
    lock.release()


def test_a_directory_that_cannot_be_locked_is_told(tmp_path):
    (tmp_path / "lock").write_text("")
    with pytest.raises(InputError, match="cannot be locked against a second run: File exists"):
        Lock(tmp_path)


def test_the_heart_goes_on_after_a_failure_of_the_disk():
    beats, enough = [], threading.Event()

    def beat():
        beats.append(1)
        if len(beats) == 3:
            enough.set()
        raise OSError(5, "Input/output error")

    with Heartbeat(0.01, beat):
        assert enough.wait(30)


def test_a_process_that_the_system_hides_is_not_taken_for_dead(monkeypatch):
    def refuse(pid, number):
        raise PermissionError(1, "Operation not permitted")

    owner = Owner.this(locked=True)._replace(pid=2**22 + 1)  # more than there can be
    assert owner.runs() is False
    monkeypatch.setattr(os, "kill", refuse)
    assert owner.runs() is None
    assert Owner.this(locked=True).runs() is True
