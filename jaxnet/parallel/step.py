"""The training step of a strategy in one of four modes: the same arithmetic, mapped over the mesh in different ways."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import optax
from jax.sharding import Mesh, PartitionSpec

from jaxnet.comm import (
    AXES,
    DEVICE,
    HOST,
    AllReduce,
    Sharded,
    Strategy,
    all_reduce,
    compiler_options,
    mesh_size,
    one_per_device,
    replicated,
    scheduled,
    shards_in_order,
    split_by_example,
)
from jaxnet.models import network_options
from jaxnet.parallel.device_step import Metrics, Skip, StepFn, device_step, global_step, one_message
from jaxnet.parallel.layout import OWN, Layout
from jaxnet.parallel.local import local_step
from jaxnet.parallel.pieces import PiecesStep
from jaxnet.parallel.state import TrainState
from jaxnet.tasks.classification import Batch, LossFn, PyTree

# ---- One device's step, or one for all, as a program of a mesh: by shard_map, by jit alone, or by pmap


def same_but_comm(other: Any, comm: Any) -> TrainState:
    """One value for every field of the state but `comm`: the reducer's state alone differs between devices."""
    return TrainState(other, other, other, other, comm, other, other, other)


def shard_mapped(step: StepFn, mesh: Mesh, specs: TrainState) -> jax.stages.Wrapped:
    """One program a device, whose collectives are ours; states lie as `specs` say."""

    def on_device(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        own = jax.tree.map(lambda spec, leaf: _without_place(leaf) if spec == OWN else leaf, specs, state)
        new, metrics = step(own, batch)
        return jax.tree.map(lambda spec, leaf: _with_place(leaf) if spec == OWN else leaf, specs, new), metrics

    split, everywhere = PartitionSpec(AXES), PartitionSpec()
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(specs, split), out_specs=(specs, everywhere))
    return jax.jit(mapped, donate_argnums=0, compiler_options=_options(mesh))


def _without_place(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0, 0], tree)


def _with_place(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[None, None], tree)


def jitted(step: StepFn, mesh: Mesh) -> jax.stages.Wrapped:
    """One global program, which XLA partitions; the state is whole on every device."""
    everywhere = replicated(mesh)
    return jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(everywhere, split_by_example(mesh)),
        out_shardings=(everywhere, everywhere),
        compiler_options=network_options(mesh.devices.flat[0].platform),
    )


def pmapped(step: StepFn, mesh: Mesh) -> jax.stages.Wrapped:
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

    devices = list(mesh.devices.flat)
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
        compiler_options=_options(mesh),
    )


def _options(mesh: Mesh) -> dict[str, str | int | bool]:
    platform = mesh.devices.flat[0].platform
    # Both name passes to leave out: of compiler_options, which has those of network_options among its own.
    return {**network_options(platform), **compiler_options(platform)}


Mode = Literal["shard_map", "jit", "pmap", "pieces"]
Step = jax.stages.Wrapped | PiecesStep


@dataclass(frozen=True)
class StepOptions:
    """What a step does besides its loss, optimizer and strategy.

    Attributes:
        mode: 'shard_map': one program a device, the collectives are ours; 'jit': XLA partitions one global
            program; 'pmap': as shard_map through the older `jax.pmap`, which has one mesh axis; 'pieces': several
            programs, launched from two threads, on one device a process.
        microbatches: parts that a device's share of the batch is taken in; gradients travel once.
        average_decay: `d` of the moving average of parameters, `a = d a + (1 - d) p`, less at first (`warmed_decay`);
            None keeps none.
        order: leaves in the order in which backward produces them (`backward_order`); None: the tree's.
        all_reduce: sums metrics and running averages; of the same transport as the strategy.
        ranks: processes that MPI joins, each with a mesh of its own.
        skip: leave the state as it was where the loss or the gradient is not finite; see `Skip`.
    """

    mode: Mode = "shard_map"
    microbatches: int = 1
    average_decay: float | None = None
    order: Sequence[int] | None = None
    all_reduce: AllReduce = all_reduce
    ranks: int = 1
    skip: bool = True


def make_train_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    strategy: Strategy,
    mesh: Mesh,
    options: StepOptions | None = None,
    layout: Layout | None = None,
) -> Step:
    """`step(state, batch) -> (state, metrics)`: one program, the state donated, no round trip to the host.

    Per device: parameters become varying; gradients of the device's examples; the reducer sums them; the mean
    is taken, once; optimizer; moving average. Metrics are means over the global batch, float32 []. With the
    schedule 'deferred' parameters are gathered first, and the sums, the optimizer and the average are in parts; with
    the schedule 'local' see `local_step`.

    The result is a `jax.jit` function, or used as one: `step.lower(state, batch).compile()` is the program to run or
    inspect.

    Args:
        loss_fn: a mean over examples; see `LossFn`.
        optimizer: any Optax transformation; it sees the mean gradient of the global batch, so clipping by
            global norm means what it says. With the schedule 'deferred' it sees a device's parts, so it must act
            element by element, or know of the parts as `make_optimizer(..., parts)` does. With 'local' it sees the
            gradient of a device's own examples, and is what `local_optimizer` gives.
        strategy: how gradients travel.
        mesh: axes ('host', 'device').
        options: see `StepOptions`.
        layout: of the states; the schedules 'deferred' and 'local' need it, and so do parameters that are cut over
            devices, whose loss and strategy are then those of `with_sharded` and `hybrid_strategy`.

    Raises:
        ValueError: mode 'jit' with a strategy of ours, or another mode with 'xla'; 'pmap' with several hosts;
            'pieces' with a strategy that does not sum message by message;
            'deferred' or 'local' in another mode than 'shard_map', or without a layout.
    """
    options = options or StepOptions()
    if strategy.sharded is not None:
        return _deferred(loss_fn, optimizer, strategy, mesh, options, layout)
    if strategy.averaging is not None:
        return _local(loss_fn, optimizer, strategy, mesh, options, layout)
    reducer = scheduled(strategy, options.order)
    if (options.mode == "jit") != (reducer is None):
        raise ValueError(
            f"mode {options.mode!r} does not go with strategy {strategy.name!r}: in mode 'jit' XLA reduces the "
            "gradients and the strategy is 'xla'; in the other modes the strategy is one of ours"
        )
    if reducer is None:
        step = global_step(
            *(loss_fn, optimizer, mesh_size(mesh), options.microbatches, options.average_decay),
            skip=Skip() if options.skip else None,
        )
        return jitted(step, mesh)
    if options.mode == "pieces":
        return PiecesStep(
            *(loss_fn, optimizer, strategy, mesh, options.order, options.microbatches, options.average_decay),
            skip=Skip() if options.skip else None,
        )
    axes = (DEVICE,) if options.mode == "pmap" else AXES
    devices = mesh_size(mesh) * options.ranks
    step = device_step(
        *(loss_fn, optimizer, reducer.reduce, devices, axes, options.microbatches, options.average_decay),
        together=one_message(options.all_reduce),
        skip=Skip(layout.cut_axes if layout else ()) if options.skip else None,
    )
    if options.mode == "pmap":
        return pmapped(step, mesh)
    everywhere = same_but_comm(PartitionSpec(), PartitionSpec(HOST, DEVICE))
    return shard_mapped(step, mesh, layout.specs if layout and layout.cut_axes else everywhere)


def _deferred(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    strategy: Strategy,
    mesh: Mesh,
    options: StepOptions,
    layout: Layout | None,
) -> jax.stages.Wrapped:
    shards = scheduled_parts(strategy, options.order)
    if options.mode != "shard_map" or layout is None or shards is None:
        raise ValueError(f"strategy {strategy.name!r} carries parts: it takes mode 'shard_map' and a layout")
    shapes = layout.whole_shapes.params
    step = device_step(
        *(loss_fn, optimizer, lambda grads, state: (shards.scatter(grads), state), mesh_size(mesh), AXES),
        *(options.microbatches, options.average_decay),
        gather=lambda parts: shards.gather(parts, shapes),
        skip=Skip(AXES) if options.skip else None,
    )
    return shard_mapped(step, mesh, layout.specs)


def _local(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    strategy: Strategy,
    mesh: Mesh,
    options: StepOptions,
    layout: Layout | None,
) -> jax.stages.Wrapped:
    averaging, reducer = strategy.averaging, strategy.reducer
    if options.mode != "shard_map" or layout is None or averaging is None or reducer is None:
        raise ValueError(
            f"strategy {strategy.name!r} gives each device parameters of its own: it takes mode 'shard_map' and a "
            "layout"
        )
    step = local_step(
        *(loss_fn, optimizer, averaging, reducer, mesh_size(mesh), options.microbatches, options.average_decay),
        skip=Skip() if options.skip else None,
    )
    return shard_mapped(step, mesh, layout.specs)


def scheduled_parts(strategy: Strategy, order: Sequence[int] | None = None) -> Sharded | None:
    """The parts of a 'deferred' strategy, taking leaves in `order`; None for the others."""
    if strategy.sharded is None or order is None:
        return strategy.sharded
    return shards_in_order(order, strategy.sharded)
