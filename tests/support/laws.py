"""Run a reducer on values that differ by device, and draw random trees for it."""

from typing import NamedTuple

import jax
import numpy as np
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from jaxnet import comm

PER_DEVICE = P("host", "device")


def body(reducer):
    """What one device runs: drop the leading [1, 1], reduce, put it back on the state."""

    def reduce(values, state):
        local = jax.tree.map(lambda v: v[0, 0], (values, state))
        sums, state = reducer.reduce(*local)
        return sums, jax.tree.map(lambda s: s[None, None], state)

    return reduce


def stacked_state(reducer, mesh, values):
    """The first state of every device, leading dims [hosts, devices]."""
    shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[2:], v.dtype), values)
    state = reducer.init(shapes, mesh.shape)
    dims = tuple(mesh.shape.values())
    return jax.tree.map(lambda s: np.broadcast_to(s, dims + s.shape), state)


def lowered(reducer, mesh, values, gather=False):
    reduce = body(reducer)

    def step(values, state):
        sums, state = reduce(values, state)
        if gather:
            sums = jax.tree.map(lambda s: jax.lax.pcast(s, comm.AXES, to="varying")[None, None], sums)
        return sums, state

    out = PER_DEVICE if gather else P()
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(PER_DEVICE, PER_DEVICE), out_specs=(out, PER_DEVICE))
    options = comm.compiler_options("cpu")
    return jax.jit(mapped, compiler_options=options).lower(values, stacked_state(reducer, mesh, values))


def run_reducer(reducer, mesh, values, gather=False):
    """Reduce `values`, whose leading dims are [hosts, devices]; with `gather`, every device's result."""
    compiled = lowered(reducer, mesh, values, gather).compile()
    return jax.device_get(compiled(values, stacked_state(reducer, mesh, values)))


class Trees(NamedTuple):
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    seed: int

    def values(self, mesh_shape):
        draw = np.random.RandomState(self.seed)
        leaves = [
            draw.randint(-4, 5, (*mesh_shape, *shape)).astype(dtype)
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        return {f"leaf_{index}": leaf for index, leaf in enumerate(leaves)}


def trees(max_leaves=5):
    """Trees of leaves with zero to three dims, sizes from nothing to a few dozen, in mixed dtypes."""
    shape = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    dtype = st.sampled_from(["float32", "float16"])
    leaves = st.lists(st.tuples(shape, dtype), min_size=1, max_size=max_leaves)
    return st.builds(
        lambda leaves, seed: Trees(tuple(s for s, _ in leaves), tuple(d for _, d in leaves), seed),
        leaves,
        st.integers(0, 2**16),
    )


def reducer_of(name):
    """What the strategy's step runs; a sum in shards is gathered at once."""
    scheduled = comm.scheduled(comm.named_strategy(name))
    return comm.during(comm.as_reducer(scheduled)) if isinstance(scheduled, comm.Sharded) else scheduled
