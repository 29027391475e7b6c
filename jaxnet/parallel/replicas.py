"""Do all devices hold the same state? Each hashes its copy of every leaf, and the hashes are compared."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxnet.comm import AXES, DEVICE, mesh_size, varying_along
from jaxnet.models import leaf_name
from jaxnet.parallel.layout import Layout
from jaxnet.parallel.state import TrainState

_STRIDE = 0x9E3779B9  # the golden ratio: neighbouring places differ in many bits


class Replicas:
    """Compares what devices should hold alike, in a small program of its own, beside the step.

    That is every leaf that is whole on all devices. Parts ('deferred') are a device's own and are not compared, nor is
    what a reducer remembers. Of copies ('local') parameters, running averages and their average are: they are equal
    after a step that ends a round, and then alone. What is cut over the devices of each host is compared by host.

    Args:
        layout: of the states.
        ranks: processes that MPI joins, each with a mesh of its own.
        gathered: the value of every rank, in their order; the own one alone without MPI.
    """

    def __init__(
        self, layout: Layout, ranks: int = 1, gathered: Callable[[Any], list[Any]] = lambda value: [value]
    ) -> None:
        self._layout = layout
        self._gathered = gathered
        self._leaves, self._names = _compared(layout.kinds)
        self._places = _places(layout, ranks)
        self._hashes = _hashes(layout, self._leaves)

    def difference(self, state: TrainState) -> str | None:
        """Which devices hold another state than most, and in what; None if all agree. All processes must call it."""
        if len(self._places) == 1 or not self._names:
            return None
        leaves = jax.tree.leaves(state)
        own = np.asarray(self._hashes([leaves[index] for index in self._leaves]).addressable_data(0))
        rows = np.concatenate([np.asarray(each) for each in self._gathered(own.tolist())])
        return described(rows, self._names, self._places)


def leaf_hash(leaf: jax.Array) -> jax.Array:
    """Hash of the bits of an array, uint32 []: the sum over its elements of their bits and their place, mixed.

    A change of one element of up to 32 bits always changes it; any other, such as an exchange of two, is missed once in
    2^32. A sum of integers is the same in any order, so XLA may add as is fastest.
    """
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):  # of which JAX gives no bits
        leaf = jnp.stack([leaf.real, leaf.imag])
    word = jnp.uint8 if leaf.dtype == jnp.bool_ else jnp.dtype(f"uint{8 * min(4, leaf.dtype.itemsize)}")
    bits = leaf.astype(word) if leaf.dtype == jnp.bool_ else lax.bitcast_convert_type(leaf, word)
    words = bits.reshape(-1).astype(jnp.uint32)
    places = lax.iota(jnp.uint32, words.size) * jnp.uint32(_STRIDE)
    return _mixed(words + places).sum(dtype=jnp.uint32)


def _mixed(words: jax.Array) -> jax.Array:
    """A bijection that spreads each bit over the word (MurmurHash3's finalizer)."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def described(hashes: np.ndarray, names: Sequence[str], places: Sequence[str]) -> str | None:
    """What differs among hashes [devices, leaves], in words; None if nothing does.

    >>> hashes = np.array([[1, 2], [1, 2], [1, 3]])
    >>> described(hashes, ["a", "b"], ["device 0", "device 1", "device 2"])
    'device 2 differs from the 2 others in b'
    """
    rows = [tuple(row) for row in hashes.tolist()]
    ((common, count), *_) = Counter(rows).most_common()
    odd = [index for index, row in enumerate(rows) if row != common]
    if not odd:
        return None
    leaves = [name for at, name in enumerate(names) if any(rows[index][at] != common[at] for index in odd)]
    more = f" and {len(leaves) - 1} more leaves" if len(leaves) > 1 else ""
    who = ", ".join(places[index] for index in odd[:4]) + (f" and {len(odd) - 4} more" if len(odd) > 4 else "")
    verb = "differs" if len(odd) == 1 else "differ"
    if 2 * count > len(rows):
        return f"{who} {verb} from the {count} others in {leaves[0]}{more}"
    first = places[rows.index(common)]
    return f"{who} {verb} from {first} in {leaves[0]}{more}, and no majority tells which of them are wrong"


def _compared(kinds: TrainState) -> tuple[list[int], list[str]]:
    """Places and names of the leaves, among all of a state, that devices should hold alike."""
    alike = kinds._replace(comm=jax.tree.map(lambda _: "own", kinds.comm))
    changed = jax.tree.map(lambda kind: "own" if kind == "copy" else kind, alike.optimizer)
    alike = alike._replace(optimizer=changed)
    found = [
        (index, leaf_name(path))
        for index, (path, kind) in enumerate(jax.tree.leaves_with_path(alike))
        if kind in ("whole", "copy", "rows", "columns")
    ]
    return [index for index, _ in found], [name for _, name in found]


def _hashes(layout: Layout, leaves: Sequence[int]) -> jax.stages.Wrapped:
    """Leaves of a state to the hashes of all devices of the mesh, uint32 [devices, leaves]."""
    specs = jax.tree.leaves(layout.specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    chosen = [specs[index] for index in leaves]
    kinds = jax.tree.leaves(layout.kinds)
    cut = [kinds[index] in ("rows", "columns") for index in leaves]

    def on_device(values: list[jax.Array]) -> jax.Array:
        hashes = [leaf_hash(value) for value in values]
        # The devices of a host hold a cut leaf together, and hosts the same.
        hashes = [lax.psum(own, DEVICE) if here else own for own, here in zip(hashes, cut, strict=True)]
        return lax.all_gather(varying_along(jnp.stack(hashes), AXES), AXES, to="invarying")

    mapped = jax.shard_map(on_device, mesh=layout.mesh, in_specs=(chosen,), out_specs=PartitionSpec())
    return jax.jit(mapped)


def _places(layout: Layout, ranks: int) -> list[str]:
    """Each row of the hashes in words."""
    count = mesh_size(layout.mesh)
    owners = [device.process_index for device in layout.mesh.devices.flat]
    if ranks > 1:
        owners = [rank for rank in range(ranks) for _ in range(count)]
    return [f"device {owners[:at].count(rank)} of rank {rank}" for at, rank in enumerate(owners)]
