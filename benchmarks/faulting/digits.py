"""The training that faults are planted in: a small network on digits, which waits a little for each batch.

A configuration file of train.py. What goes wrong inside the processes is planted from here, as environment variables
say, so that no configuration differs from that of an unbroken run:

    FAULTS_BLACK=27,28    the batches of these steps, counted from 0, begin with a black image, which makes the loss NaN
    FAULTS_MARK=FILE      while test examples are read, slowly, the file is there
    FAULTS_FLIP=1:33      after step 33 the last device of rank 1 holds a parameter with another bit, once; and so on
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from jaxnet.config.run import Checkpoints, Config, Guard, Log
from jaxnet.data import Digits, Source
from jaxnet.data.batches import example_ids
from jaxnet.models.layers import BatchNorm, ExampleDropout
from jaxnet.optimizer import Optimizer
from jaxnet.training.loop import Loop

STEPS = 120
SAVE_EVERY = 10
BATCH = 64
PACE_SECONDS = 0.04  # for each batch, or FAULTS_PACE
_MARKED_SECONDS = 0.1  # for each of the five batches of test examples


class Ranged(nn.Module):
    """A small network behind a division by the range of each image, which a black one does not have."""

    num_classes: int = 10
    norm_axes: tuple[str, ...] = ()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        pixels = images.reshape(len(images), -1)
        low, high = pixels.min(1, keepdims=True), pixels.max(1, keepdims=True)
        x = nn.Dense(32, use_bias=False)((pixels - low) / (high - low))
        x = nn.tanh(BatchNorm(self.norm_axes, "float32", train=train, name="norm")(x))
        x = ExampleDropout(0.3)(x, train=train, keys=keys)
        return nn.Dense(self.num_classes)(x)


class Paced:
    """A slow source, so that there is time to interrupt a run at a step of one's choice."""

    def __init__(self, source: Source, black: list[int]) -> None:
        self._source = source
        starts = [example_ids(0, source.num_examples, step * BATCH, step * BATCH + 8) for step in black]
        self._starts = {ids.tobytes() for ids in starts}
        self._pace = float(os.environ.get("FAULTS_PACE", PACE_SECONDS))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        time.sleep(self._pace)
        rows = self._source.rows(indices)
        if indices[:8].tobytes() in self._starts:
            rows["image"][0] = 0
        return rows


class Marked:
    """A slow source that leaves a file wherever it is read."""

    def __init__(self, source: Source, mark: str) -> None:
        self._source, self._mark = source, Path(mark)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        self._mark.touch()
        time.sleep(_MARKED_SECONDS)
        return self._source.rows(indices)


@dataclass(frozen=True)
class PacedDigits:
    """Digits, of which training batches come slowly."""

    def load(self, split: str) -> Source:
        source, mark = Digits().load(split), os.environ.get("FAULTS_MARK")
        if split != "train":
            return Marked(source, mark) if mark else source
        black = os.environ.get("FAULTS_BLACK", "")
        return Paced(source, [int(step) for step in black.split(",") if step])


def get_config() -> Config:
    """Global BatchNorm and a smooth network: the same curve on any topology, but for rounding."""
    planted = [place.split(":") for place in os.environ.get("FAULTS_FLIP", "").split(",") if place]
    if steps := {int(step) for rank, step in planted if rank == os.environ.get("JAX_PROCESS_ID")}:
        flip_after(steps)
    return Config(
        model=Ranged(),
        data=PacedDigits(),
        batch_norm="global",
        epochs=STEPS * BATCH / 1437,
        batch_size=BATCH,
        eval_batch_size=72,
        eval_every_epochs=1000,
        optimizer=Optimizer("adamw", learning_rate=1e-2, nesterov=True, warmup_steps=10, weight_decay=0.01),
        checkpoints=Checkpoints(every_steps=SAVE_EVERY),
        guard=Guard(check_replicas_every=10, on_difference="restore"),
        log=Log(every_steps=1, tensorboard=False),
    )


def flip_after(steps: set[int]) -> None:
    """After each of these steps, once, the copy of a parameter on this process's last device has another bit."""
    one = Loop._one

    def faulty(self: Loop, state: Any, batches: Any, step: int) -> Any:
        state = one(self, state, batches, step)
        if step + 1 in steps:
            steps.discard(step + 1)
            leaves, tree = jax.tree.flatten(state.params)
            leaves[1] = _flipped(leaves[1])
            state = state._replace(params=jax.tree.unflatten(tree, leaves))
        return state

    Loop._one = faulty  # type: ignore[method-assign]


def _flipped(leaf: jax.Array) -> jax.Array:
    copies = [np.array(shard.data) for shard in leaf.addressable_shards]
    copies[-1].reshape(-1).view(np.uint32)[0] ^= 1 << 20
    parts = [jax.device_put(copy, shard.device) for copy, shard in zip(copies, leaf.addressable_shards, strict=True)]
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)
