"""The replicated form: every device holds the whole state, gets the whole sum of the gradients, and updates alike.

The same arithmetic runs in three modes. 'shard_map': a program for one device, in which the collectives are ours.
'pmap': the same through the older `jax.pmap`. 'jit': one global program, which XLA partitions (strategy 'xla').

Dense layers may be cut over the devices of a host (`jaxnet.parallel.hybrid`): their kernels are then the only part of
the state that differs between devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxnet.comm import (
    AXES,
    DEVICE,
    HOST,
    CompilerOption,
    Reducer,
    Strategy,
    as_options,
    compiler_options,
    mesh_size,
    one_per_device,
    platform_of,
    replicated,
    scheduled,
    split_by_example,
)
from jaxnet.models import network_options
from jaxnet.optimizer import ShardedParams
from jaxnet.parallel.device_step import (
    Metrics,
    Skip,
    StepFn,
    device_step,
    global_step,
    guard_plan,
    mean_plan,
    one_message,
)
from jaxnet.parallel.form import Step, StepOptions, StepPlan, Traffic, leaves_by_path
from jaxnet.parallel.hybrid import ShardedDense, hybrid_strategy, layers_plan, param_kinds
from jaxnet.parallel.layout import OWN, Layout, cut_kinds
from jaxnet.parallel.state import TrainState
from jaxnet.tasks.task import Batch, LossFn

PyTree = Any


@dataclass(frozen=True)
class Replicated:
    """See `Form`; `layers` are dense layers whose kernels are cut over the devices of a host.

    Raises:
        ValueError: mode 'jit' with a strategy of ours, or another mode with strategy 'xla'.
    """

    strategy: Strategy
    mesh: Mesh
    options: StepOptions
    layers: tuple[ShardedDense, ...] = ()
    bucket_bytes: int | None = None
    round_steps = 1

    def __post_init__(self) -> None:
        if (self.options.mode == "jit") != (self.strategy.kind == "xla"):
            raise ValueError(
                f"mode {self.options.mode!r} does not go with strategy {self.strategy.label!r}: in mode 'jit' XLA "
                "reduces the gradients and the strategy is 'xla'; in the other modes the strategy is one of ours"
            )

    def agree_after(self, step: int) -> bool:
        """Always: metrics are means over all devices."""
        del step
        return True

    def sharded_params(self, params: PyTree) -> ShardedParams | None:
        """Kernels of cut layers are sharded over the devices of a host; None where there are none."""
        return ShardedParams(params, (DEVICE,)) if self.layers else None

    def optimizer(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer as it is."""
        return optimizer

    def reducer(self, params: PyTree) -> Reducer | None:
        """What sums the gradients, scheduled and in backward order; None if XLA does.

        Kernels of cut layers are summed over hosts alone, all else over all devices.
        """
        strategy, order = self.strategy, self.options.order
        if self.layers:
            order = order or tuple(range(len(jax.tree.leaves(params))))
            strategy = hybrid_strategy(strategy, param_kinds(params, self.layers), order, self.bucket_bytes)
        reducer = scheduled(strategy, order)
        assert reducer is None or isinstance(reducer, Reducer)
        return reducer

    def layout(self, whole: TrainState, optimizer: optax.GradientTransformation) -> Layout:
        """The whole state on every device, but for the kernels of cut layers."""
        kinds = jax.tree.map(lambda _: "whole", whole)
        if self.layers:
            kinds = cut_kinds(kinds, whole, optimizer, param_kinds(whole.params, self.layers))
        return Layout(self.mesh, (), whole, kinds)

    def step(self, loss_fn: LossFn, optimizer: optax.GradientTransformation, layout: Layout) -> Step:
        """One program: gradients, their sum, the mean, the optimizer, the moving average."""
        options, reducer = self.options, self.reducer(layout.whole_shapes.params)
        if reducer is None:
            step = global_step(
                *(loss_fn, optimizer, mesh_size(self.mesh), options.microbatches, options.average_decay),
                skip=Skip() if options.skip else None,
            )
            return jitted(step, self.mesh, options.compiler)
        step = device_step(
            *(loss_fn, optimizer, reducer.reduce, mesh_size(self.mesh) * options.ranks),
            *((DEVICE,) if options.mode == "pmap" else AXES, options.microbatches, options.average_decay),
            together=one_message(options.all_reduce),
            skip=Skip(layout.cut_axes) if options.skip else None,
        )
        if options.mode == "pmap":
            return pmapped(step, self.mesh, options.compiler)
        return shard_mapped(step, self.mesh, layout.specs, options.compiler)

    def plan(self, layout: Layout, traffic: Traffic) -> StepPlan:
        """Gradients, then metrics and running averages, then what cut layers send."""
        state, sizes = layout.whole_shapes, self.mesh.shape
        leaves = leaves_by_path(state.params)
        reducer = self.reducer(state.params)
        if reducer is None:
            return StepPlan((), (), leaves, None)
        gradients = reducer.plan(state.params, sizes)
        # By pmap all travel, because JAX does not say there which differ.
        averages = state.stats if self.options.mode == "pmap" else traffic.averaged(state.stats)
        planned = gradients.collectives
        planned += mean_plan(averages, traffic.metrics + traffic.weighted, sizes, one_message(self.options.all_reduce))
        if axes := layout.cut_axes:
            planned += traffic.norms(ShardedParams(state.params, axes))
            planned += guard_plan(state.params, axes, sizes) if self.options.skip else ()
        in_layers, times = layers_plan(self.layers, traffic.examples, self.options.microbatches, sizes)
        return StepPlan(planned + in_layers, (1.0,) * len(planned) + times, leaves, gradients.buckets)


# ---- One device's step, or one for all, as a program of a mesh ------------------------------------------------


def same_but_comm(other: Any, comm: Any) -> TrainState:
    """One value for every field of the state but `comm`: the reducer's state alone differs between devices."""
    return TrainState(other, other, other, other, comm, other, other, other)


def shard_mapped(
    step: StepFn, mesh: Mesh, specs: TrainState, options: Sequence[CompilerOption] = ()
) -> jax.stages.Wrapped:
    """One program a device, whose collectives are ours; states lie as `specs` say."""

    def on_device(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        # Leaves that are a device's own lead with [hosts, devices], which are [1, 1] here.
        own = jax.tree.map(lambda spec, leaf: _without_place(leaf) if spec == OWN else leaf, specs, state)
        new, metrics = step(own, batch)
        return jax.tree.map(lambda spec, leaf: _with_place(leaf) if spec == OWN else leaf, specs, new), metrics

    split, everywhere = PartitionSpec(AXES), PartitionSpec()
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(specs, split), out_specs=(specs, everywhere))
    # Said again here, because XLA gives a leaf of size 0 back as replicated, and the next step could not take it.
    states = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    return jax.jit(
        mapped,
        donate_argnums=0,
        in_shardings=(states, None),  # a batch may be of NumPy, which of several processes JAX takes only unsaid
        out_shardings=(states, replicated(mesh)),
        compiler_options=_options(mesh, options),
    )


def _without_place(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0, 0], tree)


def _with_place(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[None, None], tree)


def jitted(step: StepFn, mesh: Mesh, options: Sequence[CompilerOption] = ()) -> jax.stages.Wrapped:
    """One global program, which XLA partitions; the state is whole on every device."""
    everywhere = replicated(mesh)
    return jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(everywhere, split_by_example(mesh)),
        out_shardings=(everywhere, everywhere),
        compiler_options={**network_options(platform_of(mesh)), **as_options(options)},
    )


def pmapped(step: StepFn, mesh: Mesh, options: Sequence[CompilerOption] = ()) -> jax.stages.Wrapped:
    """As `shard_mapped`, of a state that is whole everywhere, by the older `jax.pmap`. ValueError: several hosts."""
    if mesh.shape[HOST] != 1:
        raise ValueError(f"mode 'pmap' has one mesh axis and takes a mesh of one host, got {mesh.shape[HOST]} hosts")
    # pmap binds one axis; a vmap over an axis of size 1 binds the other, so that reducers run unchanged.
    # The reducer's state, [hosts, devices, ...], is cut along its second dim by pmap, its first by vmap.
    one_host = jax.vmap(step, (same_but_comm(None, 0), 0), 0, axis_name=HOST, axis_size=1)
    first = lambda tree: jax.tree.map(lambda leaf: leaf[0], tree)  # noqa: E731

    def on_device(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        new, metrics = one_host(state, jax.tree.map(lambda x: x[None], batch))
        return first(new)._replace(comm=new.comm), first(metrics)

    devices: Sequence[jax.Device] = list(mesh.devices.flat)
    mapped = jax.pmap(
        on_device,
        DEVICE,
        in_axes=(same_but_comm(None, 1), 0),
        out_axes=(same_but_comm(None, 1), None),
        devices=devices,
    )

    def on_mesh(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        return mapped(state, jax.tree.map(lambda x: x.reshape(len(devices), -1, *x.shape[1:]), batch))

    everywhere = replicated(mesh)
    shardings = same_but_comm(everywhere, one_per_device(mesh))
    return jax.jit(
        on_mesh,
        donate_argnums=0,
        in_shardings=(shardings, split_by_example(mesh)),
        out_shardings=(shardings, everywhere),
        compiler_options=_options(mesh, options),
    )


def _options(mesh: Mesh, more: Sequence[CompilerOption]) -> dict[str, str | int | bool]:
    platform = platform_of(mesh)
    # Both name passes to leave out: of compiler_options, which has those of network_options among its own.
    return {**network_options(platform), **compiler_options(platform), **as_options(more)}
