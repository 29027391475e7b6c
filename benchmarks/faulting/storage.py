"""Disks that are full, and files that are not as they were written."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.faulting.digits import SAVE_EVERY
from benchmarks.faulting.rounds import Outcome, Round, launch_command, train_command
from benchmarks.faulting.watched import PATIENCE_SECONDS, Unmet, Watched

_DISK = "32m"
KINDS = 9  # of files in a checkpoint, see `kinds_of_files`


def disk_full(job: Round) -> list[Outcome]:
    """Something else fills the disk, but for less than a checkpoint takes, and goes when a save has failed."""
    outcomes = []
    with small_disk(job.folder / "disk") as (inside, seen):
        shutil.rmtree(job.workdir, ignore_errors=True)
        job.workdir.symlink_to(seen / "run")
        with job.start(
            [*inside, *launch_command(train_command(job.folder / "disk/run"), 0, 1)], FAULTS_PACE="0.2"
        ) as run:
            for _ in range(job.count):
                size = _checkpoint_bytes(run, job.workdir / "checkpoints")
                before, full = _steps(job.workdir), time.monotonic()
                _fill(seen / "filling", job.draw.randrange(size))
                run.wait_for(r"^\[0\] warning: checkpoint step \d+ could not be written .*No space left", full)
                kept = before <= _steps(job.workdir)
                (seen / "filling").unlink()
                outcomes.append(Outcome(kept, 0, run.wait_for_step(full).at - full))
            finished = run.finish() == 0 and job.finished()
        same = job.same()
        job.workdir.unlink()
    return [outcome._replace(survived=outcome.survived and finished, same=same) for outcome in outcomes]


@contextmanager
def small_disk(place: Path) -> Iterator[tuple[list[str], Path]]:
    """A file system of its own at `place`, for who runs behind the command given; and where others see it."""
    place.mkdir()
    script = 'mount -t tmpfs -o size="$1" none "$2" && echo mounted && exec sleep 3600'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", _DISK, str(place)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as keeper:
        try:
            assert keeper.stdout is not None
            if keeper.stdout.readline() != b"mounted\n":
                raise Unmet("a file system cannot be mounted here; run it as root")
            yield ["nsenter", f"--mount=/proc/{keeper.pid}/ns/mnt"], Path(f"/proc/{keeper.pid}/root{place}")
        finally:
            keeper.kill()


def _checkpoint_bytes(run: Watched, checkpoints: Path) -> int:
    """The size of the newest, once there is one more than now."""
    begun, before = time.monotonic(), _steps(checkpoints.parent)
    while _steps(checkpoints.parent) <= before:
        if time.monotonic() > begun + PATIENCE_SECONDS:
            raise Unmet(f"no checkpoint after {len(run.lines)} lines")
        time.sleep(0.01)
    newest = checkpoints / f"{max(_steps(checkpoints.parent)):06d}"
    return sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())


def _steps(workdir: Path) -> set[int]:
    with suppress(FileNotFoundError):
        return {int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal()}
    return set()


def _fill(path: Path, left: int) -> None:
    """Fill the disk, and then leave so many bytes."""
    with path.open("wb", buffering=0) as filling:
        size = 0
        for chunk in (1 << 20, 4096):
            with suppress(OSError):
                while True:
                    size += filling.write(bytes(chunk))
        filling.truncate(max(0, size - left))


def flipped_bit(job: Round) -> list[Outcome]:
    """One random bit of a file of the newest checkpoint, while no run is there."""

    def flip(content: bytearray) -> bytearray:
        place = job.draw.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
        return content

    return _damaged(job, flip)


def truncated(job: Round) -> list[Outcome]:
    """A file of the newest checkpoint, cut off at a random length, while no run is there."""
    return _damaged(job, lambda content: content[: job.draw.randrange(len(content))])


def emptied(job: Round) -> list[Outcome]:
    """The newest checkpoint is an empty directory, while no run is there."""
    outcomes: list[Outcome] = []
    _stopped(job, SAVE_EVERY + 5)
    for _ in range(job.count):
        newest = _newest(job)
        shutil.rmtree(newest)
        newest.mkdir()
        outcomes.append(_met(job, "manifest.json", newest))
    return _to_the_end(job, outcomes)


def read_only(job: Round) -> list[Outcome]:
    """The checkpoints lie on a read-only file system for a save, and can be written again."""
    outcomes, place = [], str(job.folder / "disk/run/checkpoints")
    with small_disk(job.folder / "disk") as (inside, seen):
        shutil.rmtree(job.workdir, ignore_errors=True)
        job.workdir.symlink_to(seen / "run")
        command = launch_command(train_command(job.folder / "disk/run"), 0, 1)
        with job.start([*inside, *command], FAULTS_PACE="0.2") as run:
            for _ in range(job.count):
                run.wait_for_step(time.monotonic(), job.draw.randint(1, SAVE_EVERY))
                before, begun = _steps(job.workdir), time.monotonic()
                _mount(inside, "mount", "--bind", place, place)
                _mount(inside, "mount", "-o", "remount,bind,ro", place)
                run.wait_for(r"^\[0\] warning: checkpoint step \d+ could not be written .*Read-only", begun)
                kept = before <= _steps(job.workdir)
                _mount(inside, "umount", place)
                outcomes.append(Outcome(kept, 0, run.wait_for_step(begun).at - begun))
            finished = run.finish() == 0 and job.finished()
        same = job.same()
        job.workdir.unlink()
    return [outcome._replace(survived=outcome.survived and finished, same=same) for outcome in outcomes]


def _mount(inside: list[str], *words: str) -> None:
    """Now, or as soon as no file there is being written."""
    until = time.monotonic() + PATIENCE_SECONDS
    while (done := subprocess.run([*inside, *words], capture_output=True, text=True)).returncode:
        if time.monotonic() > until:
            raise Unmet(f"{' '.join(words)}: {done.stderr.strip()}")
        time.sleep(0.01)


def _newest(job: Round) -> Path:
    return job.workdir / f"checkpoints/{max(_steps(job.workdir)):06d}"


def _to_the_end(job: Round, outcomes: list[Outcome]) -> list[Outcome]:
    with job.launch() as run:
        finished = run.finish() == 0 and job.finished()
    return [outcome._replace(survived=outcome.survived and finished, same=job.same()) for outcome in outcomes]


def _damaged(job: Round, harm: Callable[[bytearray], bytearray]) -> list[Outcome]:
    """One kind of file after the other: stop, harm it, go on."""
    outcomes: list[Outcome] = []
    _stopped(job, SAVE_EVERY + 5)
    for number in range(job.first, job.first + job.count):
        newest = _newest(job)
        files = kinds_of_files(newest)
        if len(files) != KINDS:
            raise Unmet(f"a checkpoint has {len(files)} kinds of files, not {KINDS}")
        victim = files[number]
        content = bytearray(victim.read_bytes())
        victim.write_bytes(harm(content))
        outcomes.append(_met(job, victim.relative_to(newest).as_posix(), newest))
    return _to_the_end(job, outcomes)


def _met(job: Round, name: str, newest: Path) -> Outcome:
    """Start the run, which must name the file and go on from the checkpoint before."""
    run = _stopped(job, 4)
    named = run.find(rf"^\[0\] warning: checkpoint step {int(newest.name)} is damaged: {re.escape(name)} ")
    resumed = int(run.wait_for(r"^\[0\] continuing .* from step (\d+)$")[1][1])
    good = bool(named) and resumed < int(newest.name) and (job.workdir / "checkpoints/damaged").exists()
    return Outcome(good, int(newest.name) - resumed, run.wait_for_step().at - run.began, note=name)


def _stopped(job: Round, steps: int) -> Watched:
    """A run that is told to end after so many steps."""
    with job.launch() as run:
        run.wait_for_step(count=steps)
        os.kill(run.rank(0), signal.SIGTERM)
        if run.finish() != 0:
            raise Unmet("it did not end well")
        return run


def kinds_of_files(checkpoint: Path) -> list[Path]:
    """One file of each kind that a checkpoint has: those that differ in the digest or the process in their names."""
    found: dict[str, Path] = {}
    for path in sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_size):
        kind = re.sub(r"[0-9a-f]{32}|process_\d+", "*", path.relative_to(checkpoint).as_posix())
        found.setdefault(kind, path)
    return list(found.values())
