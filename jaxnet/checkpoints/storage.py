"""How Orbax writes the arrays, made safe for a failure on one process alone.

What Orbax does on process 0 only, others wait for: up to 20 minutes, where it failed. So nothing that can fail may be
left to it.
"""

import functools
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxnet.checkpoints.files import described, differences, named_leaves, nested
from jaxnet.checkpoints.lock import Lost
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

# ---- What Orbax prints on its own when a save fails. Whoever asked for the save is told, in a line; this is left out


@functools.cache
def silence_orbax() -> None:
    """Leave out its log of errors, and what its writes say that end after the one that failed first."""
    logging.getLogger("absl").addFilter(_not_an_error_of_orbax)
    logging.getLogger("asyncio").addFilter(_not_a_later_write)
    others = sys.unraisablehook

    def but_closed_loops(unraisable: "UnraisableHookArgs") -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            others(unraisable)

    sys.unraisablehook = but_closed_loops


def _not_an_error_of_orbax(record: logging.LogRecord) -> bool:
    """Orbax logs a failed write with tracebacks from each of its threads, and raises it: `wait` tells it."""
    return record.levelno < logging.ERROR or f"{os.sep}orbax{os.sep}" not in record.pathname


def _not_a_later_write(record: logging.LogRecord) -> bool:
    failed = record.exc_info[1] if record.exc_info else None
    return not (isinstance(failed, ValueError) and "OCDBT database" in str(failed))


# ---- Why something was not written, in words that all processes can be told ---------------------------


LOST = "lost: "  # how a failure begins that ends the run


def why_not(act: Callable[[], Any]) -> str:
    """Why `act` failed; "" if it went well.

    >>> why_not(lambda: open("/nowhere/at/all")), why_not(lambda: None)
    ('No such file or directory', '')
    """
    try:
        act()
    except Lost as error:
        return f"{LOST}{error}"
    except Exception as error:
        # What Orbax's storage reports buries the system's reason in a paragraph of its own paths.
        code = re.search(r"os_error_code='(\d+)'", str(error))
        number = int(code[1]) if code else error.errno if isinstance(error, OSError) else None
        return os.strerror(number) if number else (str(error) or type(error).__name__).splitlines()[0]
    return ""


# ---- Leaves that a program has and a checkpoint lacks, or the other way round, or that both have in other shapes


NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
T = TypeVar("T")


class Replaceable(NamedTuple):
    """Leaves that can be made anew where those of a checkpoint do not fit: all of them, or none.

    Attributes:
        under: how their names begin.
        make: a pytree of them, with the names that they have in the state.
    """

    under: str
    make: Callable[[], Any]

    def fit(self, stored: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
        """Whether two descriptions share these leaves."""
        return self.parted(stored)[0] == self.parted(wanted)[0]

    def parted(self, leaves: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
        """Those of `leaves`, by name, and all others."""
        own = {name: leaf for name, leaf in leaves.items() if name.startswith(self.under)}
        return own, {name: leaf for name, leaf in leaves.items() if name not in own}


def as_stored(stored: Mapping[str, str], wanted: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves to ask a checkpoint for, which holds those that `stored` describes: among `defaults` only those.

    >>> sorted(as_stored({"a": "int32[]", "b": "int32[]"}, {"a": 1, "c": 2}, {"b": np.int32(0), "c": np.int32(0)}))
    ['a', 'b']
    """
    asked = {name: leaf for name, leaf in wanted.items() if name in stored or name not in defaults}
    surplus = {name: np.asarray(value) for name, value in defaults.items() if name in stored and name not in wanted}
    return asked | surplus


def filled(leaf: jax.ShapeDtypeStruct, value: Any) -> jax.Array:
    """An array such as `leaf`, of one value."""
    values = np.full(leaf.shape, value, leaf.dtype)
    if leaf.sharding is None:
        return jax.numpy.asarray(values)
    return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: values[index])


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


# ---- From the leaves that a checkpoint holds to the state that a program wants ------------------------


def read_state(
    directory: Path, stored: Mapping[str, str], like: Any, defaults: Mapping[str, Any], replaceable: Replaceable | None
) -> tuple[Any, dict[str, str]]:
    """The state in `directory`, where `stored` describes its leaves, as `like` asks for it.

    Besides, what is stored of leaves that were made anew; see `Checkpoints.restore_latest`. Raises InputError when the
    leaves differ.
    """
    wanted = named_leaves(like)
    replaced: dict[str, str] = {}
    if replaceable is None or replaceable.fit(stored, described(wanted)):
        leaves = _read(directory, stored, wanted, defaults)
    else:
        replaced, kept = replaceable.parted(stored)
        leaves = _read(directory, kept, replaceable.parted(wanted)[1], defaults)
        leaves |= named_leaves(replaceable.make())
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in wanted]), replaced


def _read(
    directory: Path, stored: Mapping[str, str], wanted: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    asked = as_stored(stored, wanted, defaults)
    wrong = differences(stored, described(asked))
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise InputError(
            f"{directory} holds another state than this program trains: {'; '.join(wrong[:5])}{more}. "
            "Use the configuration that it was saved with, or another directory"
        )
    # Leaves without elements are not stored, because Orbax refuses them.
    leaves = {name: filled(leaf, 0) for name, leaf in asked.items() if not leaf.size}
    leaves |= {name: filled(leaf, defaults[name]) for name, leaf in wanted.items() if name not in asked}
    there = {name: leaf for name, leaf in asked.items() if leaf.size}
    return leaves | read_arrays(directory / "state", there)
