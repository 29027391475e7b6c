"""What all timed steps share: the arrays that they start from, on the mesh, and their optimizer."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxnet.comm import DEVICE, HOST, Reducer, one_per_device, replicated, split_by_example
from jaxnet.cost.workloads import Params, Workload

PyTree = Any

LEARNING_RATE = 1e-3  # small: a thousand steps change little, so every round times the same numbers


def updated(params: Params, sums: Params, devices: int) -> Params:
    """SGD with the mean of `devices` gradients."""
    return jax.tree.map(lambda p, total: p - LEARNING_RATE * (total / devices), params, sums)


def params_of(workload: Workload, mesh: Mesh) -> Params:
    """Parameters, whole on every device."""
    return [placed(leaf, replicated(mesh)) for leaf in workload.initial()]


def gradients_of(workload: Workload, mesh: Mesh) -> PyTree:
    """Stand-ins, [hosts, devices, ...]: of the parameters' own size, so that a codec has something to encode."""
    sizes = (mesh.shape[HOST], mesh.shape[DEVICE])
    return [placed(np.broadcast_to(leaf, (*sizes, *leaf.shape)), one_per_device(mesh)) for leaf in workload.initial()]


def batch_of(workload: Workload, mesh: Mesh) -> jax.Array:
    """Examples of all hosts."""
    shape = (workload.sizes.batch * mesh.shape[HOST], *workload.sizes.example)
    return placed(np.random.default_rng(1).standard_normal(shape, np.float32), split_by_example(mesh))


def comm_state_of(reducer: Reducer, shapes: PyTree, mesh: Mesh) -> PyTree:
    """The state of a reducer of values of these shapes, [hosts, devices, ...]."""
    sizes = (mesh.shape[HOST], mesh.shape[DEVICE])
    state = jax.tree.map(np.asarray, reducer.init(shapes, mesh.shape))
    return jax.tree.map(lambda leaf: placed(np.broadcast_to(leaf, (*sizes, *leaf.shape)), one_per_device(mesh)), state)


def placed(value: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array on the mesh, of which every process has the whole in memory."""
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
