"""Checkpoints of several real processes in one directory, and of processes that are killed while they save."""

import hashlib
import random
import re
import time

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.ranks import Ranks

from jaxnet.errors import InputError
from jaxnet.training.checkpoints import Checkpoints
from jaxnet.training.stopping import StopSignal

pytestmark = pytest.mark.processes

ROWS = 8


def mesh():
    grid = np.array(jax.devices()).reshape(jax.process_count(), -1)
    return jax.sharding.Mesh(grid, ("host", "device"), axis_types=(AxisType.Auto,) * 2)


def host_state(step, size=1000):
    draw = np.random.default_rng(step)
    return {
        "params": {"w": draw.normal(size=size).astype(np.float32), "half": np.arange(5).astype("bfloat16")},
        "residual": draw.normal(size=(ROWS, size)).astype(np.float32),
        "step": np.int32(step),
        "key": np.array([step, 7], np.uint32),
    }


def shardings(tree):
    whole, split = NamedSharding(mesh(), P()), NamedSharding(mesh(), P(("host", "device")))
    return {name: jax.tree.map(lambda _, n=name: split if n == "residual" else whole, tree[name]) for name in tree}


def on_devices(tree):
    def place(x, sharding):
        return jax.make_array_from_callback(x.shape, sharding, lambda index: np.asarray(x)[index])

    return jax.tree.map(place, tree, shardings(tree))


def like(size=1000):
    tree = host_state(0, size)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings(tree))


def is_state_of(state, step, size=1000):
    """Whether this process's part of every leaf has the bits of that step."""
    expected = host_state(step, size)
    return all(
        np.asarray(shard.data).tobytes() == want[shard.index].tobytes()
        for leaf, want in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True)
        for shard in leaf.addressable_shards
    )


def digest(directory):
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


def save_steps(rank, directory, *steps):
    checkpoints = Checkpoints(directory)
    for step in map(int, steps):
        checkpoints.save(step, on_devices(host_state(step)), extra={"next_step": step + 1})
    checkpoints.close()
    return checkpoints.steps()


def restore(rank, directory):
    """What was restored, and the warnings; then the next step is saved over the one that was set aside."""
    import logging

    warnings = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("jaxnet").addHandler(handler)
    checkpoints = Checkpoints(directory)
    try:
        restored = checkpoints.restore_latest(like())
    except InputError as error:
        return [None, None, [str(error)]]
    checkpoints.save(30, on_devices(host_state(30)), extra={})
    checkpoints.close()
    return [restored.step, restored.extra, is_state_of(restored.state, restored.step), warnings]


def test_two_processes_save_and_one_or_two_restore(tmp_path):
    with Ranks(save_steps, 2, str(tmp_path), "10", "20") as ranks:
        assert ranks.results() == [[10, 20], [10, 20]]
    written = digest(tmp_path / "000020")
    assert "process_1" in str(written)
    with Ranks(restore, 2, str(tmp_path)) as ranks:
        assert ranks.results() == [[20, {"next_step": 21}, True, []]] * 2
    alone = Checkpoints(tmp_path)
    restored = alone.restore(20, like())    # eight devices here, two in each of theirs
    assert is_state_of(restored.state, 20)
    assert digest(tmp_path / "000020") == written
    alone.close()


def test_one_process_saves_and_two_restore(tmp_path):
    save_steps(0, tmp_path, "10")
    with Ranks(restore, 2, str(tmp_path)) as ranks:
        assert ranks.results() == [[10, {"next_step": 11}, True, []]] * 2


def test_all_processes_pass_over_the_same_damaged_step(tmp_path):
    save_steps(0, tmp_path, "10", "20", "30")
    victim = max((tmp_path / "000030/state").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with Ranks(restore, 2, str(tmp_path)) as ranks:
        (*first, warnings), (*second, others) = ranks.results()
    assert first == second == [20, {"next_step": 21}, True]
    assert len(warnings) == 1
    assert victim.name in warnings[0]
    assert others == []
    assert is_state_of(Checkpoints(tmp_path).restore(30, like()).state, 30)


def test_all_processes_report_that_nothing_can_be_used(tmp_path):
    save_steps(0, tmp_path, "10")
    (tmp_path / "000010/manifest.json").unlink()
    with Ranks(restore, 2, str(tmp_path)) as ranks:
        (_, _, [first]), (_, _, [second]) = ranks.results()
    assert first == second
    assert "step 10: manifest.json is missing" in first


def open_own_directory(rank, directory):
    try:
        Checkpoints(f"{directory}/{rank}")
    except InputError as error:
        return str(error)
    return None


def test_directories_that_are_not_shared_are_refused(tmp_path):
    with Ranks(open_own_directory, 2, str(tmp_path)) as ranks:
        for rank, error in enumerate(ranks.results()):
            assert f"{tmp_path}/{rank} is not shared: process 1 does not see what process 0 writes" in error


def save_when_told(rank, directory):
    checkpoints = Checkpoints(directory)
    restored = checkpoints.restore_latest(like())
    start = restored.step if restored else 0
    with StopSignal() as stop:
        for step in range(start + 1, 100_000):
            jax.block_until_ready(multihost_utils.process_allgather(np.int32(step)))
            if step == start + 5:
                print("stepping", flush=True)
            if stop.should_stop(step):
                checkpoints.save(step, on_devices(host_state(step)), extra={})
                checkpoints.close()
                return [start, step]
    return None


def test_a_signal_to_one_saves_the_same_step_on_all(tmp_path):
    last = 0
    for sent_to in (1, 0):
        with Ranks(save_when_told, 2, str(tmp_path)) as ranks:
            for rank in (0, 1):
                ranks.line(rank, "stepping")
            ranks.processes[sent_to].terminate()
            (first_start, first_stop), (second_start, second_stop) = ranks.results()
        assert first_start == second_start == last
        assert first_stop == second_stop
        last = first_stop


SIZE = 200_000


def save_until_killed(rank, directory):
    """Restores, then saves without end; prints the steps that `wait` has returned for, and whether all was well."""
    checkpoints = Checkpoints(directory, keep=2)
    restored = checkpoints.restore_latest(like(SIZE))
    step = restored.step if restored else 0
    good = restored is None or is_state_of(restored.state, step, SIZE)
    print("restored", step, good, flush=True)
    while True:
        step += 1
        checkpoints.save(step, on_devices(host_state(step, SIZE)), extra={})
        if step % 3 == 0:
            checkpoints.wait()
            print("waited", step, flush=True)


def kill_while_saving(directory, processes, rounds, seed):
    """The step restored in each round. A round compares it with what was promised, and ends in kills.

    One process is killed at a random time, the others a little later: a survivor must not finish a step alone.
    """
    draw, promised, steps = random.Random(seed), 0, []
    for number in range(rounds):
        with Ranks(save_until_killed, processes, str(directory)) as ranks:
            _, step, good = ranks.line(0, "restored").split()
            assert good == "True"
            assert int(step) >= promised
            steps.append(int(step))
            promised = int(ranks.line(0, "waited").split()[1])
            victim = ranks.processes[number % processes]
            for process in (victim, *ranks.processes):
                time.sleep(draw.uniform(0, 0.4))  # when the kill comes is the random variable of this test
                process.kill()
            output = ranks.processes[0].communicate()[0]
        waited = re.findall(r"^waited (\d+)\n", output, re.MULTILINE)
        promised = max([promised, *map(int, waited)])
    return steps


@pytest.mark.parametrize(("processes", "rounds"), [(1, 10), (2, 4)])
def test_a_kill_at_any_time_leaves_the_last_promised_step(tmp_path, processes, rounds):
    steps = kill_while_saving(tmp_path, processes, rounds, seed=processes)
    assert steps == sorted(steps)
    assert not (tmp_path / "damaged").exists()
