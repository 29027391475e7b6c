"""How Orbax writes the arrays, made safe for a failure on one process alone.

What Orbax does on process 0 only, others wait for: up to 20 minutes, where it failed. So nothing that can fail may be
left to it.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxnet.checkpoints.failures import why_not
from jaxnet.checkpoints.leaves import nested


class _MadeBefore(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """A directory that `Storage.prepare` has made: when Orbax makes it, others are not told if that fails."""

    async def create(self) -> Any:
        """Where the directory is."""
        return self.get()


class Storage:
    """An `ocp.AsyncCheckpointer` that all processes can go on using after a save has failed on any of them.

    `meet(key=..., timeout_ms=...)` is a barrier for its background thread, which raises OSError on all other processes
    when one has failed.
    """

    def __init__(self, meet: Any) -> None:
        self._orbax = ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(),
            async_options=ocp.options.AsyncOptions(barrier_sync_fn=meet),
            temporary_path_class=_MadeBefore,
        )

    def prepare(self, path: Path) -> None:
        """On process 0, before `save`: make the directory in which Orbax writes what becomes `path`, as it would."""
        directory = Path(_MadeBefore.from_final(path).get())
        directory.mkdir()
        (directory / "_CHECKPOINT_METADATA").write_text(json.dumps({"init_timestamp_nsecs": time.time_ns()}))

    def save(self, path: Path, arrays: Any) -> str:
        """Start to save; returns when `arrays` have been copied. "", or why it could not begin here."""
        return why_not(lambda: self._orbax.save(path, args=ocp.args.StandardSave(arrays)))

    def finish(self) -> None:
        """Return when all is written, and raise what kept it from that."""
        try:
            self._orbax.wait_until_finished()
        except Exception:
            # It raises one failure at a time: another would come up when the next save begins, on this process alone.
            while why_not(self._orbax.wait_until_finished):
                pass
            raise

    def close(self) -> None:
        """End the background threads."""
        self._orbax.close()


def read_arrays(path: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays at `path` with the names that `like` has, each as the jax.ShapeDtypeStruct there asks for it."""
    wanted = nested(like)
    arguments = ocp.checkpoint_utils.construct_restore_args(wanted)
    with ocp.PyTreeCheckpointer() as orbax:
        asked = ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True)
        arrays = orbax.restore(path.absolute(), args=asked)  # it takes no other
    names = jax.tree.leaves(nested({name: name for name in like}))
    return dict(zip(names, jax.tree.leaves(arrays), strict=True))
