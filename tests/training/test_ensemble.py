"""An ensemble: each member trains as it would alone."""

import contextlib
import functools
from dataclasses import replace
from typing import NamedTuple

import flax.linen as nn
import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.checkpoints import Checkpointer
from jaxnet.config.check import check_config
from jaxnet.config.run import Config
from jaxnet.data import Synthetic
from jaxnet.ensembles import (
    Ensemble,
    ensemble_summary,
    ensemble_table,
    member_of,
)
from jaxnet.errors import InputError
from jaxnet.models import CNN
from jaxnet.models.layers import BatchNorm, ExampleDropout
from jaxnet.optimizer import Optimizer
from jaxnet.parallel.state import abstract_state
from jaxnet.tasks import ImageClassification, evaluate, make_eval_step
from jaxnet.tasks.augmentation import Augmentation
from jaxnet.training.prepare import prepare
from support import tiny
from support.checkpointing import assert_same_bits

STEPS = 4
SIZE = 96  # BatchNorm over fewer examples a device, in microbatches, magnifies rounding
MEMBERS = Ensemble(2, learning_rates=(0.004, 0.001), weight_decays=(0.1, 0.0))
SGD = Optimizer("sgd", 0.05, clip_norm=0.5, weight_decay=0.01)
LARS = Optimizer("lars", 1.0, clip_norm=0.5, trust_coefficient=0.01)


class Net(nn.Module):
    """Two dense layers with BatchNorm and dropout: compiled sooner than convolutions."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images, *, train, keys=None):
        x = nn.Dense(8)(images.reshape(images.shape[0], -1))
        x = nn.tanh(BatchNorm((), "float32", train=train, name="norm")(x))
        return nn.Dense(self.num_classes)(ExampleDropout(0.2)(x, train=train, keys=keys))


CONVOLUTIONS = CNN(10, widths=(4,), hidden=8, norm=True, dropout=0.2, smooth=True)


def config_of(**changes):
    settings = {
        "model": Net(),
        "data": Synthetic(tiny.IMAGE, num_classes=10, num_train=960, num_test=50),
        "epochs": 1,
        "batch_size": SIZE,
        "eval_batch_size": SIZE,
        "optimizer": Optimizer("adamw", 0.002, warmup_steps=3, clip_norm=0.5),
        "task": ImageClassification(augmentation=Augmentation(flip=True, shift=1)),
        "average_decay": 0.9,
        "bucket_bytes": 4096,
        "seed": 5,
        "ensemble": MEMBERS,
    }
    return Config(**{**settings, **changes})


def alone(config, index):
    """The run of one member by itself."""
    recipe = config.ensemble.recipes(config.optimizer)[index]
    return replace(config, ensemble=Ensemble(), optimizer=recipe, seed=config.seed + index)


def prepared(config, shape):
    mesh = comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])
    return prepare(config, mesh, source=config.data.load("train")), mesh


class Run(NamedTuple):
    metrics: list
    state: object
    check: comm.Check


@functools.cache
def trained(config, shape):
    """Metrics of each step, the last state, whole, on the host, and the plan beside the compiled program."""
    experiment, mesh = prepared(config, shape)
    state, seen = experiment.init(), []
    step = experiment.step.lower(state, experiment.batch_shapes).compile()
    check = comm.verify(step.as_text(), experiment.sends.collectives, mesh.shape)
    for index in range(STEPS):
        state, metrics = step(state, jax.device_put(tiny.batch(index, SIZE), comm.split_by_example(mesh)))
        seen.append({name: float(metrics[name]) for name in ("loss", "accuracy")})
    return Run(seen, jax.device_get(experiment.layout.whole(state)), check)


def assert_close(got, wanted):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


WAYS = {
    "one_device": ({"model": CONVOLUTIONS}, (1, 1)),
    "hierarchical": ({"optimizer": SGD, "microbatches": 3}, (2, 4)),
    "zero": ({"strategy": "zero", "optimizer": LARS}, (2, 4)),
    "fp16": ({"strategy": "fp16", "optimizer": SGD}, (1, 2)),
    "jit": ({"strategy": "xla", "bucket_bytes": None, "optimizer": SGD}, (1, 2)),
}


@pytest.mark.parametrize(
    "way",
    ["zero", *(pytest.param(way, marks=pytest.mark.slow) for way in ("hierarchical", "one_device", "fp16", "jit"))],
)
def test_each_member_trains_as_it_would_alone(way):
    changes, shape = WAYS[way]
    config = config_of(**changes)
    state = trained(config, shape).state
    index = 1  # not that with the seed of the run
    wanted = trained(alone(config, index), shape).state
    for field in ("params", "stats", "average", "optimizer"):
        assert_close(member_of(getattr(state, field), index), getattr(wanted, field))
    assert_same_bits(np.asarray(state.key[index]), np.asarray(wanted.key))


def test_the_first_member_is_the_run_itself_and_metrics_are_means_over_members():
    config = config_of(model=CONVOLUTIONS)
    seen, state, _ = trained(config, (1, 1))
    runs = [trained(alone(config, index), (1, 1)) for index in range(2)]
    assert_close(member_of(state.params, 0), runs[0].state.params)
    for step, metrics in enumerate(seen):
        for name, value in metrics.items():
            assert value == pytest.approx(np.mean([run.metrics[step][name] for run in runs]), rel=1e-4)


# ---- What travels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["hierarchical", "zero", "fp16"])
def test_the_step_holds_the_planned_collectives_and_no_others(way):  # L6
    changes, shape = WAYS[way]
    check = trained(config_of(**changes), shape).check
    assert check.ok, check.explain()
    assert not check.extra


@pytest.mark.parametrize("strategy", ["hierarchical", "zero"])
def test_one_plan_carries_all_members(strategy):
    config = config_of(strategy=strategy, bucket_bytes=2**20)
    together, single = (prepared(each, (2, 4))[0].plan.as_json() for each in (config, alone(config, 0)))
    assert len(together["planned"]) == len(single["planned"])
    assert together["gradient_bytes"] == 2 * single["gradient_bytes"]
    assert together["leaves"] == single["leaves"]
    assert sum(bucket["elements"] for bucket in together["buckets"]) * 4 == together["gradient_bytes"]


# ---- Evaluation and checkpoints ---------------------------------------------------------------------------


def test_evaluation_is_exact_for_each_member_and_for_their_mean_prediction():
    config = config_of()
    experiment, mesh = prepared(config, (1, 2))
    params, stats = experiment.layout.evaluated(experiment.init())
    batches = [{**tiny.batch(index, SIZE), "weight": np.ones(SIZE, np.float32)} for index in range(2)]
    batches[1]["weight"][30:] = 0.0  # padding
    task = config.task
    ours = evaluate(make_eval_step(experiment.model, task, mesh, members=2), task, params, stats, batches)
    single, _ = prepared(alone(config, 0), (1, 2))
    step = make_eval_step(single.model, task, mesh)
    for index in range(2):
        wanted = evaluate(step, task, member_of(params, index), member_of(stats, index), batches)
        for name in ("loss", "accuracy"):
            assert ours[f"member_{index}/{name}"] == pytest.approx(wanted[name], rel=1e-5)
    probabilities, labels = [], []
    for batch in batches:
        images, kept = task.pixels.normalize(batch["image"]), batch["weight"] > 0
        logits, _ = experiment.model.apply(params, stats, images, train=False, keys=None)
        probabilities.append(np.asarray(jax.nn.softmax(logits)).mean(0)[kept])
        labels.append(batch["label"][kept])
    mean, right = np.concatenate(probabilities), np.concatenate(labels)
    assert ours["ensemble/accuracy"] == (mean.argmax(1) == right).mean()
    assert ours["ensemble/loss"] == pytest.approx(-np.log(mean[np.arange(len(right)), right]).mean(), rel=1e-5)
    assert ours["examples"] == len(right) == SIZE + 30
    summary = {
        **ensemble_summary(config.ensemble, config.optimizer, config.seed, ours),
        "metrics": ["loss", "accuracy"],
    }
    assert [row["seed"] for row in summary["members"]] == [5, 6]
    assert [row["learning_rate"] for row in summary["members"]] == [0.004, 0.001]
    assert len(ensemble_table(summary).splitlines()) == 5


def test_a_checkpoint_restores_under_another_strategy_and_mesh(tmp_path):
    (ours, _), (theirs, mesh) = prepared(config_of(strategy="zero"), (2, 4)), prepared(config_of(), (1, 1))
    whole = ours.layout.whole(ours.init())
    kept = jax.device_get(whole)
    with contextlib.closing(Checkpointer(tmp_path)) as checkpoints:
        checkpoints.save(1, whole, extra={})
        restored = checkpoints.restore(1, abstract_state(theirs.layout.whole_shapes, mesh)).state
    assert_same_bits(jax.device_get(restored)._replace(comm=()), kept._replace(comm=()))
    assert_same_bits(jax.device_get(theirs.init())._replace(comm=()), kept._replace(comm=()))


# ---- Refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "pmap"}, r"mode=pmap does not go with ensemble.members=2: .*mode=shard_map or jit"),
        ({"strategy": "local_sgd"}, r"strategy=local_sgd does not go with ensemble.members=2"),
        ({"strategy": "powersgd"}, r"strategy=powersgd does not go with ensemble.members=2"),
        ({"model": CNN(10, dtype="float16")}, r"model.dtype=float16 does not go with ensemble.members=2"),
        ({"ensemble": Ensemble(0)}, r"ensemble.members=0: wanted 1 to 100"),
        ({"ensemble": Ensemble(3, (0.1, 0.2))}, r"ensemble.learning_rates=\(0.1, 0.2\): wanted one a member"),
        ({"seed": 2**32 - 1}, r"seed=4294967295: 2 members .*wanted at most 4294967294"),
    ],
)
def test_what_does_not_go_with_an_ensemble_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        check_config(config_of(**changes))
