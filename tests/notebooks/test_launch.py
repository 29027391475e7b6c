"""`jaxnet.notebook.launch`: a function on several processes; whatever it does, none of them stays."""

import functools
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import jaxnet
from jaxnet.notebook import launch
from support.programs import Program, write_program

pytestmark = pytest.mark.processes


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(pid):
    """Whether a process is there that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where launches put their files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_two_processes_add_up_what_they_hold(temporary):
    numbers = np.arange(4.0)

    def rank(factor):
        import jax
        from jax.sharding import PartitionSpec as P

        mesh = jaxnet.comm.make_mesh()
        rows = np.arange(1.0, 5.0, dtype=np.float32)
        x = jax.make_array_from_callback((4,), jaxnet.comm.split_by_example(mesh), lambda index: rows[index])
        total = jax.shard_map(
            lambda own: jax.lax.psum(own, jaxnet.comm.AXES), mesh=mesh, in_specs=P(jaxnet.comm.AXES), out_specs=P()
        )
        print("here is", jax.process_index())
        return dict(mesh.shape), float(jax.jit(total)(x)[0]), factor * numbers

    launched = launch(functools.partial(rank, 2), processes=2, devices=2)
    for shape, total, doubled in launched.results:
        assert (shape, total) == ({"host": 2, "device": 2}, 10.0)
        np.testing.assert_array_equal(doubled, [0, 2, 4, 6])
    assert ["here is 0" in launched.logs[0], "here is 1" in launched.logs[1]] == [True, True]
    assert "logs" not in repr(launched)
    assert list(temporary.iterdir()) == []


def test_one_that_raises_ends_all(temporary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("marks")

    def rank():
        import subprocess

        import jax

        if jax.process_index() == 0:
            child = subprocess.Popen(["sleep", "1000"])
            (folder / "new").write_text(f"{os.getpid()} {child.pid}")
            (folder / "new").rename(folder / "pids")
            time.sleep(1000)
        wait_until((folder / "pids").exists)
        raise ValueError("no such\nnumber")

    with pytest.raises(jaxnet.InputError, match="process 1 of 2 exited with status 1: number") as caught:
        launch(rank)
    [note] = caught.value.__notes__
    assert note.startswith("The log of process 1 ends:\nTraceback")
    assert "in rank" in note
    pids = (folder / "pids").read_text().split()
    wait_until(lambda: not any(map(runs, pids)))
    assert list(temporary.iterdir()) == []


def test_one_that_hangs_is_ended_and_says_where(temporary):
    def hangs_here():
        time.sleep(1000)

    for seconds in (4, 20, 60):  # a busy machine may need longer to get there
        with pytest.raises(
            jaxnet.InputError, match=f"process 0 of 1 had not ended after seconds={seconds}; "
        ) as caught:
            launch(hangs_here, processes=1, seconds=seconds)
        if "hangs_here" in caught.value.__notes__[0]:
            break
    else:
        pytest.fail(str(caught.value.__notes__))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_the_notebook_ends_them(tmp_path, number):
    path = write_program(
        tmp_path,
        """
        import jaxnet

        def rank():
            import os, time
            os.close(os.open(f"pid-{os.getpid()}", os.O_CREAT))
            time.sleep(1000)

        jaxnet.notebook.launch(rank)
        """,
    )
    with Program(["env", f"--chdir={tmp_path}", sys.executable, path], TMPDIR=str(tmp_path)) as program:
        wait_until(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
        pids = [file.name.removeprefix("pid-") for file in tmp_path.glob("pid-*")]
        assert all(map(runs, pids))
        os.kill(program.pid, number)
        wait_until(lambda: not any(map(runs, [program.pid, *pids])))
    if number == signal.SIGINT:  # killed, it cannot clear away its files
        assert list(tmp_path.glob("jaxnet-*")) == []


def test_what_cannot_travel_is_refused():
    lock = threading.Lock()
    with pytest.raises(jaxnet.InputError, match=r"lambda.* cannot be sent to another process: TypeError: .*lock"):
        launch(lambda: lock)
    with pytest.raises(jaxnet.InputError, match=r"what the function returned cannot be sent back: TypeError: .*lock"):
        launch(threading.Lock, processes=1)
    with pytest.raises(jaxnet.InputError, match="process 0 ended before the function did"):
        launch(lambda: os._exit(0), processes=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3,), "wanted a function, got 3"),
        ((print, 0), "processes=0; wanted a whole number from 1 to 64"),
        ((print, 1, 1.5), "devices=1.5; wanted a whole number"),
        ((print, 1, 1, 0), "seconds=0; wanted more than 0"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(jaxnet.InputError, match=words):
        launch(*arguments)
