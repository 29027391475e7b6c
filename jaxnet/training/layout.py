"""How a state lies on the mesh between steps: whole on every device, in parts, or as a copy of its own on each."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxnet.comm import DEVICE, HOST, Strategy, mesh_size, replicated, rows_of, whole_of
from jaxnet.training.loss import PyTree
from jaxnet.training.state import TrainState, state_shardings

_Kind = Literal["whole", "part", "copy"]
OWN = PartitionSpec(HOST, DEVICE)  # leads with [hosts, devices]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each leaf of a state is, and the way from whole states to those that a step takes, and back.

    In parts, a leaf is an array of one dim, zeros after its end, of which each device holds an equal share. Of
    copies each device holds one, which it changes by itself; the leaf leads with [hosts, devices].

    Attributes:
        mesh: axes ('host', 'device').
        axes: the mesh axes over which parts follow each other.
        whole_shapes: of the whole state, without shardings.
        kinds: for each leaf of the state, whether it is 'whole', in parts ('part') or in copies ('copy').
    """

    mesh: Mesh
    axes: tuple[str, ...]
    whole_shapes: TrainState
    kinds: TrainState

    @property
    def shapes(self) -> TrainState:
        """Of the state that a step takes."""
        return jax.eval_shape(self._cut, self.whole_shapes)

    @property
    def specs(self) -> TrainState:
        """How each leaf of the state that a step takes is cut over the mesh."""
        of_kind = {"whole": PartitionSpec(), "part": PartitionSpec(self.axes), "copy": OWN}
        specs = jax.tree.map(of_kind.__getitem__, self.kinds)
        return specs._replace(comm=jax.tree.map(lambda _: OWN, self.kinds.comm))

    @property
    def shardings(self) -> TrainState:
        """The same as shardings."""
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self.specs)

    def make(self, first: Callable[..., TrainState], *given: PyTree) -> TrainState:
        """The state that a step takes, made on the mesh where it belongs; `first(*given)` makes it whole."""
        return jax.jit(lambda *given: self._cut(first(*given)), out_shardings=self.shardings)(*given)

    def cut(self, state: TrainState) -> TrainState:
        """A whole state as a step takes it."""
        return state if self._all_whole else self._cut_on_mesh(state)

    def whole(self, state: TrainState) -> TrainState:
        """The state of a step as a checkpoint holds it: whole on every device.

        Its bits are unchanged, but where copies differ: there it is their mean.
        """
        return state if self._all_whole else self._whole_on_mesh(state)

    def evaluated(self, state: TrainState) -> tuple[PyTree, PyTree]:
        """What a state is tested by, whole on every device: its parameters, or their average, and running averages."""
        params = state.params if state.average is None else state.average
        return (params, state.stats) if self._all_whole else self._evaluated_on_mesh((params, state.stats))

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
        return jax.jit(lambda trees: jax.tree.map(_joined, kinds, trees, shapes), out_shardings=replicated(self.mesh))

    def _cut(self, state: TrainState) -> TrainState:
        return jax.tree.map(self._cut_leaf, self.kinds, state)

    def _cut_leaf(self, kind: _Kind, leaf: jax.Array) -> jax.Array:
        if kind == "copy":
            return jnp.broadcast_to(leaf, (*self.mesh.shape.values(), *leaf.shape))
        return rows_of(leaf, mesh_size(self.mesh)).reshape(-1) if kind == "part" else leaf

    def _join(self, state: TrainState) -> TrainState:
        return jax.tree.map(_joined, self.kinds, state, self.whole_shapes)


def _joined(kind: _Kind, leaf: jax.Array, shape: jax.ShapeDtypeStruct) -> jax.Array:
    if kind == "copy":
        return _mean_of_copies(leaf)
    return whole_of(leaf, shape.shape) if kind == "part" else leaf


def _mean_of_copies(leaf: jax.Array) -> jax.Array:
    """The mean over the two leading dims; where all copies are equal, exactly theirs. Counts are equal at all times."""
    first = leaf[:1, :1]
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return first[0, 0]
    return first[0, 0] + (leaf - first).mean((0, 1))


def make_layout(whole: TrainState, optimizer: optax.GradientTransformation, mesh: Mesh, strategy: Strategy) -> Layout:
    """The layout of states of these shapes: parts or copies of what an update changes, if the strategy has them."""
    kinds = jax.tree.map(lambda _: "whole", whole)
    if strategy.averaging is not None:
        copies = {field: getattr(kinds, field) for field in ("params", "stats", "optimizer", "average")}
        kinds = kinds._replace(**jax.tree.map(lambda _: "copy", copies))
    axes = () if strategy.sharded is None else strategy.sharded.axes
    if axes:
        belongs = jax.tree.map(lambda _: "part", whole.params)
        kinds = kinds._replace(
            params=belongs,
            average=None if whole.average is None else belongs,
            optimizer=_follows_params(optimizer, whole.params),
        )
    return Layout(mesh, axes, whole, kinds)


def _follows_params(optimizer: optax.GradientTransformation, params: PyTree) -> PyTree:
    """In parts are the leaves of the optimizer's state that belong to a parameter: that change shape with it."""
    longer = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((leaf.size + 1,), leaf.dtype), params)
    before, after = (jax.eval_shape(optimizer.init, shapes) for shapes in (params, longer))
    return jax.tree.map(lambda a, b: "part" if a.shape != b.shape else "whole", before, after)
