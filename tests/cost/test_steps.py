"""What is timed is what it says: whole steps train, compute alone sends nothing, communication alone only that."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.cost.shapes import Sizes
from jaxnet.cost.steps import (
    LEARNING_RATE,
    check_batch,
    communication_only,
    compute_only,
    full_step,
    order_of,
    partial_gradient,
)
from jaxnet.cost.workloads import named_workload
from jaxnet.errors import InputError

# A few layers of `small`: each is compiled many times below.
LAYERS = 5
WORKLOAD = replace(named_workload("small"), sizes=Sizes(leaves=((16, 16),) * LAYERS, example=(16,), batch=8))
LABELS = ["xla", "per_leaf", "flat", "ddp", "hierarchical", "zero", "s_caffe_ob"]


@pytest.fixture(scope="module")
def mesh():
    return comm.make_mesh(2, jax.devices()[:8])


def collectives_of(task):
    lines = task.program.as_text().splitlines()
    kinds = ("all-reduce(", "all-gather(", "reduce-scatter(", "collective-permute(", "all-to-all(")
    return [kind for line in lines for kind in kinds if kind in line]


def reference(steps):
    """Plain SGD on the whole batch, on one device."""
    params = WORKLOAD.initial()
    x = np.random.default_rng(1).standard_normal((16, *WORKLOAD.sizes.example), np.float32)
    for _ in range(steps):
        grads = jax.grad(WORKLOAD.loss)(params, x)
        params = [p - LEARNING_RATE * g for p, g in zip(params, grads, strict=True)]
    return params


def params_of(task):
    """Whatever the schedule keeps: a flat array a leaf, without the padding of parts."""
    leaves = jax.tree.leaves(task.state)[: len(WORKLOAD.shapes)]
    return [np.ravel(leaf)[:256] for leaf in leaves]


@pytest.mark.parametrize("label", LABELS)
def test_every_schedule_takes_the_same_steps_in_donated_memory(label, mesh):
    task = full_step(WORKLOAD, comm.named_strategy(label), mesh)
    before = jax.tree.leaves(task.state)
    task.run(3)
    assert all(leaf.is_deleted() for leaf in before)
    for got, want in zip(params_of(task), reference(3), strict=True):
        np.testing.assert_allclose(got, np.ravel(want), rtol=0, atol=1e-6)


@pytest.mark.parametrize("label", ["per_leaf", "flat"])
def test_a_step_in_pieces_takes_the_same_steps(label):
    """On one device, half of the examples of the reference."""
    alone = comm.make_mesh(1, jax.devices()[:1])
    strategy = comm.named_strategy(label)
    whole, pieces = full_step(WORKLOAD, strategy, alone), full_step(WORKLOAD, strategy, alone, pieces=True)
    before = jax.tree.leaves(pieces.state)
    for task in (whole, pieces):
        task.run(3)
    assert all(leaf.is_deleted() for leaf in before)
    for got, want in zip(params_of(pieces), params_of(whole), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("label", ["xla", "zero", "parameter_server", "local_sgd"])
def test_a_strategy_without_messages_of_its_own_has_no_step_in_pieces(label, mesh):
    with pytest.raises(InputError, match=rf"--strategy {label}\+pieces: .*leave \+pieces out"):
        full_step(WORKLOAD, comm.named_strategy(label), mesh, pieces=True)


def test_a_step_in_pieces_takes_one_device_a_process(mesh):
    with pytest.raises(InputError, match=r"--strategy flat\+pieces: wanted one device a process, got 8; start a proc"):
        full_step(WORKLOAD, comm.named_strategy("flat"), mesh, pieces=True)


def test_compute_only_sends_nothing_and_updates_every_leaf(mesh):
    task = compute_only(WORKLOAD, mesh)
    assert collectives_of(task) == []
    task.run(1)
    for got, initial in zip(params_of(task), WORKLOAD.initial(), strict=True):
        assert np.abs(got - np.ravel(initial)).max() > 0


@pytest.mark.parametrize("label", ["per_leaf", "flat", "hierarchical", "zero"])
def test_communication_only_is_the_plan_and_a_mean(label, mesh):
    strategy = comm.named_strategy(label)
    task = communication_only(WORKLOAD, strategy, mesh)
    planned = comm.in_order(order_of(WORKLOAD), strategy.reducer).plan(WORKLOAD.shapes, mesh.shape).collectives
    check = comm.verify(task.program.as_text(), planned, mesh.shape)
    assert check.ok, check.explain()
    assert not check.extra
    task.run(2)
    for got, initial in zip(jax.tree.leaves(task.state), WORKLOAD.initial(), strict=False):
        np.testing.assert_allclose(got[1, 3], initial, rtol=1e-6)  # the mean of equal values


def test_communication_by_xla_is_its_all_reduces_alone(mesh):
    task = communication_only(WORKLOAD, comm.named_strategy("xla"), mesh)
    assert set(collectives_of(task)) == {"all-reduce("}
    task.run(2)
    for got, initial in zip(jax.tree.leaves(task.state), WORKLOAD.initial(), strict=True):
        np.testing.assert_allclose(got[1, 3], initial, rtol=1e-6)


def test_a_partial_gradient_gives_the_loss_and_those_gradients(mesh):
    for leaves in ((), (4, 2)):
        task = partial_gradient(WORKLOAD, leaves, mesh)
        _, results = task.program(task.state, task.batch)
        assert [result.shape[2:] for result in results] == [(), *((16, 16) for _ in leaves)]


def test_a_batch_that_cannot_be_shared(mesh):
    with pytest.raises(InputError, match="--batch 6: wanted a multiple of 4, the devices of a host"):
        check_batch(named_workload("dense", 6), mesh)
