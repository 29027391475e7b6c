"""How a state lies on the mesh between steps: whole on every device, in shards, or a copy of its own on each."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxnet.comm import DEVICE, HOST, mesh_size, platform_of, replicated, rows_of, whole_of
from jaxnet.models import once_options
from jaxnet.parallel.state import TrainState, state_shardings
from jaxnet.tasks.task import PyTree

_Kind = Literal["whole", "shard", "copy", "rows", "columns"]
OWN = PartitionSpec(HOST, DEVICE)  # leads with [hosts, devices]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each leaf of a state lies, and how a whole state becomes the one that a step takes, and back.

    A leaf of 5 elements on the mesh 2x2, by kind:

        kind        array that the step takes      device (0, 0) holds
        'whole'     [5]                            all of it
        'shard'     [8], zeros after its end       elements 0 and 1 (of an ensemble: [members, 8])
        'copy'      [2, 2, 5], [hosts, devices]    its own [1, 1, 5], which it changes by itself

    A kernel cut by 'rows' or 'columns' keeps its shape; each device of a host holds an equal share of them.

    Attributes:
        mesh: axes ('host', 'device').
        axes: the mesh axes over which shards follow each other.
        whole_shapes: of the whole state, without shardings.
        kinds: for each leaf of the state, its kind, as above.
        ensemble: whether leaves that are in shards lead with [members].
    """

    mesh: Mesh
    axes: tuple[str, ...]
    whole_shapes: TrainState
    kinds: TrainState
    ensemble: bool = False

    @property
    def shapes(self) -> TrainState:
        """Of the state that a step takes."""
        return jax.eval_shape(self._cut, self.whole_shapes)

    @property
    def specs(self) -> TrainState:
        """How each leaf of the state that a step takes is cut over the mesh."""
        shard = PartitionSpec(None, self.axes) if self.ensemble else PartitionSpec(self.axes)
        of_kind = {"whole": PartitionSpec(), "shard": shard, "copy": OWN}
        of_kind |= {"rows": PartitionSpec(DEVICE), "columns": PartitionSpec(None, DEVICE)}
        specs = jax.tree.map(of_kind.__getitem__, self.kinds)
        return specs._replace(comm=jax.tree.map(lambda _: OWN, self.kinds.comm))

    @property
    def cut_axes(self) -> tuple[str, ...]:
        """Mesh axes over which some parameters are cut by rows or columns while the others are whole."""
        return (DEVICE,) if {"rows", "columns"}.intersection(jax.tree.leaves(self.kinds.params)) else ()

    @property
    def shardings(self) -> TrainState:
        """The same as shardings."""
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self.specs)

    @property
    def placed_shapes(self) -> TrainState:
        """The shapes of a state with their shardings: what is traced of them is not traced again for a state."""
        return jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), self.shapes, self.shardings)

    @property
    def shapes_on_device(self) -> TrainState:
        """The shapes of what lies on one device."""
        part = lambda leaf: jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)  # noqa: E731
        return jax.tree.map(part, self.placed_shapes)

    @property
    def bytes_per_device(self) -> int:
        """Bytes of a state that lie on one device."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.shapes_on_device))

    def make(self, first: Callable[..., TrainState], *given: PyTree) -> TrainState:
        """The state that a step takes, made on the mesh where it belongs; `first(*given)` makes it whole."""
        options = once_options(platform_of(self.mesh))
        make = jax.jit(lambda *given: self._cut(first(*given)), out_shardings=self.shardings, compiler_options=options)
        return make(*given)

    def cut(self, state: TrainState) -> TrainState:
        """A whole state as a step takes it."""
        return state if self._all_whole else self._cut_on_mesh(state)

    def whole(self, state: TrainState) -> TrainState:
        """The state of a step as a checkpoint holds it: whole on every device.

        Its bits are unchanged, but where copies differ: there it is their mean.
        """
        return state if self._all_whole else self._whole_on_mesh(state)

    def evaluated(self, state: TrainState) -> tuple[PyTree, PyTree]:
        """What a state is tested by, whole on every device: its parameters, or their average, and running averages.

        The average has the dtypes of the parameters then.
        """
        params = state.params if state.average is None else state.average
        wanted = [leaf.dtype for leaf in jax.tree.leaves(self.whole_shapes.params)]
        alike = wanted == [leaf.dtype for leaf in jax.tree.leaves(params)]
        return (params, state.stats) if self._all_whole and alike else self._evaluated_on_mesh((params, state.stats))

    @property
    def _all_whole(self) -> bool:
        return all(kind == "whole" for kind in jax.tree.leaves(self.kinds))

    @functools.cached_property
    def _cut_on_mesh(self) -> jax.stages.Wrapped:
        return jax.jit(self._cut, out_shardings=self.shardings)

    @functools.cached_property
    def _whole_on_mesh(self) -> jax.stages.Wrapped:
        return jax.jit(self._join, out_shardings=state_shardings(self.whole_shapes, self.mesh))

    @functools.cached_property
    def _evaluated_on_mesh(self) -> jax.stages.Wrapped:
        kinds, shapes = ((tree.params, tree.stats) for tree in (self.kinds, self.whole_shapes))

        def joined(trees: PyTree) -> PyTree:
            whole = jax.tree.map(_joined, kinds, trees, shapes)
            return jax.tree.map(lambda leaf, shape: leaf.astype(shape.dtype), whole, shapes)

        return jax.jit(joined, out_shardings=replicated(self.mesh))

    def _cut(self, state: TrainState) -> TrainState:
        return jax.tree.map(self._cut_leaf, self.kinds, state)

    def _cut_leaf(self, kind: _Kind, leaf: jax.Array) -> jax.Array:
        if kind == "copy":
            return jnp.broadcast_to(leaf, (*self.mesh.shape.values(), *leaf.shape))
        if kind == "shard":
            in_shards = lambda leaf: rows_of(leaf, mesh_size(self.mesh)).reshape(-1)  # noqa: E731
            return jax.vmap(in_shards)(leaf) if self.ensemble else in_shards(leaf)
        return leaf

    def _join(self, state: TrainState) -> TrainState:
        return jax.tree.map(_joined, self.kinds, state, self.whole_shapes)


def _joined(kind: _Kind, leaf: jax.Array, shape: jax.ShapeDtypeStruct) -> jax.Array:
    if kind == "copy":
        return _mean_of_copies(leaf)
    if kind == "shard" and leaf.ndim == 2:  # of an ensemble
        return jax.vmap(lambda member: whole_of(member, shape.shape[1:]))(leaf)
    return whole_of(leaf, shape.shape) if kind == "shard" else leaf


def _mean_of_copies(leaf: jax.Array) -> jax.Array:
    """The mean over the two leading dims; where all copies are equal, exactly theirs.

    Of counts the largest: a device that skipped a step by itself is behind, and its schedule with it.
    """
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf.max((0, 1))
    first = leaf[:1, :1]
    return first[0, 0] + (leaf - first).mean((0, 1))


def sharded_kinds(whole: TrainState, optimizer: optax.GradientTransformation, *, ensemble: bool) -> TrainState:
    """Kinds of a state whose parameters, their average and the optimizer's state are in shards."""
    kinds = jax.tree.map(lambda _: "whole", whole)
    belongs = jax.tree.map(lambda _: "shard", whole.params)
    return kinds._replace(
        params=belongs,
        average=None if whole.average is None else belongs,
        optimizer=_follows_params(optimizer, whole.params, 1 if ensemble else 0),
    )


def copied_kinds(whole: TrainState) -> TrainState:
    """Kinds of a state of which each device has a copy of its own: all that an update changes."""
    kinds = jax.tree.map(lambda _: "whole", whole)
    copies = {field: getattr(kinds, field) for field in ("params", "stats", "optimizer", "average")}
    return kinds._replace(**jax.tree.map(lambda _: "copy", copies))


def cut_kinds(kinds: TrainState, whole: TrainState, optimizer: optax.GradientTransformation, cut: PyTree) -> TrainState:
    """`kinds` where some parameters are cut by 'rows' or 'columns', and what belongs to them."""
    return kinds._replace(
        params=cut,
        average=None if whole.average is None else cut,
        optimizer=_follows_cut(optimizer, whole.params, cut),
    )


def _follows_params(optimizer: optax.GradientTransformation, params: PyTree, kept: int) -> PyTree:
    """In shards are the leaves of the optimizer's state that belong to a parameter: that change shape with it."""
    longer = jax.tree.map(lambda leaf: leaf.update(shape=(*leaf.shape[:kept], leaf.size + 1)), params)
    before, after = (jax.eval_shape(optimizer.init, shapes) for shapes in (params, longer))
    return jax.tree.map(lambda a, b: "shard" if a.shape != b.shape else "whole", before, after)


def _follows_cut(optimizer: optax.GradientTransformation, params: PyTree, cut: PyTree) -> PyTree:
    """Leaves of the optimizer's state that belong to a parameter, by the same sign, are cut as it is."""
    before = jax.eval_shape(optimizer.init, params)
    found = jax.tree.map(lambda _: "whole", before)
    for kind in {"rows", "columns"}.intersection(jax.tree.leaves(cut)):
        cuts = [own == kind for own in jax.tree.leaves(cut)]
        leaves, tree = jax.tree.flatten(params)
        # Another length of as many dims: an optimizer may treat kernels otherwise than biases.
        longer = [
            leaf.update(shape=(*leaf.shape[:-1], leaf.shape[-1] + 1)) if here else leaf
            for leaf, here in zip(leaves, cuts, strict=True)
        ]
        after = jax.tree.leaves(jax.eval_shape(optimizer.init, jax.tree.unflatten(tree, longer)))
        changed = [a.shape != b.shape for a, b in zip(jax.tree.leaves(before), after, strict=True)]
        kinds = [kind if new else was for new, was in zip(changed, jax.tree.leaves(found), strict=True)]
        found = jax.tree.unflatten(jax.tree.structure(before), kinds)
    return found
