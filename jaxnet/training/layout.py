"""How a state lies on the mesh between steps: whole on every device, or in parts."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxnet.comm import DEVICE, HOST, Strategy, mesh_size, replicated, rows_of, whole_of
from jaxnet.training.loss import PyTree
from jaxnet.training.state import TrainState, state_shardings


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each leaf of a state is, and the way from whole states to those that a step takes, and back.

    In parts, a leaf is an array of one dim, zeros after its end, of which each device holds an equal share.

    Attributes:
        mesh: axes ('host', 'device').
        axes: the mesh axes over which parts follow each other; empty: everything is whole.
        whole_shapes: of the whole state, without shardings.
        in_parts: for each leaf of the state, whether it is in parts.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    whole_shapes: TrainState
    in_parts: TrainState

    @property
    def shapes(self) -> TrainState:
        """Of the state that a step takes."""
        return jax.eval_shape(self._cut, self.whole_shapes)

    @property
    def specs(self) -> TrainState:
        """How each leaf of the state that a step takes is cut over the mesh."""
        specs = jax.tree.map(lambda cut: PartitionSpec(self.axes) if cut else PartitionSpec(), self.in_parts)
        return specs._replace(comm=jax.tree.map(lambda _: PartitionSpec(HOST, DEVICE), self.in_parts.comm))

    @property
    def shardings(self) -> TrainState:
        """The same as shardings."""
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self.specs)

    def make(self, first: Callable[[], TrainState]) -> TrainState:
        """The state that a step takes, made on the mesh where it belongs; `first` makes it whole."""
        return jax.jit(lambda: self._cut(first()), out_shardings=self.shardings)()

    def cut(self, state: TrainState) -> TrainState:
        """A whole state as a step takes it."""
        return self._cut_on_mesh(state) if self.axes else state

    def whole(self, state: TrainState) -> TrainState:
        """The state of a step as a checkpoint holds it: whole on every device. Its bits are unchanged."""
        return self._whole_on_mesh(state) if self.axes else state

    def whole_params(self, params: PyTree) -> PyTree:
        """The parameters of a step's state, or their average, whole on every device."""
        return self._whole_params_on_mesh(params) if self.axes else params

    @functools.cached_property
    def _cut_on_mesh(self) -> jax.stages.Wrapped:
        return jax.jit(self._cut, out_shardings=self.shardings)

    @functools.cached_property
    def _whole_on_mesh(self) -> jax.stages.Wrapped:
        return jax.jit(self._join, out_shardings=state_shardings(self.whole_shapes, self.mesh))

    @functools.cached_property
    def _whole_params_on_mesh(self) -> jax.stages.Wrapped:
        join = lambda params: jax.tree.map(_joined, params, self.whole_shapes.params)  # noqa: E731
        return jax.jit(join, out_shardings=replicated(self.mesh))

    def _cut(self, state: TrainState) -> TrainState:
        devices = mesh_size(self.mesh)
        return jax.tree.map(lambda leaf, cut: rows_of(leaf, devices).reshape(-1) if cut else leaf, state, self.in_parts)

    def _join(self, state: TrainState) -> TrainState:
        join = lambda leaf, cut, shape: _joined(leaf, shape) if cut else leaf  # noqa: E731
        return jax.tree.map(join, state, self.in_parts, self.whole_shapes)


def _joined(leaf: jax.Array, shape: jax.ShapeDtypeStruct) -> jax.Array:
    return whole_of(leaf, shape.shape)


def make_layout(whole: TrainState, optimizer: optax.GradientTransformation, mesh: Mesh, strategy: Strategy) -> Layout:
    """The layout of states of these shapes: what belongs to parameters in parts, if the strategy carries parts."""
    in_parts = jax.tree.map(lambda _: False, whole)
    axes = () if strategy.sharded is None else strategy.sharded.axes
    if axes:
        belongs = jax.tree.map(lambda _: True, whole.params)
        in_parts = in_parts._replace(
            params=belongs,
            average=None if whole.average is None else belongs,
            optimizer=_follows_params(optimizer, whole.params),
        )
    return Layout(mesh, axes, whole, in_parts)


def _follows_params(optimizer: optax.GradientTransformation, params: PyTree) -> PyTree:
    """Which leaves of the optimizer's state belong to a parameter: those whose shape changes with the parameters'."""
    longer = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((leaf.size + 1,), leaf.dtype), params)
    before, after = (jax.eval_shape(optimizer.init, shapes) for shapes in (params, longer))
    return jax.tree.map(lambda a, b: a.shape != b.shape, before, after)
