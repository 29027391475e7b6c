"""Encoded messages between real processes: Gloo moves every type that a codec sends."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import AXES, all_reduce, bucketed, codecs, compressed, compressed_scattered, powersgd
from support import laws
from support.laws import PER_DEVICE, run_reducer
from support.ranks import Ranks

CODECS = {
    "float16": codecs.float16,
    "bfloat16": codecs.bfloat16,
    "int8": codecs.int8(16),
    "one_bit": codecs.one_bit(16),
    "two_bit": codecs.two_bit(0.8),
    "top_k": codecs.top_k(0.1),
}
REDUCERS = {
    **{f"{name} gathered": bucketed(compressed(*AXES, codec=codec), 160) for name, codec in CODECS.items()},
    **{f"{name} scattered": bucketed(compressed_scattered(*AXES, codec=codec), 160) for name, codec in CODECS.items()},
    "powersgd": powersgd(1, bucketed(all_reduce(*AXES), None), factors=all_reduce(*AXES)),
}


def gradients():
    return {"kernel": np.random.RandomState(0).standard_normal((2, 2, 8, 10)).astype(np.float32)}


def sums_of_this_rank(rank):
    """What this process gets from every reducer over all devices of all processes."""
    mesh = comm.make_mesh(2)
    sharding = comm.one_per_device(mesh)
    sums = {}
    for name, reducer in REDUCERS.items():
        given, state = jax.tree.map(
            lambda v: jax.make_array_from_callback(v.shape, sharding, lambda index: v[index]),
            (gradients(), laws.stacked_state(reducer, mesh, gradients())),
        )
        mapped = jax.shard_map(
            laws.body(reducer), mesh=mesh, in_specs=(PER_DEVICE, PER_DEVICE), out_specs=(P(), PER_DEVICE)
        )
        total, _ = jax.jit(mapped, compiler_options=comm.compiler_options("cpu"))(given, state)
        sums[name] = np.asarray(total["kernel"].addressable_data(0)).tolist()
    return sums


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_get_the_same_sums_as_one():
    with Ranks(sums_of_this_rank, 2) as ranks:
        first, second = ranks.results()
    assert first == second
    for name, reducer in REDUCERS.items():
        alone, _ = run_reducer(reducer, comm.make_mesh(2, jax.devices()[:4]), gradients())
        np.testing.assert_allclose(first[name], alone["kernel"], rtol=1e-5, atol=1e-5, err_msg=name)
