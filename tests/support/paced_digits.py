"""A config: configs/digits.py with a small model and data that come no faster than PACE_SECONDS a batch.

A run that waits for its data gives a test the time to interrupt it at a step of its choice, and costs nothing.
"""

import os
import time
from dataclasses import dataclass, replace

from configs import digits
from jaxnet.config.run import Checkpoints, Log
from jaxnet.data import Digits
from jaxnet.models import CNN
from jaxnet.optimizer import Optimizer

STEPS = 60
SAVE_EVERY = 20


class Slow:
    def __init__(self, source, seconds):
        self._source, self._seconds = source, seconds

    def __getattr__(self, name):
        return getattr(self._source, name)

    def rows(self, indices):
        time.sleep(self._seconds)  # the slow disk that it stands for
        return self._source.rows(indices)


@dataclass(frozen=True)
class PacedDigits:
    def load(self, split):
        pace = float(os.environ.get("PACE_SECONDS", "0")) if split == "train" else 0
        return Slow(Digits().load(split), pace)


def get_config():
    """Global BatchNorm and a smooth network: the same curve on any topology."""
    return replace(
        digits.get_config(),
        model=CNN(num_classes=10, widths=(8,), hidden=32, norm=True, dropout=0.3, smooth=True),
        data=PacedDigits(),
        batch_norm="global",
        epochs=STEPS * 64 / 1437,
        eval_every_epochs=1000,
        optimizer=Optimizer("adamw", learning_rate=1e-2, nesterov=True, warmup_steps=10, weight_decay=0.01),
        checkpoints=Checkpoints(every_steps=SAVE_EVERY),
        log=Log(every_steps=1, tensorboard=False),
        compile_cache=os.environ.get("TESTS_COMPILE_CACHE", "compile_cache"),
    )
