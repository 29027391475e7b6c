"""The algorithms made of permutes between real processes, over Gloo: every one in one start of the processes."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import all_reduce, bucketed, factored, halving_doubling, ring, rooted, scattered
from support import laws
from support.laws import PER_DEVICE, run_reducer
from support.ranks import Ranks

REDUCERS = {
    "ring": ring("host", ring("device")),
    "ring in pieces": ring("host", all_reduce("device"), piece_bytes=32),
    "halving-doubling": halving_doubling("device", halving_doubling("host")),
    "binomial": rooted("device", rooted("host")),
    "chain": rooted("device", rooted("host", tree="chain"), tree="chain"),
    "star": rooted("host", all_reduce("device"), tree="star"),
    "CB": rooted("device", rooted("host"), tree="chunked_chain", chunks=3),
    "CC": rooted("device", rooted("host", tree="chunked_chain", chunks=4), tree="chunked_chain", chunks=2),
    "CB-2 over hosts": rooted(
        "device",
        factored("host", (2,), lambda near, far: rooted(near, rooted(far), tree="chunked_chain", chunks=2)),
    ),
    "ring of roots": rooted("device", ring("host")),
    "BlueConnect over groups of hosts": scattered(
        "device", factored("host", (2,), lambda near, far: scattered(near, ring(far)))
    ),
    "torus": factored("host", (2,), lambda row, column: ring(row, ring(column, ring("device")))),
}
# These add in an order of their own, so the backend cannot change a bit.
MADE_OF_PERMUTES = {
    name for name in REDUCERS if name not in ("ring in pieces", "star", "BlueConnect over groups of hosts")
}


def gradients(hosts):
    return {"kernel": np.random.RandomState(0).standard_normal((hosts, 2, 8, 10)).astype(np.float32)}


def sums_of_this_rank(rank, hosts):
    """What this process gets from every reducer, as the bits of each of its devices."""
    mesh, values = comm.make_mesh(int(hosts)), gradients(int(hosts))
    sharding = comm.one_per_device(mesh)
    values = jax.tree.map(lambda v: jax.make_array_from_callback(v.shape, sharding, lambda index: v[index]), values)
    sums = {}
    for name, reducer in REDUCERS.items():
        reducer = bucketed(reducer, None)
        state = laws.stacked_state(reducer, mesh, values)
        mapped = jax.shard_map(
            laws.body(reducer), mesh=mesh, in_specs=(PER_DEVICE, PER_DEVICE), out_specs=(P(), PER_DEVICE)
        )
        total, _ = jax.jit(mapped, compiler_options=comm.compiler_options("cpu"))(values, state)
        shards = total["kernel"].addressable_shards
        sums[name] = [np.asarray(shard.data).view(np.int32).tolist() for shard in shards]
    return sums


@pytest.mark.processes
@pytest.mark.parametrize("hosts", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_device_of_every_process_gets_the_bits_of_one_process(hosts):
    with Ranks(sums_of_this_rank, hosts, str(hosts)) as ranks:
        results = ranks.results(timeout=300)
    values, mesh = gradients(hosts), comm.make_mesh(hosts, jax.devices()[: 2 * hosts])
    for name, reducer in REDUCERS.items():
        devices = np.array([bits for result in results for bits in result[name]], np.int32)
        assert (devices == devices[:1]).all(), name
        np.testing.assert_allclose(
            devices[0].view(np.float32), values["kernel"].sum((0, 1)), rtol=1e-5, atol=1e-5, err_msg=name
        )
        if name in MADE_OF_PERMUTES:
            alone, _ = run_reducer(bucketed(reducer, None), mesh, values)
            np.testing.assert_array_equal(devices[0], alone["kernel"].view(np.int32), err_msg=name)
