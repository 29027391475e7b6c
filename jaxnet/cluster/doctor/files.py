"""The directory of the run, as one rank sees it: writable, with room, and with what a commit needs."""

import os
import shutil
import tempfile
from pathlib import Path

from jaxnet.cluster.doctor.finding import Finding, failed, ok
from jaxnet.cluster.doctor.limit import TimedOut, within

_LEAST_SPACE = 1 << 30  # two checkpoints of a network of 40 million parameters with momentum
_SECONDS = 10.0
_ELSEWHERE = "give another with --workdir"


def check_workdir(workdir: Path) -> list[Finding]:
    """Whether this rank can write, flush, rename and delete in `workdir`, and how much room it has.

    Where it does not exist yet, its nearest parent that does is tried. Nothing is left behind.
    """
    try:
        return within(_SECONDS, lambda: _check(nearest(workdir)))
    except TimedOut:
        found = f"{workdir} does not answer: nothing came back within {_SECONDS:g} s"
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
