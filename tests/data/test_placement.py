"""Batches reach the devices in order and in the right places."""

import itertools
import socket
import subprocess
import sys
from contextlib import closing

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxnet.data import Shard, Synthetic, placed, train_batches

ROWS = 16


def sharding(hosts: int = 2) -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()).reshape(hosts, -1), ("host", "device"))
    return NamedSharding(mesh, PartitionSpec(("host", "device")))


def batch(number: int) -> dict[str, np.ndarray]:
    ids = np.arange(number * ROWS, (number + 1) * ROWS, dtype=np.int32)
    return {"id": ids, "image": np.stack([ids, ids], 1).astype(np.uint8)}


def test_every_batch_comes_in_order():
    received = [jax.device_get(on_devices) for on_devices in placed(map(batch, range(7)), sharding())]
    assert len(received) == 7
    for number, got in enumerate(received):
        for key, value in batch(number).items():
            assert got[key].dtype == value.dtype
            np.testing.assert_array_equal(got[key], value)


@pytest.mark.parametrize("hosts", [1, 2, 8])
def test_rows_lie_in_the_order_of_the_devices(hosts):
    image = next(placed(map(batch, range(1)), sharding(hosts)))["image"]
    assert image.sharding == sharding(hosts)
    assert image.shape == (ROWS, 2)
    for i, device in enumerate(sharding(hosts).mesh.devices.flat):
        [shard] = [shard for shard in image.addressable_shards if shard.device == device]
        np.testing.assert_array_equal(shard.data, batch(0)["image"][2 * i : 2 * i + 2])


def test_no_batch_is_made_before_it_is_asked_for():
    made = []
    batches = placed((made.append(number) or batch(number) for number in range(3)), sharding())
    assert made == []
    next(batches)
    assert made == [0]


def test_an_error_of_the_source_comes_after_the_batches_before_it():
    def source():
        yield batch(0)
        yield batch(1)
        raise OSError("the disk is gone")

    batches = placed(source(), sharding())
    assert [int(next(batches)["id"][0]) for _ in range(2)] == [0, ROWS]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def test_rows_that_do_not_divide_among_the_devices_are_refused():
    with pytest.raises(ValueError, match="axis 0 is partitioned 8 times"):
        next(placed(iter([{"id": np.arange(3)}]), sharding()))


def test_closing_it_closes_the_source():
    closed = []

    def source():
        try:
            yield from map(batch, itertools.count())
        finally:
            closed.append(True)

    still_referred_to = source()
    with closing(placed(still_referred_to, sharding())) as batches:
        next(batches)
    assert closed
    assert list(batches) == []


@pytest.mark.parametrize("readers", [1, 2])
def test_training_batches_arrive_whole(readers):
    source = Synthetic(image_shape=(4, 4, 1), num_train=20).load("train")
    options = {"batch_size": ROWS, "seed": 0, "shard": Shard(0, 1)}
    expected = list(itertools.islice(train_batches(source, **options), 5))
    with closing(placed(train_batches(source, threads=readers, **options), sharding())) as batches:
        for want in expected:
            got = next(batches)
            assert got.keys() == want.keys()
            for key in want:
                np.testing.assert_array_equal(got[key], want[key])


PROCESS = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from contextlib import closing
from jaxnet.data import Shard, Synthetic, placed, train_batches
index, address = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, 2, index)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("host", "device"))
sharding = NamedSharding(mesh, PartitionSpec(("host", "device")))
everywhere = jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))
source = Synthetic(image_shape=(4, 4, 1), num_train=20).load("train")
batches = train_batches(source, batch_size=12, seed=0, shard=Shard(index, 2))
with closing(placed(batches, sharding)) as on_devices:
    for _ in range(4):
        batch = next(on_devices)
        assert batch["image"].shape == (12, 4, 4, 1)
        assert {shard.data.shape for shard in batch["image"].addressable_shards} == {(3, 4, 4, 1)}
        whole = jax.device_get(everywhere(batch))
        np.testing.assert_array_equal(whole["image"], source.image[whole["id"]])
        print("batch", *whole["id"])
jax.distributed.shutdown()
"""


@pytest.mark.processes
def test_two_processes_make_the_batches_of_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", PROCESS, str(index), address], **pipes) for index in range(2)]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    source = Synthetic(image_shape=(4, 4, 1), num_train=20).load("train")
    batches = train_batches(source, batch_size=12, seed=0, shard=Shard(0, 1))
    expected = [" ".join(["batch", *map(str, one["id"])]) for one in itertools.islice(batches, 4)]
    for out, err in outputs:  # Gloo prints lines of its own
        assert [line for line in out.splitlines() if line.startswith("batch")] == expected, err
