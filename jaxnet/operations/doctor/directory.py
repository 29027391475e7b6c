"""Whether the directory of the run is one and the same on all hosts, and not one of that name on each."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from jaxnet.cluster.environment import ranks
from jaxnet.operations.doctor.finding import Finding, Talk, TimedOut, failed, ok, within

# ---- The directory of the run, as one rank sees it: writable, with room, and with what a commit needs -


_LEAST_SPACE = 1 << 30  # two checkpoints of a network of 40 million parameters with momentum
_FILES_SECONDS = 10.0
_ELSEWHERE = "give another with --workdir"


def check_workdir(workdir: Path) -> list[Finding]:
    """Whether this rank can write, flush, rename and delete in `workdir`, and how much room it has.

    Where it does not exist yet, its nearest parent that does is tried. Nothing is left behind.
    """
    try:
        return within(_FILES_SECONDS, lambda: _check(nearest(workdir)))
    except TimedOut:
        found = f"{workdir} does not answer: nothing came back within {_FILES_SECONDS:g} s"
        return [failed("workdir", found, f"see whether its file server is up, or {_ELSEWHERE}")]


def nearest(path: Path) -> Path:
    """`path`, or the nearest of its parents that exists."""
    whole = path.absolute()
    return next(parent for parent in (whole, *whole.parents) if os.path.lexists(parent))


def _check(directory: Path) -> list[Finding]:
    try:
        _commit(directory)
    except OSError as error:
        found = f"{directory} cannot be written to: {(error.strerror or str(error)).lower()}"
        written = failed("workdir", found, f"make it writable for this user, or {_ELSEWHERE}")
    else:
        written = ok("workdir", f"{directory}: writing, flushing and renaming work")
    try:
        return [written, _space(directory)]
    except OSError:
        return [written]


def _commit(directory: Path) -> None:
    """What the commit of a checkpoint does, in small."""
    with tempfile.TemporaryDirectory(prefix=".jaxnet-doctor-", dir=directory) as folder:
        scratch, final = Path(folder, "scratch"), Path(folder, "final")
        with scratch.open("wb") as file:
            file.write(b"doctor")
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(final)
        if final.read_bytes() != b"doctor":
            raise OSError("what was written is not what is read")


def _space(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    found = f"{free / (1 << 30):,.1f} GiB free in {directory}"
    if free < _LEAST_SPACE:
        found = f"{free / (1 << 20):,.0f} MiB free in {directory}, wanted 1 GiB or more"
        return failed("free space", found, f"delete what is not needed there, or {_ELSEWHERE}")
    return ok("free space", found)


_CHECK = "shared workdir"
_SHARED_SECONDS = 5.0  # a file server may hold back what is new for a few seconds
_AGAIN_SECONDS = 0.1
_CURE = "give a --workdir on a file system that all hosts share, under the same path: all ranks write checkpoints"


def check_shared(talk: Talk, workdir: Path) -> Finding:
    """Rank 0 writes, all read that and write, rank 0 reads; every rank calls this. Nothing is left behind."""
    name, problem = talk.gather("shared workdir", _begin(workdir) if talk.rank == 0 else ["", ""])[0]
    if problem:
        return failed(_CHECK, f"{workdir}: rank 0 {problem}", _CURE)
    folder = nearest(workdir) / name
    try:
        problems = talk.gather("joined workdir", _tried(lambda: _join(folder, talk.rank)))
        wrote = [rank for rank, problem in enumerate(problems) if not problem]
        unseen = talk.gather("seen workdir", _unseen(folder, wrote) if talk.rank == 0 else [])[0]
    finally:
        if talk.rank == 0:
            with suppress(TimedOut):
                within(_SHARED_SECONDS, lambda: shutil.rmtree(folder, ignore_errors=True))
    return _judge(workdir, problems, unseen)


def _judge(workdir: Path, problems: Sequence[str], unseen: Sequence[int]) -> Finding:
    wrong = {problem: [rank for rank, own in enumerate(problems) if own == problem] for problem in problems if problem}
    lines = [f"{ranks(where)} {problem}" for problem, where in wrong.items()]
    if unseen:
        lines.append(f"rank 0 does not see what {ranks(unseen)} wrote")
    if lines:
        return failed(_CHECK, f"{workdir}: {'; '.join(lines)}", _CURE)
    return ok(_CHECK, f"{workdir}: what each of {len(problems)} ranks writes, others read")


def _begin(workdir: Path) -> list[str]:
    """The name of a folder in `workdir` where all shall meet, which rank 0 makes, and what went wrong."""
    name = f".jaxnet-doctor-{secrets.token_hex(8)}"
    return [name, _tried(lambda: _open(nearest(workdir) / name))]


def _open(folder: Path) -> None:
    folder.mkdir()
    _write(folder / "0")


def _join(folder: Path, rank: int) -> None:
    if _await_written([folder / "0"]):
        raise OSError("does not see what rank 0 wrote there")
    if rank != 0:
        _write(folder / str(rank))


def _unseen(folder: Path, wrote: Sequence[int]) -> list[int]:
    """Which of the ranks that `wrote` did so elsewhere."""
    absent = [folder / str(rank) for rank in wrote]
    with suppress(TimedOut, OSError):
        absent = within(_SHARED_SECONDS, lambda: _await_written(absent))
    return [int(path.name) for path in absent]


def _write(path: Path) -> None:
    with path.open("w") as file:
        file.write(path.parent.name)
        file.flush()
        os.fsync(file.fileno())


def _await_written(paths: Sequence[Path]) -> list[Path]:
    """Wait until each of `paths` holds the name of its folder; those that do not when half of the time is up."""
    give_up = time.monotonic() + _SHARED_SECONDS / 2
    while absent := [path for path in paths if not _is_written(path)]:
        if time.monotonic() > give_up:
            break
        time.sleep(_AGAIN_SECONDS)
    return absent


def _is_written(path: Path) -> bool:
    try:
        return path.read_text() == path.parent.name
    except FileNotFoundError:
        return False


def _tried(work: Callable[[], object]) -> str:
    """What stood in the way of `work`, or nothing."""
    try:
        within(_SHARED_SECONDS, work)
    except TimedOut:
        return f"got no answer from the file system within {_SHARED_SECONDS:g} s"
    except OSError as error:
        return f"cannot write there: {error.strerror.lower()}" if error.strerror else str(error)
    return ""
