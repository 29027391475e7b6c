"""Whether the directory of the run is one and the same on all hosts, and not one of that name on each."""

import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from jaxnet.cluster.doctor.files import nearest
from jaxnet.cluster.doctor.finding import Finding, failed, ok
from jaxnet.cluster.doctor.limit import TimedOut, within
from jaxnet.cluster.doctor.talk import Talk
from jaxnet.cluster.ranks import ranks

_CHECK = "shared workdir"
_SECONDS = 5.0  # a file server may hold back what is new for a few seconds
_AGAIN_SECONDS = 0.1
_CURE = "give a --workdir on a file system that all hosts share, under the same path: all ranks write checkpoints"


def check_shared(talk: Talk, workdir: Path) -> Finding:
    """Rank 0 writes, all read that and write, rank 0 reads; every rank calls this. Nothing is left behind."""
    meeting = talk.gather("shared/where", _begin(workdir) if talk.rank == 0 else ["", ""])[0]
    folder, problem = Path(meeting[0]), meeting[1]
    try:
        if problem:
            return failed(_CHECK, f"rank 0 cannot write to {workdir}: {problem}", _CURE)
        own = "" if talk.rank == 0 else _tried(lambda: _join(folder, talk.rank))
        problems = talk.gather("shared/joined", own)
        unseen = [rank for rank in range(1, talk.count) if not problems[rank] and not _seen(folder / str(rank), talk)]
        unseen = talk.gather("shared/seen", unseen)[0]
    finally:
        if talk.rank == 0 and meeting[0]:
            with suppress(TimedOut):
                within(_SECONDS, lambda: shutil.rmtree(folder, ignore_errors=True))
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
    """The folder where all shall meet, which rank 0 makes, and what went wrong."""
    folder = nearest(workdir) / f".jaxnet-doctor-{secrets.token_hex(8)}"
    return [str(folder), _tried(lambda: (folder.mkdir(), _write(folder / "0")))]  # type: ignore[func-returns-value]


def _join(folder: Path, rank: int) -> None:
    if not _appears(folder / "0"):
        raise OSError("does not see what rank 0 wrote there")
    _write(folder / str(rank))


def _write(path: Path) -> None:
    with path.open("w") as file:
        file.write(path.parent.name)
        file.flush()
        os.fsync(file.fileno())


def _seen(path: Path, talk: Talk) -> bool:
    return talk.rank != 0 or _tried(lambda: _require(path)) == ""


def _require(path: Path) -> None:
    if not _appears(path):
        raise OSError("is not there")


def _appears(path: Path) -> bool:
    """Whether `path` comes to hold the name of its folder."""
    give_up = time.monotonic() + _SECONDS / 2
    while True:
        with suppress(FileNotFoundError):
            if path.read_text() == path.parent.name:
                return True
        if time.monotonic() > give_up:
            return False
        time.sleep(_AGAIN_SECONDS)


def _tried(work: "Callable[[], object]") -> str:
    """What stood in the way of `work`, or nothing."""
    try:
        within(_SECONDS, work)
    except TimedOut:
        return f"got no answer from the file system within {_SECONDS:g} s"
    except OSError as error:
        return f"cannot write there: {error.strerror.lower()}" if error.strerror else str(error)
    return ""
