"""Check the directory of the run: each rank can write it, and all ranks share it.

All checks run with a time limit, because a call to a dead file server never returns. Nothing is left behind.
"""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from jaxnet.cluster.environment import name_ranks
from jaxnet.errors import InputError
from jaxnet.object_storage.mirror import mirror_of
from jaxnet.object_storage.store import Store, remote_url
from jaxnet.operations.doctor.finding import Finding, failed, ok
from jaxnet.operations.doctor.waiting import Talk, TimedOut, within

_ANSWER_SECONDS = 10.0  # for the file system to do one thing
_STORE_SECONDS = 60.0  # for object storage, whose libraries try again by themselves
_VISIBLE_SECONDS = 2.5  # for one host's file to show on another; file servers may hold back news for seconds
_POLL_SECONDS = 0.1
_LEAST_SPACE = 1 << 30  # two checkpoints of a network of 40 million parameters with momentum
_ELSEWHERE = "give another with --workdir"


def nearest(path: Path) -> Path:
    """`path`, or the nearest of its parents that exists."""
    whole = path.absolute()
    return next(parent for parent in (whole, *whole.parents) if os.path.lexists(parent))


# ---- One rank -------------------------------------------------------------------------------------------


def check_workdir(workdir: Path) -> list[Finding]:
    """Whether this rank can write, flush, rename and delete in `workdir`, and how much room is there.

    If `workdir` does not exist yet, its nearest parent that does is checked. Of one in object storage, the store is
    checked, and the room in its mirror.
    """
    url = remote_url(workdir)
    try:
        if url:
            return within(_STORE_SECONDS, lambda: _check_store(url))
        return within(_ANSWER_SECONDS, lambda: _check(nearest(workdir)))
    except TimedOut:
        if url:
            found = f"{url} does not answer: nothing came back within {_STORE_SECONDS:g} s"
            return [failed("workdir", found, f"see whether this host reaches it, or {_ELSEWHERE}")]
        found = f"{workdir} does not answer: nothing came back within {_ANSWER_SECONDS:g} s"
        return [failed("workdir", found, f"see whether its file server is up, or {_ELSEWHERE}")]


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


def _check_store(url: str) -> list[Finding]:
    room = [_space(nearest(mirror_of(url)))]
    try:
        Store(url).check(f"doctor/{secrets.token_hex(8)}")
    except InputError as error:
        return [failed("workdir", str(error), "install it on this host"), *room]
    except OSError as error:
        cure = f"see the name, the rights of this host there and its network, or {_ELSEWHERE}"
        return [failed("workdir", f"{url} cannot be used: {error.strerror}", cure), *room]
    return [ok("workdir", f"{url}: making an object once, replacing, listing, reading and deleting it work"), *room]


def _commit(directory: Path) -> None:
    """Do on a small scale what the commit of a checkpoint does."""
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


# ---- All ranks ------------------------------------------------------------------------------------------

_CHECK = "shared workdir"
_CURE = "give a --workdir on a file system that all hosts share, under the same path: all ranks write checkpoints"


def check_shared(talk: Talk, workdir: Path) -> Finding:
    """Whether `workdir` is one directory on all hosts, not one of that name on each; every rank calls this.

    1. Rank 0 makes a folder and writes its file.  2. The others read that and write their own.  3. Rank 0 reads those.
    """
    begun = _begin(workdir) if talk.rank == 0 else ["", ""]
    try:
        name, problem = talk.gather("shared workdir", begun)[0]
        if problem:
            return failed(_CHECK, f"{workdir}: rank 0 {problem}", _CURE)
        folder = nearest(workdir) / name
        problems = talk.gather("joined workdir", _tried(lambda: _join(folder, talk.rank)))
        wrote = [rank for rank, problem in enumerate(problems) if not problem]
        unseen = talk.gather("seen workdir", _unseen(folder, wrote) if talk.rank == 0 else [])[0]
    finally:
        if talk.rank == 0:
            with suppress(TimedOut):
                within(_ANSWER_SECONDS, lambda: shutil.rmtree(nearest(workdir) / begun[0], ignore_errors=True))
    return _judge(workdir, problems, unseen)


def _begin(workdir: Path) -> list[str]:
    """Make a folder in `workdir` where all ranks meet; return its name and what went wrong."""
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
    """Of the ranks that wrote a file, those whose file rank 0 does not see."""
    absent = [folder / str(rank) for rank in wrote]
    with suppress(TimedOut, OSError):
        absent = within(_ANSWER_SECONDS, lambda: _await_written(absent))
    return [int(path.name) for path in absent]


def _write(path: Path) -> None:
    with path.open("w") as file:
        file.write(path.parent.name)
        file.flush()
        os.fsync(file.fileno())


def _await_written(paths: Sequence[Path]) -> list[Path]:
    """Wait until each of `paths` holds the name of its folder; return those that still do not when time is up."""
    give_up = time.monotonic() + _VISIBLE_SECONDS
    while absent := [path for path in paths if not _is_written(path)]:
        if time.monotonic() > give_up:
            break
        time.sleep(_POLL_SECONDS)
    return absent


def _is_written(path: Path) -> bool:
    try:
        return path.read_text() == path.parent.name
    except FileNotFoundError:
        return False


def _tried(work: Callable[[], object]) -> str:
    """Do `work`; return what went wrong, or an empty text."""
    try:
        within(_ANSWER_SECONDS, work)
    except TimedOut:
        return f"got no answer from the file system within {_ANSWER_SECONDS:g} s"
    except OSError as error:
        return f"cannot write there: {error.strerror.lower()}" if error.strerror else str(error)
    return ""


def _judge(workdir: Path, problems: Sequence[str], unseen: Sequence[int]) -> Finding:
    wrong = {problem: [rank for rank, own in enumerate(problems) if own == problem] for problem in problems if problem}
    lines = [f"{name_ranks(where)} {problem}" for problem, where in wrong.items()]
    if unseen:
        lines.append(f"rank 0 does not see what {name_ranks(unseen)} wrote")
    if lines:
        return failed(_CHECK, f"{workdir}: {'; '.join(lines)}", _CURE)
    return ok(_CHECK, f"{workdir}: what each of {len(problems)} ranks writes, others read")
