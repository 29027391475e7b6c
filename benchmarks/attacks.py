"""Attacks on a run and on the commands by signals, disks, clocks, formats and surroundings, and what each one does.

    python -m benchmarks.attacks [--only WORD] [--package DIR] [--json]

Each attack is one small training of digits, or one command. It is withstood if nothing ends in a traceback, by a signal
that was not the attack or after a minute, and, where a run was attacked, if the same command then trains to its end.
With --package the code under attack is that of another checkout. Needs Linux; root for some (they say so).
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
CONFIG = str(ROOT / "benchmarks/faulting/digits.py")
_SHORT = ("epochs=1.3", "checkpoints.every_steps=5")  # about thirty steps of 40 ms
_LIMIT_SECONDS = 90.0
_FIRST_STEP = "step      "
_CLUSTER = ("JAX", "SLURM", "OMPI", "XLA", "TPU", "KUBERNETES", "FAULTS", "PYTHON")


class Ended(NamedTuple):
    """How a command ended: its status, negative for a signal, None if it had to be killed, and what it said."""

    status: int | None
    seconds: float
    out: str
    err: str


class Met(NamedTuple):
    """What came of an attack: whether it was withstood, and in a few words what happened."""

    good: bool
    what: str


@dataclass
class Bench:
    """What an attack may use: a folder of its own, and the commands."""

    folder: Path
    package: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLUSTER)}
        (self.folder / "home").mkdir()
        self.environment = kept | {
            "PYTHONPATH": str(self.package),
            "JAX_PLATFORMS": "cpu",
            "HOME": str(self.folder / "home"),
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def workdir(self) -> Path:
        """Of the run."""
        return self.folder / "run"

    def command(self, *words: str) -> list[str]:
        """A jaxnet command."""
        return [sys.executable, "-m", "jaxnet", *words]

    def train(self, *overrides: str, workdir: str | None = None) -> list[str]:
        """The command of the run."""
        return self.command(
            "train",
            "--config",
            CONFIG,
            "--workdir",
            str(self.workdir) if workdir is None else workdir,
            *_SHORT,
            *overrides,
        )

    def run(
        self,
        command: Sequence[str],
        during: Callable[[subprocess.Popen[str]], object] | None = None,
        *,
        at: str = "",
        prepare: Callable[[], object] | None = None,
        cwd: Path | None = None,
        limit: float = _LIMIT_SECONDS,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
        surroundings: Mapping[str, str] | None = None,
    ) -> Ended:
        """A command to its end; once it has printed a line that begins with `at`, `during` is done to it."""
        began, said = time.monotonic(), self.folder / f"said-{time.monotonic_ns()}"
        names = (said.with_suffix(".out"), said.with_suffix(".err"))
        with names[0].open("w") as out, names[1].open("w") as err:
            process = subprocess.Popen(
                command,
                cwd=cwd or self.folder,
                env=self.environment | dict(surroundings or {}),
                stdin=stdin,
                stdout=out if stdout is None else stdout,
                stderr=err,
                text=True,
                start_new_session=True,
                preexec_fn=prepare,
            )
            try:
                if during is not None and _await(process, names, at):
                    during(process)
                status: int | None = process.wait(max(1.0, limit - (time.monotonic() - began)))
            except subprocess.TimeoutExpired:
                status = None
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = [name.read_text(errors="replace") for name in names]
        return Ended(status, time.monotonic() - began, *texts)


def _await(process: subprocess.Popen[str], names: Sequence[Path], start: str) -> bool:
    while process.poll() is None:
        lines = [line for name in names for line in name.read_text(errors="replace").splitlines()]
        if not start or any(line.startswith(start) for line in lines):
            return True
        time.sleep(0.02)
    return False


# ---- Verdicts ---------------------------------------------------------------------------------------------------


def said(ended: Ended, wanted: Sequence[int | None]) -> Met:
    """Withstood if the status is one of those wanted, and there is no traceback."""
    lines = [line for line in ended.err.splitlines() if line.strip()] or ended.out.splitlines()[-1:] or ["nothing"]
    status = "no end" if ended.status is None else f"status {ended.status}"
    told = [line for line in lines if line.startswith(("error:", "warning:", "stopped"))] or lines
    good = ended.status in wanted and "Traceback (most" not in ended.err
    if "Traceback (most" in ended.err:
        status, told = f"{status}, a traceback", lines
    return Met(good, f"{status}, {ended.seconds:.0f} s: {told[-1].strip()[:160]}")


def continues(bench: Bench, met: Met, *overrides: str) -> Met:
    """The same, and the run then comes to its end."""
    again = bench.run(bench.train(*overrides))
    finished = again.status == 0 and _finished(bench.workdir)
    return Met(met.good and finished, f"{met.what}; then {'to its end' if finished else said(again, (0,)).what}")


def _finished(workdir: Path) -> bool:
    with suppress(OSError, ValueError):
        return bool(json.loads((workdir / "summary.json").read_text())["finished"])
    return False


# ---- Signals ----------------------------------------------------------------------------------------------------


def _signalled(
    *signals: int, at: str = _FIRST_STEP, apart: float = 0.0, wanted: Sequence[int]
) -> Callable[[Bench], Met]:
    def attack(bench: Bench) -> Met:
        def send(process: subprocess.Popen[str]) -> None:
            for number in signals:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)
                time.sleep(apart)

        return continues(bench, said(bench.run(bench.train(), send, at=at), wanted))

    return attack


def _after(seconds: float, number: int, wanted: Sequence[int]) -> Callable[[Bench], Met]:
    def attack(bench: Bench) -> Met:
        def send(process: subprocess.Popen[str]) -> None:
            time.sleep(seconds)
            os.kill(process.pid, number)

        return continues(bench, said(bench.run(bench.train(), send), wanted))

    return attack


def _paused(bench: Bench) -> Met:
    def pause(process: subprocess.Popen[str]) -> None:
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(8)
        os.kill(process.pid, signal.SIGCONT)

    short = ("watchdog.floor_seconds=3", "watchdog.factor=5")
    return said(bench.run(bench.train(*short), pause, at=_FIRST_STEP), (0,))


def _pipe_closed(bench: Bench) -> Met:
    reading, writing = os.pipe()

    def close(process: subprocess.Popen[str]) -> None:
        os.read(reading, 10)
        os.close(reading)

    def first(process: subprocess.Popen[str]) -> None:
        os.close(writing)
        close(process)

    return continues(bench, said(bench.run(bench.train(), first, stdout=writing), (0, 1, 141, -13)))


def _without(*descriptors: int) -> Callable[[Bench], Met]:
    def attack(bench: Bench) -> Met:
        def shut() -> None:
            for descriptor in descriptors:
                os.close(descriptor)

        return continues(bench, said(bench.run(bench.train(), prepare=shut), (0,)))

    return attack


def _limited(which: int, value: int, wanted: Sequence[int | None], *overrides: str) -> Callable[[Bench], Met]:
    def attack(bench: Bench) -> Met:
        def limit() -> None:
            resource.setrlimit(which, (value, value))

        return continues(bench, said(bench.run(bench.train(*overrides), prepare=limit), wanted))

    return attack


# ---- Disks ------------------------------------------------------------------------------------------------------


def _in_the_middle(act: Callable[[Bench], object], wanted: Sequence[int]) -> Callable[[Bench], Met]:
    def attack(bench: Bench) -> Met:
        ended = bench.run(bench.train(), lambda _: act(bench), at="step     10")
        return continues(bench, said(ended, wanted))

    return attack


def _instead(act: Callable[[Bench], object], wanted: Sequence[int]) -> Callable[[Bench], Met]:
    """Something stands where the workdir should be."""

    def attack(bench: Bench) -> Met:
        act(bench)
        return said(bench.run(bench.train()), wanted)

    return attack


def _before(act: Callable[[Bench], object], wanted: Sequence[int]) -> Callable[[Bench], Met]:
    """Something stands in the workdir before the run."""

    def prepare(bench: Bench) -> None:
        bench.workdir.mkdir()
        act(bench)

    return _instead(prepare, wanted)


def _after_a_run(act: Callable[[Bench], object], *more: str) -> Callable[[Bench], Met]:
    def attack(bench: Bench) -> Met:
        bench.run(bench.train(), lambda process: os.kill(process.pid, signal.SIGTERM), at="step     12")
        act(bench)
        return continues(bench, Met(True, "stopped after 12 steps"), *more)

    return attack


def _named(name: str, wanted: Sequence[int]) -> Callable[[Bench], Met]:
    return lambda bench: said(bench.run(bench.train(workdir=name)), wanted)


@contextmanager
def _mounted(place: Path, options: str) -> Iterator[None]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _few_inodes(bench: Bench) -> Met:
    with _mounted(bench.workdir, "nr_inodes=30"):
        return said(bench.run(bench.train()), (0, 2))


def _cwd_deleted(bench: Bench) -> Met:
    gone = bench.folder / "gone"
    gone.mkdir()
    return said(bench.run(bench.train(), cwd=gone, prepare=lambda: shutil.rmtree(gone)), (0, 2))


def _remove(directory: Path) -> None:
    """Also while a run writes there."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


def _metrics_directory(bench: Bench) -> None:
    path = bench.workdir / "metrics.jsonl"
    path.unlink()
    path.mkdir()


def _touch_all(bench: Bench, when: float) -> None:
    for path in [bench.workdir, *bench.workdir.rglob("*")]:
        os.utime(path, (when, when), follow_symlinks=False)


def _rewrite_ledger(bench: Bench) -> None:
    path = bench.workdir / "ledger.jsonl"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))


# ---- Clocks -----------------------------------------------------------------------------------------------------

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long offset(time_t now) {
  static time_t first = 0;
  if (!first) first = now;
  const char *after = getenv("SHIM_AFTER"), *by = getenv("SHIM_BY");
  return by && now - first >= (after ? atol(after) : 0) ? atol(by) : 0;
}
int clock_gettime(clockid_t id, struct timespec *to) {
  static int (*real)(clockid_t, struct timespec *) = 0;
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(id, to);
  if (id == CLOCK_REALTIME && status == 0) to->tv_sec += offset(to->tv_sec);
  return status;
}
time_t time(time_t *to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval *to, void *zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  to->tv_sec = now.tv_sec;
  to->tv_usec = now.tv_nsec / 1000;
  return 0;
}
"""


def _clock(by: int, after: int = 0, wanted: Sequence[int] = (0,)) -> Callable[[Bench], Met]:
    def attack(bench: Bench) -> Met:
        source, shim = bench.folder / "shim.c", bench.folder / "shim.so"
        source.write_text(_SHIM)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
        ended = bench.run(
            bench.train(), surroundings={"LD_PRELOAD": str(shim), "SHIM_BY": str(by), "SHIM_AFTER": str(after)}
        )
        met = said(ended, wanted)
        report = bench.run(bench.command("report", str(bench.workdir)))
        return Met(met.good and report.status == 0, f"{met.what}; {said(report, (0,)).what}")

    return attack


# ---- Formats ----------------------------------------------------------------------------------------------------


def _config_of(content: bytes, wanted: Sequence[int], name: str = "config.py") -> Callable[[Bench], Met]:
    def attack(bench: Bench) -> Met:
        path = bench.folder / name
        path.write_bytes(content)
        return said(bench.run(bench.command("train", "--config", str(path), "--workdir", str(bench.workdir))), wanted)

    return attack


def _override(text: str, wanted: Sequence[int]) -> Callable[[Bench], Met]:
    return lambda bench: said(bench.run(bench.train(text)), wanted)


def _text_config() -> bytes:
    return (ROOT / "benchmarks/faulting/digits.py").read_bytes().replace(b"STEPS = 120", b"STEPS = 4")


def _trained(bench: Bench) -> None:
    bench.run(bench.train())


def _predicted(name: str, make: Callable[[Path], object], wanted: Sequence[int]) -> Callable[[Bench], Met]:
    """Of a run, `jaxnet predict` of one odd picture."""

    def attack(bench: Bench) -> Met:
        _trained(bench)
        path = bench.folder / name
        make(path)
        return said(bench.run(bench.command("predict", str(bench.workdir), "--config", CONFIG, str(path))), wanted)

    return attack


def _image(mode: str, size: tuple[int, int], **how: object) -> Callable[[Path], object]:
    """Noise: the network under attack divides by the range of its pixels."""

    def make(path: Path) -> None:
        from PIL import Image

        picture = Image.new(mode, size)
        noise = np.random.default_rng(0).bytes(len(picture.tobytes()))
        Image.frombytes(mode, size, noise).save(path, **how)  # type: ignore[arg-type]

    return make


def _bomb(path: Path) -> None:
    """A PNG that says it is 60,000 by 60,000."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1000))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def _imported(content: Callable[[], bytes], suffix: str, wanted: Sequence[int]) -> Callable[[Bench], Met]:
    def attack(bench: Bench) -> Met:
        path = bench.folder / f"weights{suffix}"
        path.write_bytes(content())
        words = ["import", "--from", "safetensors" if suffix == ".safetensors" else "torchvision", str(path)]
        words += ["--model", "cifar10_quick", "--out", str(bench.folder / "out.safetensors")]
        return said(bench.run(bench.command(*words)), wanted)

    return attack


def _zip_bomb() -> bytes:
    import io
    import zipfile

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(200_000_000))
    return file.getvalue()


def _pickle_of(code: bytes) -> bytes:
    import io
    import zipfile

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", code)
    return file.getvalue()


# ---- Surroundings -----------------------------------------------------------------------------------------------


def _surrounded(wanted: Sequence[int], **environment: str) -> Callable[[Bench], Met]:
    return lambda bench: said(bench.run(bench.train(), surroundings=environment), wanted)


def _shadowed(name: str) -> Callable[[Bench], Met]:
    def attack(bench: Bench) -> Met:
        (bench.folder / f"{name}.py").write_text("raise SystemExit('taken for a module')\n")
        config = bench.folder / "config.py"
        config.write_bytes(_text_config())
        command = bench.command("train", "--config", str(config), "--workdir", str(bench.workdir))
        return said(bench.run([command[0], "-P", *command[1:]]), (0, 2))

    return attack


def _two_at_once(bench: Bench) -> Met:
    others: list[Ended] = []
    import threading

    thread = threading.Thread(target=lambda: others.append(bench.run(bench.train())))
    thread.start()
    mine = bench.run(bench.train())
    thread.join()
    statuses = sorted(str(ended.status) for ended in (mine, *others))
    tracebacks = sum("Traceback" in ended.err for ended in (mine, *others))
    return continues(bench, Met(statuses == ["0", "2"] and not tracebacks, f"statuses {' and '.join(statuses)}"))


class Attack(NamedTuple):
    """What is done, by kind and in words."""

    kind: str
    title: str
    do: Callable[[Bench], Met]


_YEAR = 365 * 86400
_TERM, _INT, _HUP, _QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT
ATTACKS = (
    Attack("signals", "SIGTERM 0.3 s after the start, in imports", _after(0.3, _TERM, (143, -15))),
    Attack("signals", "SIGINT 0.3 s after the start, in imports", _after(0.3, _INT, (130, -2))),
    Attack("signals", "SIGTERM 1.5 s after the start", _after(1.5, _TERM, (0, 143, -15))),
    Attack("signals", "SIGTERM while the step is compiled", _signalled(_TERM, at="writes to", wanted=(0, 143, -15))),
    Attack("signals", "SIGTERM twice within 10 ms", _signalled(_TERM, _TERM, apart=0.01, wanted=(0,))),
    Attack("signals", "SIGINT three times, 0.1 s apart", _signalled(_INT, _INT, _INT, apart=0.1, wanted=(130, -2))),
    Attack("signals", "SIGTERM and SIGINT together", _signalled(_TERM, _INT, wanted=(0, 130))),
    Attack("signals", "SIGHUP: the terminal is closed", _signalled(_HUP, wanted=(0, 129, -1))),
    Attack("signals", "SIGUSR1 and SIGUSR2", _signalled(signal.SIGUSR1, signal.SIGUSR2, wanted=(0, -10, -12))),
    Attack("signals", "SIGQUIT", _signalled(_QUIT, wanted=(0, -3))),
    Attack(
        "signals",
        "SIGWINCH and SIGCHLD a hundred times",
        _signalled(*[signal.SIGWINCH, signal.SIGCHLD] * 50, wanted=(0,)),
    ),
    Attack("signals", "SIGSTOP for 8 s under a watchdog of 3 s, alone", _paused),
    Attack("signals", "stdout is closed by its reader", _pipe_closed),
    Attack("signals", "started without stdin", _without(0)),
    Attack("signals", "started without stdout", _without(1)),
    Attack("signals", "started without stdout and stderr", _without(1, 2)),
    Attack("signals", "files of 100 kB at most (SIGXFSZ)", _limited(resource.RLIMIT_FSIZE, 100_000, (0, 1, 2))),
    Attack("signals", "files of 0 bytes", _limited(resource.RLIMIT_FSIZE, 0, (1, 2))),
    Attack("signals", "24 open files at most", _limited(resource.RLIMIT_NOFILE, 24, (0, 1, 2))),
    Attack("signals", "40 open files at most", _limited(resource.RLIMIT_NOFILE, 40, (0, 1, 2))),
    Attack("signals", "no core dumps, stack of 1 MiB", _limited(resource.RLIMIT_STACK, 1 << 20, (0,))),
    Attack("disks", "workdir is deleted in the middle", _in_the_middle(lambda b: _remove(b.workdir), (0, 1, 2))),
    Attack(
        "disks",
        "checkpoints are deleted in the middle",
        _in_the_middle(lambda b: _remove(b.workdir / "checkpoints"), (0, 1, 2)),
    ),
    Attack(
        "disks",
        "metrics.jsonl is deleted in the middle",
        _in_the_middle(lambda b: (b.workdir / "metrics.jsonl").unlink(), (0,)),
    ),
    Attack(
        "disks",
        "metrics.jsonl becomes a directory in the middle",
        lambda b: said(b.run(b.train(), lambda _: _metrics_directory(b), at="step     10"), (0, 2)),
    ),
    Attack(
        "disks",
        "workdir is moved away in the middle",
        _in_the_middle(lambda b: b.workdir.rename(b.folder / "moved"), (0, 1, 2)),
    ),
    Attack("disks", "30 inodes in the workdir (root)", _few_inodes),
    Attack("disks", "workdir is a file", _instead(lambda b: b.workdir.touch(), (2,))),
    Attack("disks", "workdir is /dev/null", _named("/dev/null", (2,))),
    Attack("disks", "workdir is /proc", _named("/proc", (2,))),
    Attack("disks", "workdir is empty text", _named("", (2,))),
    Attack("disks", "workdir of 300 characters", _named("x" * 300, (2,))),
    Attack("disks", "workdir of 5,000 characters in parts", _named("/".join(["x" * 200] * 25), (2,))),
    Attack("disks", "workdir with a line end, an escape and quotes", _named("a\nb\x1b[31m'\"", (0, 2))),
    Attack("disks", "workdir that is no UTF-8", _named(os.fsdecode(b"run-\xff\xfe"), (0, 2))),
    Attack("disks", "workdir is a loop of links", _instead(lambda b: b.workdir.symlink_to("run"), (2,))),
    Attack("disks", "checkpoints is a file", _before(lambda b: (b.workdir / "checkpoints").touch(), (2,))),
    Attack("disks", "lock is a file", _before(lambda b: (b.workdir / "lock").touch(), (0, 2))),
    Attack("disks", "metrics.jsonl is a pipe", _before(lambda b: os.mkfifo(b.workdir / "metrics.jsonl"), (2,))),
    Attack("disks", "ledger.jsonl is a pipe", _before(lambda b: os.mkfifo(b.workdir / "ledger.jsonl"), (0, 2))),
    Attack("disks", "config.json is a pipe", _before(lambda b: os.mkfifo(b.workdir / "config.json"), (2,))),
    Attack("disks", "summary.json is a directory", _before(lambda b: (b.workdir / "summary.json").mkdir(), (1, 2))),
    Attack("disks", "tensorboard is a file", _before(lambda b: (b.workdir / "tensorboard").touch(), (0, 2))),
    Attack("disks", "compile_cache is a file", _before(lambda b: (b.workdir / "compile_cache").touch(), (0, 2))),
    Attack(
        "disks",
        "compile_cache is a link to itself",
        _before(lambda b: (b.workdir / "compile_cache").symlink_to("compile_cache"), (0, 2)),
    ),
    Attack("disks", "the directory that it is started in is gone", _cwd_deleted),
    Attack("disks", "TMPDIR does not exist", _surrounded((0,), TMPDIR="/nowhere")),
    Attack("disks", "HOME does not exist", _surrounded((0,), HOME="/nowhere/at/all")),
    Attack(
        "disks",
        "a step directory full of files of others",
        _after_a_run(lambda b: (b.workdir / "checkpoints/000999").mkdir()),
    ),
    Attack(
        "disks",
        "a step of the future with a copied manifest",
        _after_a_run(lambda b: shutil.copytree(b.workdir / "checkpoints/000010", b.workdir / "checkpoints/000020")),
    ),
    Attack("clocks", "the clock jumps forward by a day after 4 s", _clock(86400, 4)),
    Attack("clocks", "the clock jumps back by a year after 4 s", _clock(-_YEAR, 4)),
    Attack("clocks", "the clock is in 1970", _clock(-int(time.time()) + 1000)),
    Attack("clocks", "the clock is before 1970", _clock(-int(time.time()) - _YEAR, wanted=(0, 2))),
    Attack("clocks", "the clock is in the year 2200", _clock(174 * _YEAR)),
    Attack("clocks", "all files of a run are of the year 2100", _after_a_run(lambda b: _touch_all(b, 4102444800.0))),
    Attack("clocks", "all files of a run are of 1970", _after_a_run(lambda b: _touch_all(b, 0.0))),
    Attack("clocks", "the ledger's lines are in reverse order", _after_a_run(_rewrite_ledger)),
    Attack("clocks", "TZ is nonsense", _surrounded((0,), TZ="../../etc/passwd")),
    Attack("formats", "config with a byte order mark", _config_of(b"\xef\xbb\xbf" + _text_config(), (0,))),
    Attack("formats", "config with CRLF", _config_of(_text_config().replace(b"\n", b"\r\n"), (0,))),
    Attack("formats", "config in UTF-16", _config_of(_text_config().decode().encode("utf-16"), (2,))),
    Attack("formats", "config with a NUL", _config_of(_text_config() + b"\0", (2,))),
    Attack("formats", "config is an ELF program", _config_of(b"\x7fELF" + bytes(range(256)) * 20, (2,))),
    Attack("formats", "config of 100,000 brackets", _config_of(b"x = " + b"(" * 100_000 + b")" * 100_000, (2,))),
    Attack(
        "formats", "config that recurses for ever", _config_of(b"def get_config():\n    return get_config()\n", (2,))
    ),
    Attack("formats", "config that ends the process", _config_of(b"import os\nos._exit(3)\n", (3,))),
    Attack("formats", "config that takes all memory", _config_of(b"x = [0] * (1 << 50)\n", (2,))),
    Attack("formats", "epochs of full-width digits", _override("epochs=\uff11", (0, 2))),
    Attack("formats", "epochs=1_0e-1", _override("epochs=1_0e-1", (0, 2))),
    Attack("formats", "an override of 1 MB", _override("seed=" + "9" * 100_000, (2,))),
    Attack("formats", "an override that is no UTF-8", _override(os.fsdecode(b"seed=\xff"), (2,))),
    Attack("formats", "picture of 60,000 by 60,000", _predicted("bomb.png", _bomb, (1, 2))),
    Attack("formats", "picture of 1 by 1", _predicted("one.png", _image("L", (1, 1)), (0, 1))),
    Attack("formats", "picture of 1 by 60,000", _predicted("thin.png", _image("L", (1, 60_000)), (0, 1))),
    Attack("formats", "CMYK JPEG", _predicted("cmyk.jpg", _image("CMYK", (9, 9)), (0,))),
    Attack("formats", "16-bit PNG", _predicted("deep.png", _image("I;16", (9, 9)), (0, 1))),
    Attack("formats", "palette with transparency", _predicted("p.png", _image("P", (9, 9), transparency=0), (0, 1))),
    Attack("formats", "a web page named .png", _predicted("page.png", lambda p: p.write_text("<html>"), (1, 2))),
    Attack("formats", "an SVG with a reference", _predicted("x.svg", lambda p: p.write_text("<svg/>"), (1, 2))),
    Attack(
        "formats", "a picture that is /dev/zero", _predicted("zero.png", lambda p: p.symlink_to("/dev/zero"), (1, 2))
    ),
    Attack("formats", "a picture that is a pipe", _predicted("pipe.png", os.mkfifo, (1, 2))),
    Attack(
        "formats",
        "safetensors whose header has 2^63 bytes",
        _imported(lambda: (2**63).to_bytes(8, "little") + b"{}", ".safetensors", (2,)),
    ),
    Attack(
        "formats",
        "safetensors whose tensors overlap",
        _imported(
            lambda: _safetensors(
                {
                    "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                    "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                }
            ),
            ".safetensors",
            (2,),
        ),
    ),
    Attack("formats", ".pth that is a bomb of 200 MB", _imported(_zip_bomb, ".pth", (2,))),
    Attack(
        "formats",
        ".pth whose pickle calls os.system",
        _imported(lambda: _pickle_of(b"cos\nsystem\n(S'touch pwned'\ntR."), ".pth", (2,)),
    ),
    Attack(
        "formats",
        ".pth whose pickle nests 100,000 lists",
        _imported(lambda: _pickle_of(b"(" * 100_000 + b"l" * 100_000 + b"."), ".pth", (2,)),
    ),
    Attack("surroundings", "a random.py beside the config", _shadowed("random")),
    Attack("surroundings", "a jax.py beside the config", _shadowed("jax")),
    Attack("surroundings", "JAX_PLATFORMS=abacus", _surrounded((2,), JAX_PLATFORMS="abacus")),
    Attack("surroundings", "XLA_FLAGS=--no_such_flag", _surrounded((1, 2, -6), XLA_FLAGS="--no_such_flag")),
    Attack("surroundings", "JAX_NUM_PROCESSES=0", _surrounded((2,), JAX_NUM_PROCESSES="0")),
    Attack(
        "surroundings",
        "JAX_PROCESS_ID beyond the count",
        _surrounded((2,), JAX_COORDINATOR_ADDRESS="localhost:1", JAX_NUM_PROCESSES="2", JAX_PROCESS_ID="7"),
    ),
    Attack("surroundings", "SLURM_JOB_ID alone", _surrounded((0, 2), SLURM_JOB_ID="1")),
    Attack(
        "surroundings",
        "LC_ALL=C and a name beyond ASCII",
        lambda b: said(b.run(b.train(workdir="läuft"), surroundings={"LC_ALL": "C"}), (0,)),
    ),
    Attack("surroundings", "PYTHONIOENCODING=ascii:strict", _surrounded((0,), PYTHONIOENCODING="ascii:strict")),
    Attack("surroundings", "PYTHONOPTIMIZE=2: no assert runs", _surrounded((0,), PYTHONOPTIMIZE="2")),
    Attack("surroundings", "PYTHONHASHSEED=random, PYTHONDEVMODE=1", _surrounded((0,), PYTHONDEVMODE="1")),
    Attack("surroundings", "PATH is empty", _surrounded((0,), PATH="")),
    Attack("surroundings", "COLUMNS=0 and TERM=dumb", _surrounded((0,), COLUMNS="0", TERM="dumb")),
    Attack("surroundings", "two starts at one instant", _two_at_once),
)


def _safetensors(header: Mapping[str, object]) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + np.zeros(2, np.float32).tobytes()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; status 1 if anything was not withstood."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="attacks whose kind or title has this text")
    parser.add_argument("--package", type=Path, default=ROOT, help="the checkout under attack")
    parser.add_argument("--json", action="store_true", help="an object a line instead of a table")
    args = parser.parse_args(argv)
    good = True
    for attack in ATTACKS:
        if args.only not in f"{attack.kind} {attack.title}":
            continue
        with tempfile.TemporaryDirectory(prefix="attack-") as folder:
            try:
                met = attack.do(Bench(Path(folder), args.package.absolute()))
            except (OSError, subprocess.CalledProcessError) as error:
                met = Met(False, f"not tried: {error}")
        good = good and met.good
        if args.json:
            print(json.dumps({"kind": attack.kind, "title": attack.title, **met._asdict()}), flush=True)
        else:
            print(f"| {attack.kind} | {attack.title} | {'yes' if met.good else 'NO'} | {met.what} |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
