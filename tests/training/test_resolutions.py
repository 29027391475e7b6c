"""Images that grow during a run: the sizes come when they should, and a run taken up in the middle is the same."""

import dataclasses
import json
import shutil

import flax.linen as nn
import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.config.check import check_config
from jaxnet.config.run import Checkpoints, Config, Log
from jaxnet.data import Shard, Synthetic, placed, train_batches
from jaxnet.errors import InputError
from jaxnet.models import CNN
from jaxnet.optimizer import Optimizer
from jaxnet.tasks.classification import ImageClassification, Pixels
from jaxnet.training.prepare import prepare
from jaxnet.training.resolutions import Phase, batches_in_phases, phases_of
from support.runs import train

SOURCE = Synthetic((8, 8, 1), num_classes=2, num_train=64, num_test=16).load("train")
GROWING = ((0.0, 4), (0.5, 6))
PHASES = (Phase(0, 4), Phase(3, 6), Phase(3, 7), Phase(5, 8))
MESH = comm.make_mesh(1, jax.devices()[:2])
SHARDING = comm.split_by_example(MESH)


def make(source, step):
    return placed(train_batches(source, batch_size=8, seed=3, shard=Shard(0, 1), start_step=step), SHARDING)


def first_batches(step, count, source=SOURCE):
    batches = batches_in_phases(make, source, PHASES, step, SHARDING)
    taken = [next(batches) for _ in range(count)]
    batches.close()
    return taken


def test_sizes_follow_the_phases_and_examples_stay_where_they_were():
    got, plain = first_batches(0, 7), make(SOURCE, 0)
    assert [batch["image"].shape[1] for batch in got] == [4, 4, 4, 7, 7, 8, 8]
    for batch in got:
        assert batch["image"].sharding.is_equivalent_to(SHARDING, 4)
        assert batch["image"].dtype == np.uint8
        wanted = next(plain)
        np.testing.assert_array_equal(batch["id"], wanted["id"])
        resized = jax.image.resize(wanted["image"].astype("float32"), batch["image"].shape, "bilinear")
        np.testing.assert_allclose(batch["image"], resized, atol=0.51)


@pytest.mark.parametrize("step", [1, 3, 4, 5])
def test_taken_up_in_the_middle_the_batches_are_the_same(step):
    for got, wanted in zip(first_batches(step, 7 - step), first_batches(0, 7)[step:], strict=True):
        jax.tree.map(np.testing.assert_array_equal, got, wanted)


class Sized:
    """A source that gives its images in any size itself."""

    def __init__(self, size=8):
        self.size, self.num_examples, self.num_classes, self.image_shape = size, 64, 2, (size, size, 1)

    def at_size(self, size):
        return Sized(size)

    def rows(self, indices):
        images = np.full((len(indices), self.size, self.size, 1), self.size, np.uint8)
        return {"image": images, "label": np.zeros(len(indices), np.int32)}


def test_a_source_that_can_gives_the_size_itself():
    for batch, size in zip(first_batches(2, 5, Sized()), (4, 7, 7, 8, 8), strict=True):
        assert (np.asarray(batch["image"]) == size).all()


class Pooled(nn.Module):
    """A network for images of any size."""

    @nn.compact
    def __call__(self, images, *, train, keys=None):
        return nn.Dense(2)(nn.tanh(nn.Conv(4, (3, 3))(images)).mean((1, 2)))


def config_with(**changes):
    config = Config(
        model=Pooled(),
        data=Synthetic((8, 8, 1), num_classes=2, num_train=64, num_test=16),
        epochs=2,
        batch_size=16,
        eval_batch_size=16,
        eval_every_epochs=2,
        optimizer=Optimizer(learning_rate=0.05),
        task=ImageClassification(resolutions=GROWING),
        checkpoints=Checkpoints(every_steps=1, keep=9),
        log=Log(every_steps=1, tensorboard=False),
    )
    return dataclasses.replace(config, **changes)


def losses(workdir):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if line["split"] == "train"}


def test_a_run_compiles_each_size_ahead_and_continues_in_the_middle_of_one(tmp_path):
    whole = train(config_with(), tmp_path / "whole", quiet=True)
    assert (whole["steps"], whole["examples"]) == (8, 16)
    config, workdir = config_with(), tmp_path / "parts"
    train(config, workdir, quiet=True)
    for step in (7, 8):  # as if it had been stopped after step 6, in the second phase
        shutil.rmtree(workdir / f"checkpoints/{step:06d}")
    train(config, workdir, quiet=True)
    assert losses(workdir) == losses(tmp_path / "whole")


@pytest.mark.parametrize(
    "resolutions",
    [((0.1, 4),), ((0.0, 4), (0.0, 6)), ((0.0, 4), (1.0, 6)), ((0.0, 0),)],
    ids=["late", "twice", "never", "nothing"],
)
def test_phases_that_cannot_be_are_refused(resolutions):
    with pytest.raises(InputError, match=r"wanted \(part of the run, size\) from 0 on"):
        check_config(config_with(task=ImageClassification(resolutions=resolutions)))


def test_a_network_whose_parameters_follow_the_size_is_refused():
    with pytest.raises(InputError, match="images of 4x4 give this network other parameters"):
        prepare(config_with(model=CNN(2, widths=(2,), hidden=4)), MESH, source=SOURCE)


def test_evaluation_keeps_its_own_size_and_no_resolutions_are_one_phase():
    assert phases_of((), 10) == (Phase(0, None),)
    experiment = prepare(
        config_with(task=ImageClassification(Pixels(size=12), resolutions=GROWING)), MESH, source=SOURCE
    )
    assert experiment.phases == (Phase(0, 4), Phase(4, 6))
    assert experiment.batch_shapes["image"].shape == (16, 6, 6, 1)
