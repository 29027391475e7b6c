"""The `jaxnet` command: mistakes are one line and status 2; it starts without JAX."""

import gc
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version

import pytest

from jaxnet.cli.main import main
from jaxnet.errors import InputError, exit_cleanly
from support.programs import clean_environment


def status_of(arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


@pytest.mark.parametrize("arguments", [["--help"], ["launch", "--help"], ["launch", "local", "--help"]])
def test_help_has_examples(arguments, capsys):
    assert status_of(arguments) == 0
    _, examples = capsys.readouterr().out.split("\nexamples:\n")
    assert "  jaxnet launch local --processes 2 -- jaxnet train --config configs/digits.py\n" in examples


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND (see jaxnet --help)"),
        (["lunch"], "jaxnet has no command 'lunch'; did you mean 'launch'? (see jaxnet --help)"),
        (["zzz"], "jaxnet has no command 'zzz'; there is new, train, launch"),
        (["launch"], "the following arguments are required: KIND (see jaxnet launch --help)"),
        (["launch", "locl"], "jaxnet launch has no command 'locl'; did you mean 'local'?"),
        (["launch", "local", "--", "x"], "required: --processes (see jaxnet launch local --help)"),
        (
            ["launch", "local", "--processes", "0", "--", "x"],
            "--processes: '0' must be a whole number of at least 1",
        ),
        (["launch", "local", "--processes", "two", "--", "x"], "--processes: 'two' must be a whole number"),
        (["launch", "local", "--processes"], "--processes: expected one argument"),
        (
            ["launch", "local", "--processes", "2", "--devices-per-process", "-1", "--", "x"],
            "--devices-per-process",
        ),
        (
            ["launch", "local", "--processes", "2", "--min-processes", "1", "--", "sh"],
            "--min-processes 1: give --max-restarts too; without it nothing starts again",
        ),
        (
            ["launch", "local", "--processes", "2", "--min-processes", "3", "--max-restarts", "1", "--", "sh"],
            "--min-processes 3: there are 2 processes; wanted at most that many",
        ),
        (["launch", "local", "--processes", "2"], "no command to launch; give it after --"),
        (["launch", "local", "--processes", "2", "--", "no.py"], "no such file: no.py"),
        (["launch", "local", "--processes", "2", "--", "no-such"], "no such program: no-such"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys):
    assert status_of(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_it_says_its_version(capsys):
    assert status_of(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxnet {version('jaxnet')}\n"


def test_a_copy_that_is_not_installed_has_no_version(capsys, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert status_of(["--version"]) == 2
    assert capsys.readouterr().err.startswith("error: jaxnet is not installed, so it has no version: install it")


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_it_starts_without_jax(argument):
    code = f"""
import sys
try:
    from jaxnet.cli.main import main
    main([{argument!r}])
finally:
    assert "jax" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m_jaxnet():
    done = subprocess.run(
        [sys.executable, "-m", "jaxnet", "lunch"], env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: jaxnet has no command 'lunch'")


@pytest.fixture
def interruptible():
    """After a Ctrl-C the next one ends the process; not this one."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


def failing_with(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "status", "printed"),
    [
        (lambda: 0, 0, ""),
        (lambda: 7, 7, ""),
        (failing_with(InputError("no such key")), 2, "error: no such key\n"),
        (failing_with(KeyboardInterrupt()), 130, ""),
    ],
)
def test_exit_cleanly(main, status, printed, capsys, interruptible):
    with pytest.raises(SystemExit) as caught:
        exit_cleanly(main)
    assert caught.value.code == status
    assert capsys.readouterr().err == printed


def test_ctrl_c_of_which_a_library_makes_an_error_of_its_own(capsys, interruptible):
    """As C does in the import of an extension."""

    def main():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("the extension cannot be initialized") from None
        return 0

    with pytest.raises(SystemExit) as caught:
        exit_cleanly(main)
    assert caught.value.code == 130
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL  # a Ctrl-C while Python ends would be a traceback


def test_ctrl_c_while_jax_collects_garbage_is_not_lost(interruptible):
    """Python drops what such a callback raises."""
    told = []

    def callback(*_):
        if not told:
            told.append(True)
            signal.raise_signal(signal.SIGINT)

    def main():
        gc.collect()
        time.sleep(5)
        return 0

    gc.callbacks.append(callback)
    try:
        with pytest.raises(SystemExit) as caught:
            exit_cleanly(main)
    finally:
        gc.callbacks.remove(callback)
    assert caught.value.code == 130


def test_ctrl_c_while_python_collects_garbage_is_not_lost(interruptible):
    """Python drops what a finalizer raises, whatever it has called."""

    class Late:
        def __del__(self):
            self.interrupt()

        def interrupt(self):
            signal.raise_signal(signal.SIGINT)

    def main():
        late = Late()
        del late
        time.sleep(5)
        return 0

    with pytest.raises(SystemExit) as caught:
        exit_cleanly(main)
    assert caught.value.code == 130


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_started_without_streams_no_file_takes_their_place(closed):
    code = """
import os, sys
from jaxnet.errors import exit_cleanly

def main():
    print("to nobody")
    print("to nobody", file=sys.stderr)
    own = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
    return 7 if own == [0, 1, 2] and os.open(os.devnull, os.O_RDONLY) > 2 else 5

exit_cleanly(main)
"""
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-c", code]
    assert subprocess.run(command, env=clean_environment(), capture_output=True, check=False).returncode == 7


@pytest.mark.parametrize(
    ("crash", "number", "said"),
    [("signal.raise_signal(signal.SIGSEGV)", signal.SIGSEGV, True), ("os.abort()", signal.SIGABRT, False)],
)
def test_a_crash_shows_where_python_was(crash, number, said):
    """Who aborts has a message of its own."""
    code = f"""
import os, signal
from jaxnet.errors import exit_cleanly

def in_native_code():
    {crash}

exit_cleanly(in_native_code)
"""
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == -number
    assert ("Fatal Python error: Segmentation fault" in done.stderr) == ("in in_native_code" in done.stderr) == said


def test_exit_cleanly_leaves_as_told_and_lets_bugs_through():
    left = []
    exit_cleanly(lambda: 3, left.append)
    assert left == [3]
    with pytest.raises(ZeroDivisionError):
        exit_cleanly(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("opened", "said"),
    [
        (lambda: os.open("/dev/full", os.O_WRONLY), b"error: the output cannot be written: No space left on device\n"),
        (lambda: _unread(), b""),
    ],
    ids=["a full disk", "nobody"],
)
def test_output_that_is_not_taken_is_no_traceback(opened, said):
    command = [sys.executable, "-m", "jaxnet", "launch", "slurm", "--nodes", "1", "--dry-run", "--", "train.py"]
    with os.fdopen(opened(), "wb") as out:
        done = subprocess.run(command, env=clean_environment(), stdout=out, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, said)


def test_a_pipe_that_breaks_elsewhere_is_no_output_without_a_reader(monkeypatch, capfd):
    monkeypatch.setattr("jaxnet.cli.main.run", lambda argv: os.write(_unread(), b"x"))
    with pytest.raises(BrokenPipeError):
        main([])


def _unread():
    reading, writing = os.pipe()
    os.close(reading)
    return writing
