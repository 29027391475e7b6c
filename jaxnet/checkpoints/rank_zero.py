"""Checkpoints of processes that share no directory, or no arrays: process 0 reads and writes for all.

Under MPI each process has a mesh of its own and all hold the same state. Under `jax.distributed` the arrays span the
processes; what only others hold of them is gathered first. What process 0 restores travels to the others, one array at
a time.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxnet.checkpoints.checkpointer import Checkpointer, NotSaved, Restored, not_shared
from jaxnet.checkpoints.consensus import Consensus
from jaxnet.checkpoints.leaves import NO_DEFAULTS, Replaceable, named_leaves, nested, placed

# ---- How the processes talk: all make the same calls in the same order ----------------------------------


class Ranks(Protocol):
    """The processes that MPI has joined."""

    def broadcast_object(self, make: Callable[[], Any]) -> Any:
        """Call `make` on process 0 and return its result on all; an InputError is raised on all too."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the `value` of every process, in rank order."""


class Processes(Protocol):
    """What `OneWriter` asks of them."""

    def decided(self, make: Callable[[], Any]) -> Any:
        """Call `make` on process 0 and return its result on all; an InputError is raised on all too."""

    def gathered(self, flag: bool) -> list[bool]:
        """Return the `flag` of every process, in rank order."""

    def collect(self, leaf: Any) -> Any:
        """Return an array as process 0 can save it alone."""

    def send(self, leaf: Any, like: Any) -> Any:
        """Return the array that process 0 gives, which is like `like`, on all."""


class MPIProcesses:
    """Processes with arrays of their own, which are the same on all."""

    def __init__(self, ranks: Ranks) -> None:
        self.decided, self.gathered = ranks.broadcast_object, ranks.all_gather_object

    def collect(self, leaf: Any) -> Any:
        """Return it as it is."""
        return leaf

    def send(self, leaf: Any, like: Any) -> Any:
        """One message an array, because MPI libraries count the bytes of a message with 32 bits."""
        return self.decided(lambda: np.asarray(leaf))


class JaxProcesses(Consensus):
    """Processes whose arrays span the devices of all."""

    def collect(self, leaf: Any) -> Any:
        """Return the whole array on process 0, and None on the others."""
        if leaf.is_fully_addressable:
            return np.asarray(leaf) if self.primary else None
        if leaf.is_fully_replicated:
            return np.asarray(leaf.addressable_data(0)) if self.primary else None
        whole = multihost_utils.process_allgather(leaf, tiled=True)
        return whole if self.primary else None

    def send(self, leaf: Any, like: Any) -> Any:
        """As bytes: a sum over the devices carries them, and a sum of floats would lose the sign of a zero."""
        array = np.ascontiguousarray(leaf) if self.primary else np.zeros(like.shape, like.dtype)
        sent = multihost_utils.broadcast_one_to_all(array.reshape(-1).view(np.uint8))
        return np.asarray(sent).view(like.dtype).reshape(like.shape)


# ---- The checkpoints ------------------------------------------------------------------------------------


class OneWriter:
    """The methods of `Checkpointer`, called by all processes in the same order and done by process 0 alone.

    Raises InputError as `Checkpointer` does, on all processes.

    Args:
        directory: as for `Checkpointer`, and so are those without a line here.
        processes: how they talk.
        shared: whether all must see the directory, so that whichever is process 0 next time finds what is saved.
    """

    def __init__(
        self,
        directory: Path,
        processes: Processes,
        *,
        shared: bool = True,
        keep: int = 3,
        fence: Callable[[], None] = lambda: None,
    ):
        self._processes = processes
        self._own: Checkpointer | None = None  # stays None but on process 0
        with contextlib.ExitStack() as until_all_have_looked:

            def make() -> str:
                self._own = Checkpointer(directory, keep=keep, fence=fence, alone=True)
                if not shared:
                    return ""
                # Under a name that no other directory has, such as one of the same path on another host.
                number, probe = tempfile.mkstemp(dir=directory, prefix=".probe-")
                os.close(number)
                until_all_have_looked.callback(Path(probe).unlink, missing_ok=True)
                return Path(probe).name

            name = processes.decided(make)
            sees_it = os.path.exists(directory / name)  # noqa: PTH110  # Path.exists may raise, on one process alone
            seen = enumerate(processes.gathered(not shared or sees_it))
            if blind := [process for process, sees in seen if not sees]:
                raise not_shared(directory, blind)

    def save(self, step: int, state: Any, *, extra: dict[str, Any], best: int | None = None) -> None:
        """See `Checkpointer.save`."""
        own = jax.tree.map(self._processes.collect, state)
        self._write(lambda checkpoints: checkpoints.save(step, own, extra=extra, best=best))

    def wait(self) -> None:
        """See `Checkpointer.wait`."""
        self._write(Checkpointer.wait)

    def restore_latest(
        self,
        like: Any,
        *,
        up_to: int | None = None,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
        replaceable: Replaceable | None = None,
    ) -> Restored | None:
        """See `Checkpointer.restore_latest`."""
        found: list[Restored] = []  # stays empty but on process 0
        shapes = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), like)
        # What is made anew is made by all, below: here zeros stand for it.
        zeros = {} if replaceable is None else replaceable.split(named_leaves(shapes))[0]
        made: list[bool] = []  # likewise

        def zeros_instead() -> Any:
            made.append(True)
            return nested(zeros)

        blank = None if replaceable is None else replaceable._replace(make=zeros_instead)

        def restore(own: Checkpointer) -> tuple[int, dict[str, Any], dict[str, str], bool] | None:
            restored = own.restore_latest(shapes, up_to=up_to, defaults=defaults, replaceable=blank)
            found.extend(filter(None, [restored]))
            return (found[0].step, found[0].extra, dict(found[0].replaced), bool(made)) if found else None

        about = self._on_process_zero(restore)
        if about is None:
            return None
        step, extra, replaced, makes_anew = about
        anew = named_leaves(replaceable.make()) if replaceable and makes_anew else {}
        leaves = named_leaves(found[0].state) if found else {}
        state = [
            anew[name] if name in anew else placed(self._processes.send(leaves.get(name), leaf), leaf)
            for name, leaf in named_leaves(like).items()
        ]
        return Restored(step, jax.tree.unflatten(jax.tree.structure(like), state), extra, replaced)

    def close(self) -> None:
        """See `Checkpointer.close`."""
        self._write(Checkpointer.close)

    def _write(self, act: Callable[[Checkpointer], None]) -> None:
        """Do `act` on process 0, and raise its NotSaved on all, which a broadcast would make a plain InputError."""

        def failure_of(own: Checkpointer) -> str:
            try:
                act(own)
            except NotSaved as error:
                return str(error)
            return ""

        if failure := self._on_process_zero(failure_of):
            raise NotSaved(failure)

    def _on_process_zero(self, act: Callable[[Checkpointer], Any]) -> Any:
        def on_first() -> Any:
            assert self._own is not None, "process 0 made it in __init__"
            return act(self._own)

        return self._processes.decided(on_first)
