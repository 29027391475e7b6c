"""Checkpoints that rank 0 keeps for all: two processes, played by threads, each with its own mesh."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxnet.checkpoints import Checkpointer, JaxProcesses, MPIProcesses, OneWriter, Replaceable
from jaxnet.errors import InputError


class Pair:
    """The shared state of both processes; `Side(pair, index)` is the view of one."""

    def __init__(self):
        self.barrier, self.said = threading.Barrier(2, timeout=60), [None, None]


class Side:
    def __init__(self, pair, index):
        self._pair, self.index = pair, index

    def all_gather_object(self, value):
        self._pair.said[self.index] = value
        self._pair.barrier.wait()
        values = list(self._pair.said)
        self._pair.barrier.wait()
        return values

    def broadcast_object(self, make):
        value, error = None, None
        if self.index == 0:
            try:
                value = make()
            except InputError as raised:
                error = raised
        value, error = self.all_gather_object((value, error))[0]
        if error is not None:
            raise InputError(str(error))
        return value


def both(work):
    """Run `work(side)` as both processes; return what each returned, or the InputError that it raised."""
    pair = Pair()

    def one(index):
        try:
            return work(Side(pair, index))
        except InputError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(one, range(2)))


def mesh_of(side):
    return Mesh(np.array(jax.devices()[4 * side.index : 4 * side.index + 4]).reshape(1, 4), ("host", "device"))


def sharding_of(side):
    return NamedSharding(mesh_of(side), P())


STATE = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.zeros((0, 2), np.float32), "n": np.int32(7)}


def save(directory, side):
    checkpoints = OneWriter(directory, MPIProcesses(side), keep=2)
    assert checkpoints.restore_latest(STATE) is None
    for step in (1, 2, 3):
        state = jax.device_put({**STATE, "n": np.int32(step)}, sharding_of(side))
        checkpoints.save(step, state, extra={"by": side.index}, best=1)
    checkpoints.close()


def restore(directory, side):
    checkpoints = OneWriter(directory, MPIProcesses(side))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding_of(side)), STATE)
    restored = checkpoints.restore_latest(like)
    checkpoints.close()
    return restored, sharding_of(side)


def test_all_restore_on_their_own_devices_what_the_first_has_saved(tmp_path):
    assert both(partial(save, tmp_path)) == [None, None]
    for restored, sharding in both(partial(restore, tmp_path)):
        assert (restored.step, restored.extra) == (3, {"by": 0})
        for name, want in {**STATE, "n": np.int32(3)}.items():
            np.testing.assert_array_equal(restored.state[name], want)
            assert restored.state[name].sharding == sharding
    alone = Checkpointer(tmp_path)
    assert alone.steps() == [1, 2, 3]  # the newest two and the best
    alone.close()


def test_what_the_first_cannot_do_is_an_error_on_all(tmp_path):
    both(partial(save, tmp_path))
    first, second = both(partial(save, tmp_path / "000003" / "manifest.json"))
    assert isinstance(first, InputError)
    assert str(first) == str(second)
    assert "cannot be written" in str(first)


@pytest.mark.parametrize("there", [False, True])
def test_a_directory_that_not_all_see_is_refused(tmp_path, there):
    """Such as one of each host, of the same name, in which an earlier run has left something."""

    def open_elsewhere(side):
        directory = tmp_path / str(side.index) / "checkpoints"
        if there:
            directory.mkdir(parents=True)
        OneWriter(directory, MPIProcesses(side))

    for error in both(open_elsewhere):
        assert "is not shared: process 1 does not see" in str(error)


def test_what_a_checkpoint_lacks_is_made_by_all_and_is_not_zero(tmp_path):
    def without(side):
        checkpoints = OneWriter(tmp_path, MPIProcesses(side))
        checkpoints.save(1, jax.device_put(STATE, sharding_of(side)), extra={})
        checkpoints.close()

    def with_memory(side):
        ones = jax.device_put({"guess": np.ones(3, np.float32)}, sharding_of(side))
        like = jax.device_put({**STATE, "comm": ones}, sharding_of(side))
        checkpoints = OneWriter(tmp_path, MPIProcesses(side))
        anew = Replaceable("comm/", lambda: {"comm": ones})
        restored = checkpoints.restore_latest(like, replaceable=anew)
        checkpoints.close()
        return np.asarray(restored.state["comm"]["guess"]).tolist()

    assert both(without) == [None, None]
    assert both(with_memory) == [[1.0] * 3] * 2


def test_one_process_saves_the_whole_of_an_array_in_shards(tmp_path):
    mesh = Mesh(np.array(jax.devices()[:4]), ("device",))
    state = {"w": jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("device")))}
    checkpoints = OneWriter(tmp_path, JaxProcesses())
    checkpoints.save(1, state, extra={})
    restored = checkpoints.restore_latest(state)
    checkpoints.close()
    np.testing.assert_array_equal(restored.state["w"], np.arange(8))
    assert restored.state["w"].sharding == state["w"].sharding


def test_both_play_by_the_same_rules():
    assert both(lambda side: side.all_gather_object(side.index)) == [[0, 1], [0, 1]]
    with pytest.raises(InputError, match="no"):
        raise both(lambda side: side.broadcast_object(lambda: (_ for _ in ()).throw(InputError("no"))))[1]
