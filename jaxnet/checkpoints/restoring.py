"""From the leaves that a checkpoint holds to the state that a program wants."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxnet.checkpoints.defaults import Replaceable, as_stored, filled
from jaxnet.checkpoints.leaves import described, differences, named_leaves
from jaxnet.checkpoints.storage import read_arrays
from jaxnet.errors import InputError


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
