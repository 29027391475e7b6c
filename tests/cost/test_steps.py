"""What is timed is what it says: whole steps train, compute alone sends nothing, communication alone only that."""

import functools

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.cost.shapes import Sizes
from jaxnet.cost.steps import communication_only, compute_only, full_step, partial_gradient
from jaxnet.cost.workloads import LEARNING_RATE, LOSSES, initial_values, named_workload, synthetic
from jaxnet.errors import InputError

# A few layers of `small`: each is compiled many times below.
LAYERS = 5
SIZES = Sizes(leaves=((16, 16),) * LAYERS, example=(16,), batch=8)
LABELS = ["xla", "per_leaf", "flat", "ddp", "hierarchical", "zero", "s_caffe_ob"]


@functools.cache
def workload(hosts=2, devices=8):
    return synthetic("small", LOSSES["small"], SIZES, comm.make_mesh(hosts, jax.devices()[:devices]))


def collectives_of(task):
    lines = task.program.as_text().splitlines()
    kinds = ("all-reduce(", "all-gather(", "reduce-scatter(", "collective-permute(", "all-to-all(")
    return [kind for line in lines for kind in kinds if kind in line]


def reference(steps):
    """Plain SGD on the whole batch, on one device."""
    params = initial_values(SIZES)
    x = np.random.default_rng(1).standard_normal((16, *SIZES.example), np.float32)
    for _ in range(steps):
        grads = jax.grad(LOSSES["small"])(params, x)
        params = [p - LEARNING_RATE * g for p, g in zip(params, grads, strict=True)]
    return params


def params_of(task):
    """Whatever the schedule keeps: a flat array a leaf, without the padding of shards."""
    return [np.ravel(leaf)[:256] for leaf in jax.tree.leaves(task.state.params)]


@pytest.mark.parametrize("label", LABELS)
def test_every_schedule_takes_the_same_steps_in_donated_memory(label):
    task = full_step(workload(), comm.named_strategy(label))
    before = jax.tree.leaves(task.state)
    task.run(3)
    assert all(leaf.is_deleted() for leaf in before)
    for got, want in zip(params_of(task), reference(3), strict=True):
        np.testing.assert_allclose(got, np.ravel(want), rtol=0, atol=1e-6)


@pytest.mark.parametrize("label", ["per_leaf", "flat"])
def test_a_step_in_pieces_takes_the_same_steps(label):
    """On one device, half of the examples of the reference."""
    alone, strategy = workload(1, 1), comm.named_strategy(label)
    whole, pieces = full_step(alone, strategy), full_step(alone, strategy, pieces=True)
    before = jax.tree.leaves(pieces.state._replace(key=()))  # which is passed on as it is
    for task in (whole, pieces):
        task.run(3)
    assert all(leaf.is_deleted() for leaf in before)
    for got, want in zip(params_of(pieces), params_of(whole), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("label", ["xla", "zero", "parameter_server", "local_sgd"])
def test_a_strategy_without_messages_of_its_own_has_no_step_in_pieces(label):
    with pytest.raises(InputError, match=rf"--strategy {label}\+pieces: .*leave \+pieces out"):
        full_step(workload(), comm.named_strategy(label), pieces=True)


def test_a_step_in_pieces_takes_one_device_a_process():
    with pytest.raises(InputError, match=r"--strategy flat\+pieces: wanted one device a process, got 8; start a proc"):
        full_step(workload(), comm.named_strategy("flat"), pieces=True)


def test_compute_only_sends_nothing_and_updates_every_leaf():
    task = compute_only(workload())
    assert collectives_of(task) == []
    task.run(1)
    for got, initial in zip(params_of(task), initial_values(SIZES), strict=True):
        assert np.abs(got - np.ravel(initial)).max() > 0


@pytest.mark.parametrize("label", ["per_leaf", "flat", "hierarchical", "zero"])
def test_communication_only_is_the_plan_and_a_mean(label):
    strategy = comm.named_strategy(label)
    task = communication_only(workload(), strategy)
    given, axis_sizes = workload(), workload().mesh.shape
    reducer = strategy.reducer
    reducer = comm.as_reducer(reducer) if isinstance(reducer, comm.Sharded) else reducer
    planned = comm.in_order(given.order, reducer).plan(given.shapes, axis_sizes).collectives
    check = comm.verify(task.program.as_text(), planned, axis_sizes)
    assert check.ok, check.explain()
    assert not check.extra
    task.run(2)
    for got, initial in zip(jax.tree.leaves(task.state), initial_values(SIZES), strict=False):
        np.testing.assert_allclose(got[1, 3], initial, rtol=1e-6)  # the mean of equal values


def test_communication_by_xla_is_its_all_reduces_alone():
    task = communication_only(workload(), comm.named_strategy("xla"))
    assert set(collectives_of(task)) == {"all-reduce("}
    task.run(2)
    for got, initial in zip(jax.tree.leaves(task.state), initial_values(SIZES), strict=True):
        np.testing.assert_allclose(got[1, 3], initial, rtol=1e-6)


def test_a_partial_gradient_gives_the_loss_and_those_gradients():
    for leaves in ((), (4, 2)):
        task = partial_gradient(workload(), leaves)
        _, results = task.program(task.state, task.batch)
        assert [result.shape[2:] for result in results] == [(), *((16, 16) for _ in leaves)]


def test_a_batch_that_cannot_be_shared():
    with pytest.raises(InputError, match="--batch 6: wanted a multiple of 4, the devices of a host"):
        named_workload("dense", comm.make_mesh(2, jax.devices()[:8]), 6)
