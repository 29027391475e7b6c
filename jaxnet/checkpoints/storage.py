"""How Orbax writes and reads the arrays, made safe for a failure on one process alone.

Orbax does some work on process 0 only, such as making a directory. If that fails, the other processes wait at a barrier
for up to 20 minutes. So everything that can fail on process 0 alone is done here, before Orbax starts, and the barrier
that Orbax uses in the background ends as soon as any process reports a failure (`Consensus.meet`).
"""

import functools
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxnet.checkpoints.consensus import why_not
from jaxnet.checkpoints.leaves import filled, nested

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

# ---- What Orbax prints ----------------------------------------------------------------------------------


@functools.cache
def _silence_orbax() -> None:
    """Hide what Orbax prints about a failed save: the caller of the save gets the failure in one line."""
    logging.getLogger("absl").addFilter(_not_an_error_of_orbax)
    logging.getLogger("asyncio").addFilter(_not_a_later_write)
    previous_hook = sys.unraisablehook

    def hook(unraisable: "UnraisableHookArgs") -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            previous_hook(unraisable)

    sys.unraisablehook = hook


def _not_an_error_of_orbax(record: logging.LogRecord) -> bool:
    """Drop the tracebacks that each thread of Orbax logs for a failed write, which it also raises."""
    return record.levelno < logging.ERROR or f"{os.sep}orbax{os.sep}" not in record.pathname


def _not_a_later_write(record: logging.LogRecord) -> bool:
    """Drop the complaints of writes that end after the one that failed first."""
    failed = record.exc_info[1] if record.exc_info else None
    return not (isinstance(failed, ValueError) and "OCDBT database" in str(failed))


# ---- Write ----------------------------------------------------------------------------------------------


class _ExistingPath(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """A temporary directory that `Storage.prepare` has already made, so that Orbax has nothing to create."""

    async def create(self) -> Any:
        """Return where the directory is."""
        return self.get()


# Orbax lets each device of a replicated array write a slice of it, and XLA compiles a program for each slice. That pays
# for large arrays only: the 44 leaves of a small network took 88 programs, a third of all that its run compiled.
_LEAST_SLICE_BYTES = 16 << 20
_ARRAYS = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=_LEAST_SLICE_BYTES)),
    (np.ndarray, ocp.type_handlers.NumpyHandler()),
)


class Storage:
    """An `ocp.AsyncCheckpointer` that all processes can still use after a save has failed on any of them.

    `meet(key=..., timeout_ms=...)` is a barrier for its background thread. It raises OSError on all other processes
    when one has failed. If this process is `alone`, Orbax waits for no others.
    """

    def __init__(self, meet: Any, *, alone: bool = False) -> None:
        _silence_orbax()
        processes = _processes(alone)
        self._orbax = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(multiprocessing_options=processes, type_handler_registry=_ARRAYS),
            async_options=ocp.options.AsyncOptions(barrier_sync_fn=meet),
            multiprocessing_options=processes,
            temporary_path_class=_ExistingPath,
        )

    def prepare(self, path: Path) -> None:
        """On process 0, before `save`: make the temporary directory of `path` as Orbax would make it."""
        directory = Path(_ExistingPath.from_final(path).get())
        directory.mkdir()
        (directory / "_CHECKPOINT_METADATA").write_text(json.dumps({"init_timestamp_nsecs": time.time_ns()}))

    def save(self, path: Path, leaves: Mapping[str, Any]) -> str:
        """Start to save leaves by name; return when they have been copied: "", or why the save could not begin here.

        Leaves without elements are not stored, because Orbax refuses them; `read_arrays` makes them.
        """
        arrays = nested({name: leaf for name, leaf in leaves.items() if leaf.size})
        return why_not(lambda: self._orbax.save(path, args=ocp.args.PyTreeSave(arrays)))

    def finish(self) -> None:
        """Return when everything is written; raise what prevented it."""
        try:
            self._orbax.wait_until_finished()
        except Exception:
            # Orbax raises one failure at a time. Take the others now, or the next save would raise them, on this
            # process alone.
            while why_not(self._orbax.wait_until_finished):
                pass
            raise

    def close(self) -> None:
        """End the background threads."""
        self._orbax.close()


def _processes(alone: bool) -> ocp.options.MultiprocessingOptions:
    if not alone or jax.process_count() == 1:
        return ocp.options.MultiprocessingOptions()
    own = jax.process_index()
    return ocp.options.MultiprocessingOptions(own, {own}, barrier_sync_key_prefix="alone")


# ---- Read -----------------------------------------------------------------------------------------------


def read_arrays(path: Path, like: Mapping[str, Any], *, alone: bool = False) -> dict[str, Any]:
    """Return the arrays at `path` that `like` names, each with the dtype, shape and sharding that stand there.

    All processes call it, unless this one reads `alone`.
    """
    empty = {name: filled(leaf, 0) for name, leaf in like.items() if not leaf.size}
    stored = {name: leaf for name, leaf in like.items() if leaf.size}
    wanted, processes = nested(stored), _processes(alone)
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=processes)
    arguments = ocp.checkpoint_utils.construct_restore_args(wanted)
    with ocp.Checkpointer(handler, multiprocessing_options=processes) as orbax:
        asked = ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True)
        arrays = orbax.restore(path.absolute(), args=asked)  # it refuses a relative path
    names = jax.tree.leaves(nested({name: name for name in stored}))
    return empty | dict(zip(names, jax.tree.leaves(arrays), strict=True))
