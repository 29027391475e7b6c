"""The run of `benchmarks/elastic.py`: digits, from a source that writes down what it serves."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from configs import digits
from jaxnet.config.run import Checkpoints, Config, Log
from jaxnet.data import Digits, Source
from jaxnet.models import CNN
from jaxnet.optimizer import Optimizer

STEPS, BATCH, SAVE_EVERY, SEED = 320, 48, 20, 0  # a batch that 4, 3, 2 and 1 can share
PACE_SECONDS = 0.25


class Recorded:
    """A source that takes its time and keeps a list: a line for each batch, in a file for each process and attempt."""

    def __init__(self, source: Source, folder: str) -> None:
        self._source = source
        name = f"{os.environ.get('JAXNET_ATTEMPT', '1')}-{os.environ.get('JAX_PROCESS_ID', '0')}.ids"
        self._file = (Path(folder) / name).open("a")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """As the source's; the slow disk is stood for by a pause."""
        time.sleep(PACE_SECONDS)
        print(*indices, file=self._file, flush=True)
        return self._source.rows(indices)


@dataclass(frozen=True)
class RecordedDigits:
    """Digits; the training split is recorded where ELASTIC_IDS names a folder."""

    def load(self, split: str) -> Source:
        """Open one split."""
        source = Digits().load(split)
        folder = os.environ.get("ELASTIC_IDS")
        return Recorded(source, folder) if folder and split == "train" else source


def get_config() -> Config:
    """A smooth network and global BatchNorm: the same curve on any number of hosts."""
    return replace(
        digits.get_config(),
        model=CNN(num_classes=10, widths=(8,), hidden=32, norm=True, dropout=0.3, smooth=True),
        data=RecordedDigits(),
        batch_norm="global",
        seed=SEED,
        batch_size=BATCH,
        eval_batch_size=BATCH,
        epochs=STEPS * BATCH / 1437,
        eval_every_epochs=1000,
        optimizer=Optimizer("adamw", learning_rate=1e-2, nesterov=True, warmup_steps=10, weight_decay=0.01),
        checkpoints=Checkpoints(every_steps=SAVE_EVERY),
        log=Log(every_steps=1, tensorboard=False),
    )
