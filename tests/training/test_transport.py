"""What transport=mpi takes and what it refuses, without MPI."""

import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import train
from configs import digits
from jaxnet import comm
from jaxnet.cluster import start
from jaxnet.comm import STRATEGIES, named_strategy, takes_all_reduce
from jaxnet.comm import mpi as by_ranks
from jaxnet.config.file import load_config
from jaxnet.data import Shard
from jaxnet.errors import InputError
from jaxnet.training.prepare import prepare
from jaxnet.training.processes import join
from support.refusals import DIGITS, refused

ABLE = ["per_leaf", "flat", "caffe2", "ddp", "horovod", "mg_wfbp", "priority", "hierarchical", "fp16"]
SHAPES = {"w": jax.ShapeDtypeStruct((40, 25), "float32"), "b": jax.ShapeDtypeStruct((7,), "float32")}


def config_of(*overrides):
    return load_config(DIGITS, "transport=mpi", *overrides)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_whose_stage_across_hosts_is_an_all_reduce_take_another(name):
    assert takes_all_reduce(name) == (name in ABLE)
    if name in ABLE:
        assert config_of(f"strategy={name}").transport == "mpi"
        return
    with pytest.raises(ValueError, match="no all-reduce across hosts"):
        named_strategy(name, all_reduce=comm.all_reduce)
    with pytest.raises(InputError, match=f"^strategy={name} does not go with transport=mpi.*: {', '.join(ABLE)}$"):
        config_of(f"strategy={name}")


class TwoRanks:
    """In place of the ranks of mpirun."""

    rank, size = 0, 2

    def __init__(self, communicator):
        del communicator


@pytest.mark.parametrize("name", ABLE)
def test_by_mpi_a_device_sends_what_it_would_send_by_xla(name, monkeypatch):
    monkeypatch.setattr(by_ranks, "Communicators", TwoRanks)
    by_mpi = named_strategy(name, all_reduce=comm.mpi_all_reduce).reducer.plan(SHAPES, {"host": 1, "device": 4})
    by_xla = named_strategy(name).reducer.plan(SHAPES, {"host": 2, "device": 4})
    assert {c.transport for c in by_mpi.collectives if "host" in c.axes} == {"mpi"}
    assert {c.transport for c in by_mpi.collectives if "host" not in c.axes} == {"xla"}
    assert len(by_mpi.buckets.buckets) == len(by_xla.buckets.buckets)
    sent = comm.wire_bytes_per_axis(by_mpi.collectives)
    assert set(sent) == {"device", "host"}
    whole = sum(bucket.padded for bucket in by_mpi.buckets.buckets) * (2 if name == "fp16" else 4)
    # Reduce-scatter and all-gather of 3/4 inside; across, of the last quarter both halves, or up and down a tree.
    assert sent["device"] == 2 * 3 * whole // 4
    assert sent["host"] in (whole // 4, 2 * whole // 4)


def test_what_would_sum_over_the_mesh_of_one_rank_is_refused():
    for overrides, words in {
        ("strategy=xla",): "strategy=xla does not go with transport=mpi",
        ("mode=pmap",): "mode=pmap does not go with transport=mpi",
        ("mode=jit", "strategy=flat"): "mode=jit does not go with transport=mpi",
        ("batch_norm=global",): "batch_norm=global does not go with transport=mpi",
        ("hosts=2",): "hosts=2 does not go with transport=mpi",
    }.items():
        with pytest.raises(InputError, match=f"^{words}"):
            config_of(*overrides)
    assert config_of("hosts=1", "batch_norm=host").hosts == 1


def test_on_a_mesh_of_its_own_a_rank_still_reads_its_part_of_a_batch(monkeypatch):
    ranks = SimpleNamespace(index=1, count=2)
    monkeypatch.setattr(start, "_started", start.Cluster(1, 2, "mpi", mpi=ranks))
    joined = join(config_of("strategy=flat"), comm.make_mesh(1, jax.devices()[:2]))
    assert joined.shard == Shard(1, 2)
    assert not joined.primary


def test_a_transport_that_there_is_not_is_refused():
    with pytest.raises(InputError, match="transport=tcp: wanted one of xla, mpi"):
        load_config(DIGITS, "transport=tcp")


def test_a_mesh_of_several_hosts_is_refused():
    with pytest.raises(InputError, match="a mesh of one host in each process, and this has 2"):
        prepare(config_of(), comm.make_mesh(2), source=digits.get_config().data.load("train"))


def test_mpi4jax_that_is_missing_is_named_with_its_remedy(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("jaxnet.cluster.start._started", None)
    monkeypatch.setitem(sys.modules, "mpi4jax", None)
    workdir = tmp_path / "run"
    message = refused(lambda: train.main(["--config", DIGITS, "--workdir", str(workdir), "transport=mpi"]), capsys)
    assert message.startswith("transport=mpi: the MPI transport needs mpi4jax, and it cannot be loaded")
    assert message.endswith("with 'make install-mpi'")
    assert not workdir.exists()


def test_any_all_reduce_can_be_given():
    """One of our own, in the place of XLA's: the same sums."""
    asked = []

    def own(*axes):
        asked.append(axes)
        return comm.scattered("device", comm.scattered("host", comm.all_reduce()))

    mesh = comm.make_mesh(2)
    reducer = named_strategy("flat", all_reduce=own).reducer
    values = {name: jnp.arange(8.0 * s.size).reshape(8, *s.shape) for name, s in SHAPES.items()}

    def body(values):
        values = jax.tree.map(lambda leaf: leaf[0], values)
        return reducer.reduce(values, reducer.init(values, mesh.shape))[0]

    spec = jax.sharding.PartitionSpec
    sums = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec(comm.AXES), out_specs=spec()))(values)
    assert asked == [comm.AXES]
    assert all(bool((sums[name] == value.sum(0)).all()) for name, value in values.items())
