"""Messages that cross the end of a step: the numbers of the other schedules, on real processes."""

import hashlib
import os
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from jaxnet import Config, comm
from jaxnet.comm import all_reduce, bucketed
from jaxnet.comm import compute_device as pieces_on
from jaxnet.data import Digits
from jaxnet.models import CNN
from jaxnet.parallel.device_step import NOT_FINITE, SKIPPED
from jaxnet.training.prepare import prepare
from support import tiny
from support.ranks import Ranks

pytestmark = pytest.mark.processes

BUCKET = 2048
PLAIN = {"model": tiny.cnn, "optimizer": lambda: optax.sgd(0.1, momentum=0.9)}
CASES = {
    "adamw": {"optimizer": lambda: optax.adamw(1e-2)},
    "clipped": {"optimizer": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9))},
    "resnet": {"model": tiny.resnet, "microbatches": 2, "average_decay": 0.9},
    "lars": {"optimizer": lambda: optax.lars(0.1)},
    "no guard": {"skip": False},
}
WHOLE = comm.Strategy(bucketed(all_reduce(*comm.AXES), BUCKET, split=False), "priority")  # a leaf in one message
STEPS = 6


def trained(strategy, mode, hosts, **case):
    """Losses of six steps, what the guard said of each, and the last state."""
    case = {**PLAIN, **case}
    size = None if strategy == "flat" or not isinstance(strategy, str) else BUCKET
    setup = tiny.setup(case.pop("model")(), strategy, (hosts, 1), size, case.pop("optimizer")(), mode=mode, **case)
    step = setup.step.lower(setup.state, tiny.batch(0)).compile()
    state, losses, said = setup.state, [], []
    for index in range(STEPS):
        state, metrics = step(state, jax.device_put(tiny.batch(index), comm.split_by_example(setup.mesh)))
        losses.append(float(metrics["loss"]))
        said.append((float(metrics.get(SKIPPED, 0)), np.asarray(metrics.get(NOT_FINITE, ())).tolist()))
    return losses, said, [np.asarray(leaf.addressable_data(0)) for leaf in jax.tree.leaves(state._replace(comm=()))]


def digest(leaves):
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


def in_pieces(rank, strategy, cases, folder, cores):
    """For each case, the losses, what the guard said and the bits of the state; rank 0 leaves the state in a file."""
    if cores == "one core":
        os.setsid()  # a session of its own shares the core fairly with the other tests
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        pieces_on._gets_the_core = lambda: True
        assert pieces_on.compute_device(comm.make_mesh()) not in jax.devices()
    strategy = {"whole leaves": WHOLE}.get(strategy, strategy)
    found = {}
    for name in cases.split(","):
        losses, said, state = trained(strategy, "pieces", jax.process_count(), **CASES[name])
        found[name] = losses, said, digest(state)
        if rank == 0:
            np.savez(f"{folder}/{name}.npz", *state)
    return found


@pytest.mark.parametrize(
    ("strategy", "count", "cases", "cores"),
    [
        ("priority", 2, "adamw,clipped", "all"),
        ("priority", 2, "adamw,resnet", "one core"),
        pytest.param("priority", 2, "resnet,lars,no guard", "all", marks=pytest.mark.slow),
        pytest.param("whole leaves", 2, "adamw", "all", marks=pytest.mark.slow),
        pytest.param("priority", 4, "clipped", "all", marks=pytest.mark.slow),
        ("hierarchical", 2, "adamw,clipped", "one core"),
    ],
)
def test_losses_and_states_are_those_of_flat(strategy, count, cases, cores, tmp_path):
    """`flat` on the devices of this process, which sums the same numbers."""
    with Ranks(in_pieces, count, strategy, cases, str(tmp_path), cores, devices=1) as ranks:
        results = ranks.results()
    for name in cases.split(","):
        losses, said, state = trained("flat", "shard_map", count, **CASES[name])
        with np.load(tmp_path / f"{name}.npz") as file:
            pieces = [file[key] for key in file.files]
        assert np.abs(np.subtract(results[0][name][0], losses)).max() < 1e-5 * losses[0], name
        assert max(np.abs(a - b).max(initial=0) for a, b in zip(pieces, state, strict=True)) < 1e-4, name
        assert all(result[name][1] == [list(of_step) for of_step in said] for result in results), name
        assert {result[name][2] for result in results} == {digest(pieces)}, name


def one_sees_nan(rank):
    """In the third of four steps one process alone has parameters that are not finite: what is said, and bits."""
    setup = tiny.setup(tiny.cnn(), "priority", (2, 1), BUCKET, optax.adamw(1e-2), mode="pieces")
    step = setup.step.lower(setup.state, tiny.batch(0)).compile()
    state, said, bits = setup.state, [], []
    for index in range(4):
        if index == 2 and rank == 1:
            state = state._replace(params=jax.tree.map(broken, state.params))
        state, metrics = step(state, jax.device_put(tiny.batch(index), comm.split_by_example(setup.mesh)))
        said.append([float(metrics[SKIPPED]), int(np.sum(np.asarray(metrics[NOT_FINITE])[1:]))])
        bits.append(
            [digest([np.asarray(leaf.addressable_data(0))]) for leaf in jax.tree.leaves(state._replace(comm=()))]
        )
    return said, bits


def broken(leaf):
    """The same array on the mesh, which in this process holds NaN."""
    own = jax.device_put(np.full(leaf.shape, np.nan, leaf.dtype), leaf.addressable_data(0).devices().pop())
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, [own])


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_in_one_process_is_skipped_in_all():
    with Ranks(one_sees_nan, 2, devices=1) as ranks:
        (said, bits), (other, _) = ranks.results()
    assert said == other
    leaves = said[2][1]
    assert leaves > 0
    assert said[:3] == [[0.0, 0], [0.0, 0], [1.0, leaves]]
    assert sum(a != b for a, b in zip(bits[1], bits[2], strict=True)) == 1  # the count of steps


def verified(rank, strategy):
    """What the compiled programs lack of the plan, and what they have besides."""
    config = Config(model=CNN(10, widths=(4, 8)), data=Digits(), epochs=1, batch_size=32, mode="pieces")
    config = replace(config, strategy=strategy, bucket_bytes=BUCKET)
    check = prepare(config, comm.make_mesh(2, jax.devices())).plan.verified().check
    return len(check.planned), check.explain() if check.missing or check.extra else ""


@pytest.mark.parametrize("strategy", ["priority", "ddp"])
def test_the_plan_is_what_the_programs_send(strategy):
    with Ranks(verified, 2, strategy, devices=1) as ranks:
        for planned, otherwise in ranks.results():
            assert planned > 3
            assert not otherwise
