"""Shards of stacked leaves: those of each member by itself, side by side, in as few messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxnet import comm

MEMBERS = 3
SHAPES = [(2, 5), (7,), (), (0, 4), (8,)]
STAGES = {"two": ("device", "host"), "one": (("host", "device"),)}


def tree(device):
    draw = np.random.default_rng(device)
    return [jnp.array(draw.integers(-9, 9, (MEMBERS, *shape)), jnp.float32) for shape in SHAPES]


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("bucket", [None, 64], ids=["one_message", "buckets"])
def test_shards_are_those_of_each_member_and_gather_to_the_sum(stages, bucket):
    mesh = comm.make_mesh(2, jax.devices()[:6])
    inner = comm.sharded(*STAGES[stages], bucket_bytes=bucket)
    ours = comm.stacked_shards(inner)
    values = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[tree(device) for device in range(6)])
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), values)

    def on_device(values):
        own = jax.tree.map(lambda leaf: leaf[0], values)
        shards = ours.scatter(own)
        members = [[leaf[index] for leaf in own] for index in range(MEMBERS)]
        alone = [inner.scatter(member) for member in members]
        wanted = [jnp.stack(each) for each in zip(*alone, strict=True)]
        same = [jnp.array_equal(a, b) for a, b in zip(shards, wanted, strict=True)]
        sums = ours.gather(shards, shapes)
        same += [jnp.array_equal(a, b) for a, b in zip(ours.split(sums), shards, strict=True)]
        return sums, jnp.stack(same)[None]

    spec = P(("host", "device"))
    sums, same = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=(P(), spec)))(values)
    assert same.all()
    for got, wanted in zip(sums, values, strict=True):
        np.testing.assert_array_equal(got, wanted.sum(0))


def test_the_messages_of_all_members_are_as_many_as_those_of_one():
    sizes = {"host": 2, "device": 3}
    inner = comm.sharded("device", "host", bucket_bytes=None)
    one = [jax.ShapeDtypeStruct(shape, "float32") for shape in SHAPES]
    all_of_them = [leaf.update(shape=(MEMBERS, *leaf.shape)) for leaf in one]
    single, together = inner.plan(one, sizes), comm.stacked_shards(inner).plan(all_of_them, sizes)
    assert [c.kind for c in together.collectives] == [c.kind for c in single.collectives]
    assert [c.elements for c in together.collectives] == [MEMBERS * c.elements for c in single.collectives]
