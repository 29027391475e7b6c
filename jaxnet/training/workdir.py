"""The directory of a run while it runs: held by one run at a time, on behalf of all its processes."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxnet.checkpoints import BEAT_SECONDS, Heartbeat, Lock
from jaxnet.errors import InputError

Told = Callable[[Callable[[], Any]], Any]


@contextlib.contextmanager
def held(workdir: Path, told: Told, *beats: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Inside, no other run writes in `workdir`; gives a fence, which raises Lost if another has taken over.

    `told` gives every process what its argument returns on process 0, which alone holds the lock. The `beats` are
    called there every few seconds.

    Raises InputError, on all processes, when another run holds it.
    """
    taken: list[Lock] = []

    def take() -> str:
        try:
            taken.append(Lock(workdir))
        except InputError as error:
            return str(error)
        return ""

    if refusal := told(take):
        raise InputError(refusal)
    if not taken:
        yield lambda: None
        return
    [lock] = taken
    try:
        with Heartbeat(BEAT_SECONDS, lock.beat, *beats):
            yield lock.require
    finally:
        lock.release()
