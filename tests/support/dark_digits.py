"""Digits in which some training batches hold a black image, and a model that divides by the range of its images."""

from dataclasses import dataclass

import flax.linen as nn
import numpy as np

from jaxnet.config.run import Checkpoints, Config, Log
from jaxnet.data import Digits
from jaxnet.data.batches import example_ids
from jaxnet.optimizer import Optimizer

SIZE = 64


class Ranged(nn.Module):
    num_classes: int = 10

    @nn.compact
    def __call__(self, images, *, train, keys=None):
        x = images.reshape(images.shape[0], -1)
        x = x / (x.max(1, keepdims=True) - x.min(1, keepdims=True))  # of a black image: 0 / 0
        return nn.Dense(self.num_classes, use_bias=False)(nn.tanh(nn.Dense(16)(x)))


class Dark:
    """The batches of the steps `dark`, counted from 0, begin with a black image."""

    def __init__(self, source, dark):
        self._source = source
        starts = [example_ids(0, source.num_examples, step * SIZE, step * SIZE + 8) for step in dark]
        self._starts = {ids.tobytes() for ids in starts}

    def __getattr__(self, name):
        return getattr(self._source, name)

    def rows(self, indices):
        rows = self._source.rows(indices)
        if indices[:8].tobytes() in self._starts:
            rows["image"] = np.concatenate([np.zeros_like(rows["image"][:1]), rows["image"][1:]])
        return rows


@dataclass(frozen=True)
class DarkDigits:
    dark: tuple[int, ...] = ()

    def load(self, split):
        source = Digits().load(split)
        return Dark(source, self.dark) if split == "train" else source


def config_of(steps, dark=(), **changes):
    """A run of so many steps, saved every 10."""
    return Config(
        **{
            "model": Ranged(),
            "data": DarkDigits(tuple(dark)),
            "epochs": steps * SIZE / 1437,
            "batch_size": SIZE,
            "eval_batch_size": 360,
            "eval_every_epochs": 1000,
            "optimizer": Optimizer("sgd", learning_rate=0.1),
            "checkpoints": Checkpoints(every_steps=10, keep=20),
            "log": Log(every_steps=5, tensorboard=False),
            **changes,
        }
    )
