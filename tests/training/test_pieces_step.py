"""Mode 'pieces' trains as mode 'shard_map' does, with what it computes, sends and keeps cut into several programs."""

import re
from dataclasses import replace

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from configs.digits import get_config
from jaxnet import comm
from jaxnet.config.check import check_config
from jaxnet.config.fit import check_fit
from jaxnet.config.strategy import may_cross, strategy_of
from jaxnet.cost.choice import Choice
from jaxnet.errors import InputError
from jaxnet.models import from_linen
from jaxnet.optimizer import Optimizer
from jaxnet.parallel.pieces import crosses_steps
from jaxnet.training.prepare import prepare
from support import tiny

ONE = (1, 1)
SENDS_GRADIENTS = [name for name, make in comm.STRATEGIES.items() if make().schedule in ("during", "after", "priority")]
IN_PIECES = [name for name in SENDS_GRADIENTS if (reducer := comm.STRATEGIES[name]().reducer) and reducer.message]


def programs(step):
    return len(re.findall(r"^HloModule", step.as_text(), re.MULTILINE))


def assert_same(model, strategy, **options):
    """Losses and final states of both modes on one device."""
    wanted, got = (tiny.run(tiny.setup(model, strategy, ONE, mode=mode, **options)) for mode in ("shard_map", "pieces"))
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5)
    assert jax.tree.structure(wanted[1]) == jax.tree.structure(got[1])
    for (path, want), leaf in zip(jax.tree.leaves_with_path(wanted[1]), jax.tree.leaves(got[1]), strict=True):
        assert leaf.dtype == want.dtype
        np.testing.assert_allclose(leaf, want, rtol=1e-3, atol=1e-5, err_msg=str(path))


def test_it_trains_as_one_program_does():
    assert_same(tiny.cnn(norm=True), "per_leaf")


def test_with_leaves_split_over_buckets_microbatches_a_moving_average_and_clipping():
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-3))
    options = {"bucket_bytes": 1024, "microbatches": 4, "average_decay": 0.9}
    assert_same(tiny.cnn(), "hierarchical", optimizer=optimizer, **options)


def test_a_strategy_with_an_order_of_its_own():
    buckets = comm.bucketed(comm.all_reduce(*comm.AXES), 1, split=False)
    leaves = len(jax.tree.leaves(tiny.variables(tiny.cnn()).params))
    assert_same(tiny.cnn(), comm.Strategy(comm.in_order(range(leaves)[::-1], buckets)))


def keeps_old_parameters():
    """SGD whose state holds the parameters of the step before."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(np.zeros_like, params),
        lambda grads, state, params: (jax.tree.map(lambda leaf: -0.1 * leaf, grads), params),
    )


@pytest.mark.parametrize("strategy", ["ddp", "priority"])
def test_what_the_new_state_still_holds_is_not_donated(strategy):
    assert_same(tiny.cnn(), strategy, optimizer=keeps_old_parameters())


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("strategy", ["ddp", "priority"])
def test_a_parameter_without_elements(strategy, skip):
    assert_same(from_linen(WithNothing()), strategy, skip=skip)


class WithNothing(nn.Module):
    @nn.compact
    def __call__(self, images, train=False):
        nothing = self.param("nothing", lambda _: np.zeros((0, 4), np.float32))
        return nn.Dense(tiny.CLASSES)(images.reshape(len(images), -1)) + nothing.sum()


def test_a_piece_for_each_bucket_and_a_state_that_is_donated():
    """Metrics with forward, then a bucket a leaf; a sum for each; the update."""
    setup = tiny.setup(tiny.cnn(norm=True), "per_leaf", ONE, mode="pieces")
    step = setup.step.lower(setup.state, tiny.batch(0)).compile()
    assert programs(step) == 2 * (1 + len(jax.tree.leaves(setup.state.params))) + 1
    before = setup.state
    after, metrics = step(before, jax.device_put(tiny.batch(0), comm.split_by_example(setup.mesh)))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before._replace(key=())))
    for leaf, sharding in zip(jax.tree.leaves(after), jax.tree.leaves(setup.layout.shardings), strict=True):
        assert leaf.sharding == sharding
    assert {leaf.sharding for leaf in jax.tree.leaves(metrics)} == {comm.replicated(setup.mesh)}


def test_across_the_end_of_a_step_with_a_codec_a_loss_scale_and_the_errors_that_a_reducer_remembers():
    """Whatever the schedule, in every piece: four buckets of int8 with feedback, and float16 with its scale."""
    codec = comm.named_strategy("int8", 1024).reducer
    assert_same(tiny.cnn(), comm.Strategy(codec, "priority"))
    assert_same(tiny.cnn(dtype="float16"), comm.named_strategy("priority", 1024), scaled=True)


def test_under_schedule_after_one_piece_computes_everything():
    setup = tiny.setup(tiny.cnn(), "flat", ONE, mode="pieces")
    assert programs(setup.step.lower(setup.state, tiny.batch(0)).compile()) == 1 + 2 + 1


@pytest.mark.parametrize("strategy", sorted(set(comm.STRATEGIES) - {"xla"} - set(IN_PIECES)))
def test_a_strategy_that_sums_otherwise_is_refused(strategy):
    config = replace(get_config(), strategy=strategy, mode="pieces")
    with pytest.raises(InputError, match=f"mode=pieces does not go with strategy={strategy}.*; use mode=shard_map"):
        check_config(config)


def test_in_one_program_nothing_crosses_the_end_of_a_step():
    """Several devices in a process: the mode is that of other strategies, and the plan says when messages travel."""
    experiment = prepare(replace(get_config(), strategy="priority"), comm.make_mesh(2))
    assert experiment.form.options.mode == "shard_map"
    assert "strategy priority (during backward)" in str(experiment.plan)
    assert crosses_steps(comm.named_strategy("priority"), experiment.mesh) is False


@pytest.mark.parametrize(
    ("change", "mode"),
    [
        ({}, "pieces"),
        ({"mode": "shard_map"}, "shard_map"),
        ({"batch_norm": "global"}, "shard_map"),
        ({"shard_dense": ("classifier_1",)}, "shard_map"),
    ],
)
def test_the_default_is_in_pieces_unless_the_config_has_what_does_not_go_with_it(change, mode):
    choice = Choice("two hosts of a device each", "ddp", 4 * comm.MiB, "several buckets", pieces=True)
    assert strategy_of(replace(get_config(), **change), None, comm.make_mesh(1), choice)[1] == mode


@pytest.mark.parametrize(("size", "label"), [(None, "per_leaf:after=true"), (comm.MiB, "ddp")])
def test_who_sets_a_bucket_size_gets_buckets_whatever_the_default(size, label):
    choice = Choice("devices of a process", "per_leaf:after=true", None, "no link")
    strategy, _ = strategy_of(replace(get_config(), bucket_bytes=size), None, comm.make_mesh(2), choice)
    assert strategy.label == label


@pytest.mark.parametrize(
    ("change", "may"),
    [
        ({}, True),
        ({"mode": "pieces"}, True),
        ({"mode": "shard_map"}, False),
        ({"batch_norm": "global"}, False),
        ({"shard_dense": ("classifier_1",)}, False),
        ({"bucket_bytes": comm.MiB}, False),
        ({"optimizer": Optimizer("lars", 0.1)}, True),
        ({"optimizer": Optimizer("sgd", 0.1, clip_norm=1.0)}, False),
        ({"optimizer": optax.sgd(0.1)}, False),
    ],
)
def test_by_default_messages_cross_steps_only_where_an_update_may_begin_before_the_last(change, may):
    assert may_cross(replace(get_config(), **change)) == may


def test_what_goes_with_it_passes():
    for strategy in IN_PIECES:
        check_config(replace(get_config(), strategy=strategy, mode="pieces"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "xla"}, "mode=pieces does not go with strategy=xla"),
        ({"batch_norm": "global"}, "batch_norm=global does not go with mode=pieces.*set batch_norm=local"),
        ({"transport": "mpi"}, "mode=pieces does not go with transport=mpi"),
    ],
)
def test_what_does_not_go_with_it(change, message):
    with pytest.raises(InputError, match=message):
        check_config(replace(get_config(), mode="pieces", **change))


def test_several_devices_a_process_are_refused():
    config = replace(get_config(), mode="pieces")
    source = config.data.load("train")
    with pytest.raises(
        InputError, match=r"mode=pieces takes one device a process, and this one has 8; .*mode=shard_map"
    ):
        check_fit(config, comm.make_mesh(), source)
