"""One run at a time at a URL: the numbered lock of `jaxnet.checkpoints.lock`, where nothing can be renamed or watched.

    lock/000003.json    names the owner, counts its signs of life, and says when it has ended

The rules are those of a directory, with what object storage has: the next number is created, which only one run can
do; nobody writes the object of another; a run that finds a higher number than its own writes no more. A release is an
object written anew, because the number must stay. Whether the owner lives: on the same machine the system knows;
elsewhere the next run reads the object until it changes, at most for a minute, so that only its own clock matters.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from jaxnet.checkpoints.lock import Lost, Owner
from jaxnet.errors import InputError
from jaxnet.files import parse_object, record_of
from jaxnet.object_storage.store import Store

BEAT_SECONDS = 10.0
_PATIENCE_SECONDS = 60.0
_FOLDER = "lock"

_held: set[str] = set()  # URLs that this process holds: a store that failed may not know that it has let go of one

_log = logging.getLogger("jaxnet")


class _Said(NamedTuple):
    """What a lock says; owner None: it cannot be read."""

    owner: Owner | None
    beat: int
    ended: bool

    def to_bytes(self) -> bytes:
        return json.dumps({**self._asdict(), "owner": self.owner and self.owner._asdict()}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "_Said":
        try:
            return record_of(cls, parse_object(content))
        except ValueError:
            return cls(None, 0, False)


class StoreLock:
    """Takes the lock of `store` when it is made. Call `beat` every `BEAT_SECONDS` while holding it.

    Raises InputError, naming the owner, when the place is in use, and StoreFailed when the store fails.

    Args:
        store: what to lock.
        patience: seconds without a sign of life after which a run on another host counts as dead.
        say: takes a line for a person.
    """

    def __init__(
        self, store: Store, *, patience: float = _PATIENCE_SECONDS, say: Callable[[str], None] = _log.warning
    ) -> None:
        self._store, self._patience, self._say = store, patience, say
        self._said = _Said(Owner.this(locked=False), 0, False)
        self._lost: Lost | None = None
        while not self._try_to_take():
            pass  # another run was faster: look at that one
        _held.add(store.url)

    def beat(self) -> None:
        """Give a sign of life; raises as `require` does."""
        self.require()
        self._said = self._said._replace(beat=self._said.beat + 1)
        self._store.write(_name(self._number), self._said.to_bytes())

    def require(self) -> None:
        """Ask the store whether this run still holds the lock; raise Lost if not, StoreFailed if it does not answer."""
        numbers = self._numbers()
        newest = max(numbers, default=0)
        if newest > self._number:
            taker = self._read(newest).owner or "another run"
            self._lost = Lost(f"{self._store.url} was taken over by {taker}; this run stops and writes nothing there")
        elif self._number not in numbers:
            self._lost = Lost(f"the lock of this run, {self._store.url}/{_name(self._number)}, was removed; it stops")
        self.remember()

    def remember(self) -> None:
        """Raise Lost if the last look at the store has found it; asks nobody, and takes no time."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Give it back. Never fails: the next run finds that the owner of a lock left behind has ended."""
        _held.discard(self._store.url)
        with contextlib.suppress(OSError, Lost):
            self.require()
            self._store.write(_name(self._number), self._said._replace(ended=True).to_bytes())

    def _try_to_take(self) -> bool:
        """Create the next number; return False if another run created it first, raise InputError if one lives."""
        numbers = self._numbers()
        newest = max(numbers, default=0)
        if newest:
            self._refuse_if_held(newest)
        self._number = newest + 1
        try:
            self._store.create(_name(self._number), self._said.to_bytes())
        except FileExistsError:
            return False
        self._store.delete(_name(number) for number in numbers)
        return True

    def _refuse_if_held(self, number: int) -> None:
        said = self._read(number)
        if said.ended:
            return
        owner = said.owner or "another run"
        if self._lives(number, said):
            raise InputError(
                f"{self._store.url} is in use by {owner}; stop that run, wait for its end, or give another place with "
                "--workdir"
            )
        self._say(f"{self._store.url} was left by {owner}, which has ended; taking over")

    def _lives(self, number: int, said: _Said) -> bool:
        if said.owner is not None and (runs := said.owner.runs()) is not None:
            own = said.owner.pid == os.getpid()
            return self._store.url in _held if runs and own else runs
        self._say(f"{self._store.url} is locked by {said.owner or 'a run'}; waiting for a sign of life")
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            time.sleep(min(2.0, self._patience / 10))
            if (now := self._read(number)) != said:
                return not now.ended
        return False

    def _numbers(self) -> list[int]:
        names = [name.removesuffix(".json") for name in self._store.names(_FOLDER)]
        return [int(name) for name in names if name.isdecimal()]

    def _read(self, number: int) -> _Said:
        try:
            return _Said.from_bytes(self._store.read(_name(number)))
        except FileNotFoundError:  # a later run has taken over
            return _Said(None, 0, True)


def _name(number: int) -> str:
    return f"{_FOLDER}/{number:06d}.json"
