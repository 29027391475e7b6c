"""Batches reach the devices in order and in the right places, and the thread that moves them always ends."""

import gc
import itertools
import socket
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxnet.data import DevicePrefetch, Shard, Synthetic, train_batches

ROWS = 16


def sharding(hosts: int = 2) -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()).reshape(hosts, -1), ("host", "device"))
    return NamedSharding(mesh, PartitionSpec(("host", "device")))


def batch(number: int) -> dict[str, np.ndarray]:
    ids = np.arange(number * ROWS, (number + 1) * ROWS, dtype=np.int32)
    return {"id": ids, "image": np.stack([ids, ids], 1).astype(np.uint8)}


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "device-prefetch"]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    gc.collect()
    assert not threads()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_every_batch_comes_in_order(depth):
    with DevicePrefetch(map(batch, range(7)), sharding(), depth) as batches:
        received = [jax.device_get(on_devices) for on_devices in batches]
    assert len(received) == 7
    for number, got in enumerate(received):
        for key, value in batch(number).items():
            assert got[key].dtype == value.dtype
            np.testing.assert_array_equal(got[key], value)


@pytest.mark.parametrize("hosts", [1, 2, 8])
def test_rows_lie_in_the_order_of_the_devices(hosts):
    with DevicePrefetch(map(batch, range(1)), sharding(hosts)) as batches:
        image = next(batches)["image"]
    assert image.sharding == sharding(hosts)
    assert image.shape == (ROWS, 2)
    for i, device in enumerate(sharding(hosts).mesh.devices.flat):
        [shard] = [shard for shard in image.addressable_shards if shard.device == device]
        np.testing.assert_array_equal(shard.data, batch(0)["image"][2 * i : 2 * i + 2])


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_batches_are_made_ahead(depth):
    asked, ahead = 0, []

    def source():
        for number in range(20):
            ahead.append(number + 1 - asked)
            yield batch(number)

    with DevicePrefetch(source(), sharding(), depth) as batches:
        for _ in range(20):
            asked += 1
            next(batches)
    assert max(ahead) <= depth


def test_it_runs_ahead_without_being_asked():
    made = threading.Semaphore(0)

    def source():
        for number in itertools.count():
            yield batch(number)
            made.release()  # when the next is asked for: this one is on the devices

    with DevicePrefetch(source(), sharding(), depth=3):
        assert all(made.acquire(timeout=60) for _ in range(2))


def test_an_error_of_the_source_comes_after_the_batches_before_it():
    def source():
        yield batch(0)
        yield batch(1)
        raise OSError("the disk is gone")

    batches = DevicePrefetch(source(), sharding())
    assert [int(next(batches)["id"][0]) for _ in range(2)] == [0, ROWS]
    for _ in range(2):  # an error is not an end: it does not turn into one
        with pytest.raises(OSError, match="the disk is gone"):
            next(batches)
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)


def test_an_error_of_the_transfer_reaches_the_reader():
    three_rows = DevicePrefetch(iter([{"id": np.arange(3)}]), sharding())
    with three_rows as batches, pytest.raises(ValueError, match="implies that array axis 0 is partitioned 8"):
        next(batches)


def test_after_the_last_batch_it_stays_at_its_end():
    batches = DevicePrefetch(map(batch, range(1)), sharding())
    next(batches)
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(batches)
    batches.close()


def test_closing_ends_the_thread_and_the_source():
    closed = threading.Event()

    def source():
        try:
            yield from map(batch, itertools.count())
        finally:
            closed.set()

    still_referred_to = source()
    batches = DevicePrefetch(still_referred_to, sharding())
    next(batches)
    batches.close()
    assert not threads()
    assert closed.is_set()
    with pytest.raises(StopIteration):
        next(batches)
    batches.close()


@pytest.mark.parametrize("outcome", ["a batch", "an error"])
def test_closing_while_a_batch_is_made_waits_for_it_and_drops_it(outcome):
    proceed = threading.Event()

    def source():
        yield batch(0)
        proceed.wait(60)
        if outcome == "an error":
            raise OSError("too late to matter")
        yield batch(1)

    batches = DevicePrefetch(source(), sharding())
    next(batches)
    closing = threading.Thread(target=batches.close)
    closing.start()
    with pytest.raises(StopIteration):
        next(batches)  # waits until it is closed
    assert threads()
    proceed.set()
    closing.join(60)
    assert not closing.is_alive()
    assert not threads()
    with pytest.raises(StopIteration):
        next(batches)


def test_dropping_it_ends_the_thread():
    batches = DevicePrefetch(map(batch, itertools.count()), sharding())
    next(batches)
    [thread] = threads()
    del batches
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_waiting_is_counted_and_the_count_can_be_set_back():
    proceed = threading.Event()

    def source():
        proceed.wait(60)
        yield batch(0)

    with DevicePrefetch(source(), sharding()) as batches:
        assert batches.wait_seconds == 0
        proceed.set()
        next(batches)
        first = batches.wait_seconds
        with pytest.raises(StopIteration):
            next(batches)
        assert batches.wait_seconds > first > 0
        batches.wait_seconds = 0.0
        with pytest.raises(StopIteration):
            next(batches)
        assert batches.wait_seconds > 0


def test_a_depth_of_nothing_is_refused():
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        DevicePrefetch(iter([]), sharding(), depth=0)


@pytest.mark.parametrize("readers", [1, 2])
def test_training_batches_arrive_whole(readers):
    source = Synthetic(image_shape=(4, 4, 1), num_train=20).load("train")
    options = {"batch_size": ROWS, "seed": 0, "shard": Shard(0, 1)}
    expected = list(itertools.islice(train_batches(source, **options), 5))
    with DevicePrefetch(train_batches(source, threads=readers, **options), sharding()) as batches:
        for want in expected:
            got = next(batches)
            assert got.keys() == want.keys()
            for key in want:
                np.testing.assert_array_equal(got[key], want[key])


LEAVE = """
import itertools, sys
import jax, numpy as np
from jaxnet.data import DevicePrefetch
jax.config.update("jax_platforms", "cpu")
sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
batches = DevicePrefetch(({"id": np.zeros(4)} for _ in itertools.count()), sharding)
next(batches)
if sys.argv[1] == "error":
    raise RuntimeError("on the way out")
"""


@pytest.mark.processes
@pytest.mark.parametrize(("how", "status"), [("end", 0), ("error", 1)])
def test_the_interpreter_can_be_left_at_any_time(how, status):
    done = subprocess.run([sys.executable, "-c", LEAVE, how], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    assert ("on the way out" in done.stderr) == (how == "error")


PROCESS = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxnet.data import DevicePrefetch, Shard, Synthetic, train_batches
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
with DevicePrefetch(batches, sharding) as on_devices:
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
