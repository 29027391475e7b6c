"""A tiny network, trained for a few steps on the digits, for tests of its use."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
from PIL import Image

from configs import digits
from jaxnet.checkpoints import Checkpointer
from jaxnet.comm import make_mesh
from jaxnet.config.run import Log
from jaxnet.data import Digits
from jaxnet.models import CNN
from jaxnet.parallel.state import abstract_state
from jaxnet.training.prepare import prepare
from support.runs import train

TEST = Digits().load("test")


def config(**fields):
    """45 steps, two evaluations, averaged parameters."""
    return replace(
        digits.get_config(),
        model=CNN(10, widths=(4, 8), hidden=16, norm=True),
        **{"epochs": 2, "eval_every_epochs": 1, "average_decay": 0.8, "strategy": "xla"},
        log=Log(tensorboard=False),
        **fields,
    )


def trained(workdir, **fields):
    """The summary of a run in `workdir`."""
    return train(config(**fields), workdir, quiet=True)


def plain_probabilities(config, workdir):
    """What a run's newest state gives for the test images, by the trainer's own parts and without padding."""
    mesh = make_mesh(1, jax.devices()[:1])
    experiment = prepare(config, mesh, source=config.data.load("train"))
    checkpoints = Checkpointer(workdir / "checkpoints")
    like = abstract_state(experiment.layout.whole_shapes, mesh)
    params, stats = experiment.layout.evaluated(checkpoints.restore_latest(like).state)
    checkpoints.close()
    images = config.task.pixels.normalize(TEST.image)
    evaluate = jax.jit(partial(experiment.model.apply, train=False))
    return np.asarray(jax.nn.softmax(evaluate(params, stats, images, keys=None)[0]))


def write_digits(directory, count=4):
    """The first test images as PNG files of their own size; their paths."""
    paths = [directory / f"{index}.png" for index in range(count)]
    for path, image in zip(paths, TEST.image[:, :, :, 0], strict=False):
        Image.fromarray(image).save(path)
    return paths
