"""Checkpoints of several real processes in one directory, and of processes killed while they save."""

import contextlib
import hashlib
import logging
import random
import re
import time

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from jaxnet.checkpoints import Checkpointer
from jaxnet.errors import InputError
from jaxnet.training.stopping import StopSignal
from support.checkpointing import flip_a_bit, largest_file, like, mesh_of, on
from support.ranks import Ranks

pytestmark = pytest.mark.processes


def mesh():
    return mesh_of(jax.process_count(), jax.local_device_count())


def host_state(step, size=1000):
    draw = np.random.default_rng(step)
    return {
        "params": {"w": draw.normal(size=size).astype(np.float32), "half": np.arange(5).astype("bfloat16")},
        "residual": draw.normal(size=(8, size)).astype(np.float32),
        "step": np.int32(step),
        "key": np.array([step, 7], np.uint32),
    }


def state_of(step, size=1000):
    return on(mesh(), host_state(step, size))


def wanted(size=1000):
    return like(mesh(), host_state(0, size))


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
    checkpoints = Checkpointer(directory)
    for step in map(int, steps):
        checkpoints.save(step, state_of(step), extra={"next_step": step + 1})
    checkpoints.close()
    return checkpoints.steps()


def restore(rank, directory):
    """What was restored, and the warnings; then the next step is saved over the one that was set aside."""
    warnings = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("jaxnet").addHandler(handler)
    try:
        checkpoints = Checkpointer(directory)
        restored = checkpoints.restore_latest(wanted())
    except InputError as error:
        return [None, None, [str(error)]]
    finally:
        logging.getLogger("jaxnet").removeHandler(handler)
    checkpoints.save(30, state_of(30), extra={})
    checkpoints.close()
    return [restored.step, restored.extra, is_state_of(restored.state, restored.step), warnings]


def restore_each(rank, directory):
    """`restore` in each of `PREPARED`, and what a process is told that opens a directory of its own."""
    restored = {name: restore(rank, f"{directory}/{name}") for name in PREPARED}
    return restored | {"not shared": open_own_directory(rank, f"{directory}/not shared")}


def test_two_processes_save_and_one_or_two_restore(tmp_path):
    with Ranks(save_steps, 2, str(tmp_path), "10", "20") as ranks:
        assert ranks.results() == [[10, 20], [10, 20]]
    written = digest(tmp_path / "000020")
    assert any((tmp_path / "000020").rglob("ocdbt.process_1/d/*"))  # each has written a part
    with Ranks(restore, 2, str(tmp_path)) as ranks:
        assert ranks.results() == [[20, {"next_step": 21}, True, []]] * 2
    with contextlib.closing(Checkpointer(tmp_path)) as alone:
        assert is_state_of(alone.restore(20, wanted()).state, 20)  # eight devices here, two in each of theirs
    assert digest(tmp_path / "000020") == written


# What one process saved, by the name of the directory: the steps, and what was done to the last of them.
PREPARED = {
    "sound": (["10"], lambda step: None),
    "damaged": (["10", "20", "30"], lambda step: flip_a_bit(largest_file(step))),
    "no manifest": (["10"], lambda step: (step / "manifest.json").unlink()),
    "a directory as manifest": (
        ["10"],
        lambda step: ((step / "manifest.json").unlink(), (step / "manifest.json").mkdir()),
    ),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The folder of all these directories, and what two processes, started once, restored from each."""
    folder = tmp_path_factory.mktemp("prepared")
    for name, (steps, harm) in PREPARED.items():
        save_steps(0, folder / name, *steps)
        harm(folder / name / f"{int(steps[-1]):06d}")
    victim = largest_file(folder / "damaged/000030").name
    with Ranks(restore_each, 2, str(folder)) as ranks:
        first, second = ranks.results()
    return folder, {name: [first[name], second[name]] for name in first}, victim


def test_one_process_saves_and_two_restore(prepared):
    _, restored, _ = prepared
    assert restored["sound"] == [[10, {"next_step": 11}, True, []]] * 2


def test_all_processes_pass_over_the_same_damaged_step(prepared):
    folder, restored, victim = prepared
    (*first, warnings), (*second, others) = restored["damaged"]
    assert first == second == [20, {"next_step": 21}, True]
    assert len(warnings) == 1
    assert victim in warnings[0]
    assert others == []
    with contextlib.closing(Checkpointer(folder / "damaged")) as alone:
        assert is_state_of(alone.restore(30, wanted()).state, 30)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no manifest", "step 10: manifest.json is missing"),
        ("a directory as manifest", "step 10: manifest.json cannot be read: it is a directory, wanted a file"),
    ],
)
def test_all_processes_report_that_nothing_can_be_used(prepared, name, said):
    _, restored, _ = prepared
    (_, _, [first]), (_, _, [second]) = restored[name]
    assert first == second
    assert said in first


def open_own_directory(rank, directory):
    try:
        Checkpointer(f"{directory}/{rank}")
    except InputError as error:
        return str(error)
    return None


def test_directories_that_are_not_shared_are_refused(prepared):
    folder, restored, _ = prepared
    for rank, error in enumerate(restored["not shared"]):
        assert f"{folder}/not shared/{rank} is not shared: process 1 does not see what process 0 writes" in error


def save_when_told(rank, directory):
    checkpoints = Checkpointer(directory)
    restored = checkpoints.restore_latest(wanted())
    start = restored.step if restored else 0
    with StopSignal() as stop:
        for step in range(start + 1, 100_000):
            jax.block_until_ready(multihost_utils.process_allgather(np.int32(step)))
            if step == start + 5:
                print("stepping", flush=True)
            if stop.should_stop(step):
                checkpoints.save(step, state_of(step), extra={})
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
    """Restores, then saves without end; prints whether that was well, and each step after its `wait`."""
    checkpoints = Checkpointer(directory, keep=2)
    restored = checkpoints.restore_latest(wanted(SIZE))
    step = restored.step if restored else 0
    good = restored is None or is_state_of(restored.state, step, SIZE)
    print("restored", step, good, flush=True)
    while True:
        step += 1
        checkpoints.save(step, state_of(step, SIZE), extra={})
        if step % 3 == 0:
            checkpoints.wait()
            print("waited", step, flush=True)


def kill_while_saving(directory, processes, rounds, seed):
    """The step restored in each round, which is compared with what was promised before it.

    One process is killed at a random time, the others a bit later: a survivor must not finish a step alone.
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


@pytest.mark.parametrize(
    ("processes", "rounds", "seed"),
    [
        (1, 3, 1),
        pytest.param(1, 6, 3, marks=pytest.mark.slow),
        pytest.param(2, 5, 4, marks=pytest.mark.slow),
    ],
)
def test_a_kill_at_any_time_leaves_the_last_promised_step(tmp_path, processes, rounds, seed):
    steps = kill_while_saving(tmp_path, processes, rounds, seed)
    assert steps == sorted(steps)
    assert not (tmp_path / "damaged").exists()
