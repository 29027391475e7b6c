"""What is minimized: the loss of a batch, with metrics and new running averages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from jaxnet.models import Model

PyTree = Any
Batch = dict[str, jax.Array]
Augment = Callable[[jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class Pixels:
    """Mean and standard deviation of the pixels, scaled to [0, 1]; one number, or one a channel."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)

    def normalize(self, images: jax.Array) -> jax.Array:
        """uint8 images as float32 of about zero mean and unit variance; on the device, so that bytes travel there."""
        mean, std = jnp.array(self.mean, jnp.float32), jnp.array(self.std, jnp.float32)
        shape = (1,) * (images.ndim - 1) + (-1,)
        return (images.astype(jnp.float32) / 255.0 - mean.reshape(shape)) / std.reshape(shape)


class Result(NamedTuple):
    """What comes with a loss: new running averages, and metrics that are means over the examples."""

    stats: PyTree
    metrics: dict[str, jax.Array]


class LossFn(Protocol):
    """`loss(params, stats, batch, keys) -> (loss, Result)`: a mean over the examples of `batch`.

    `keys` holds one random key an example. Examples must not be mixed but by BatchNorm, so that the mean over
    devices of their losses is the loss of the global batch.
    """

    def __call__(self, params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array, /) -> tuple[jax.Array, Result]: ...


def classification_loss(
    model: Model, pixels: Pixels, *, label_smoothing: float = 0.0, augment: Augment | None = None
) -> LossFn:
    """Softmax cross-entropy of a classifier.

    Args:
        model: gives logits.
        pixels: how images are normalized.
        label_smoothing: `a`: the target is `1 - a` on the label and `a` spread evenly over all classes.
        augment: changes images [batch, ...] by keys [batch], before normalization.
    """

    def loss_fn(params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array) -> tuple[jax.Array, Result]:
        images = batch["image"] if augment is None else augment(keys, batch["image"])
        logits, stats = model.apply(params, stats, pixels.normalize(images), train=True, keys=keys)
        target = optax.smooth_labels(jax.nn.one_hot(batch["label"], logits.shape[-1]), label_smoothing)
        loss = optax.softmax_cross_entropy(logits, target).mean()
        metrics = {"loss": loss, "accuracy": correct(logits, batch["label"]).mean()}
        return loss, Result(stats, metrics)

    return loss_fn


def correct(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """1.0 where the largest logit is that of the label, float32 [batch]."""
    return (logits.argmax(-1) == labels).astype(jnp.float32)
