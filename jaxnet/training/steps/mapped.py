"""One device's step, or one for all, as a program of a mesh: by shard_map, by jit alone, or by pmap."""

from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from jaxnet.comm import (
    AXES,
    DEVICE,
    HOST,
    compiler_options,
    one_per_device,
    replicated,
    split_by_example,
)
from jaxnet.models import network_options
from jaxnet.training.loss import Batch, PyTree
from jaxnet.training.steps.device_step import Metrics, StepFn
from jaxnet.training.steps.layout import OWN
from jaxnet.training.steps.state import TrainState


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
