"""Classify images: the loss of a batch in training, and exact evaluation.

In evaluation every example counts once, on any number of devices and processes: padding has weight 0, and sums are
divided by the sum of weights.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxnet.comm import replicated, split_by_example
from jaxnet.limits import Count, Limit
from jaxnet.models import Heads, Model, inference_options
from jaxnet.tasks.mixing import Mixed, neighbours

PyTree = Any
Batch = dict[str, jax.Array]
Augment = Callable[[jax.Array, jax.Array], jax.Array]
Mix = Callable[[jax.Array, jax.Array], Mixed]


_NOT_EMPTY = Limit("one number or one a channel", lambda values: len(values) > 0)
_PIXELS = Limit("numbers of 0 to 1, as pixels are", lambda values: 0 <= min(values) <= max(values) <= 1)
_DEVIATIONS = Limit("numbers above 0", lambda values: min(values) > 0)


@dataclass(frozen=True)
class Pixels:
    """How uint8 images become the input of a model.

    Attributes:
        mean: mean of the pixels, scaled to [0, 1]; one number, or one per channel.
        std: standard deviation of the pixels, likewise.
        size: resize images to this height and width first; None: do not.
    """

    mean: Annotated[tuple[float, ...], _NOT_EMPTY, _PIXELS] = (0.5,)
    std: Annotated[tuple[float, ...], _NOT_EMPTY, _DEVIATIONS] = (0.25,)
    size: Count | None = None

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the model's input for images of this shape, [..., height, width, channels].

        >>> Pixels(size=64).shape((28, 28, 1))
        (64, 64, 1)
        """
        return image_shape if self.size is None else (*image_shape[:-3], self.size, self.size, image_shape[-1])

    def normalize(self, images: jax.Array) -> jax.Array:
        """Return uint8 images as float32 with about zero mean and unit variance.

        It runs on the device, so that uint8 travels there and not float32. Resizing is bilinear, and antialiased to a
        smaller size.
        """
        values = images.astype(jnp.float32) / 255.0
        if (wanted := self.shape(images.shape)) != images.shape:
            values = jax.image.resize(values, wanted, "bilinear")
        mean, std = jnp.array(self.mean, jnp.float32), jnp.array(self.std, jnp.float32)
        shape = (1,) * (images.ndim - 1) + (-1,)
        return (values - mean.reshape(shape)) / std.reshape(shape)


# ---- Loss -----------------------------------------------------------------------------------------------


class LossOutput(NamedTuple):
    """What a loss function returns beside the loss: new running averages, and metrics, means over the examples."""

    stats: PyTree
    metrics: dict[str, jax.Array]


class LossFn(Protocol):
    """`loss(params, stats, batch, keys) -> (loss, LossOutput)`: a mean over the examples of `batch`.

    `keys` holds one random key per example. Examples must not influence each other, except through BatchNorm and within
    the pairs of `Mixing`: then the mean of the devices' losses is the loss of the global batch.
    """

    def __call__(
        self, params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array, /
    ) -> tuple[jax.Array, LossOutput]: ...


def classification_loss(
    model: Model,
    pixels: Pixels,
    *,
    label_smoothing: float = 0.0,
    augment: Augment | None = None,
    mix: Mix | None = None,
) -> LossFn:
    """Return the loss function of a classifier: softmax cross-entropy.

    Args:
        model: returns logits, or `Heads`: the loss of each auxiliary head is added, times its weight.
        pixels: how images are normalized.
        label_smoothing: `a`: the target is `1 - a` on the label and `a` spread evenly over all classes.
        augment: changes images [batch, ...] by keys [batch], before normalization.
        mix: mixes neighbours by keys [batch], after normalization. Targets are mixed likewise, before smoothing, and
            accuracy counts the label with the larger share.
    """

    def loss_fn(params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array) -> tuple[jax.Array, LossOutput]:
        images, labels = batch["image"], batch["label"]
        images = pixels.normalize(images if augment is None else augment(keys, images))
        images, share = (images, None) if mix is None else mix(keys, images)
        outputs, stats = model.apply(params, stats, images, train=True, keys=keys)
        logits, auxiliary = outputs if isinstance(outputs, Heads) else Heads(outputs)
        target = jax.nn.one_hot(labels, logits.shape[-1])
        if share is not None:
            target = _mixture(target, share)
            labels = jnp.where(share < 0.5, neighbours(labels), labels)
        target = optax.smooth_labels(target, label_smoothing)
        loss = optax.softmax_cross_entropy(logits, target).mean()
        for weight, others in auxiliary:
            loss += weight * optax.softmax_cross_entropy(others, target).mean()
        metrics = {"loss": loss, "accuracy": correct(logits, labels).mean()}
        return loss, LossOutput(stats, metrics)

    return loss_fn


def _mixture(target: jax.Array, share: jax.Array) -> jax.Array:
    """Mix each example's target, [batch, classes], with its neighbour's."""
    return share[:, None] * target + (1 - share)[:, None] * neighbours(target)


def correct(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return 1.0 where the largest logit is that of the label, else 0.0: float32 [batch]."""
    return (logits.argmax(-1) == labels).astype(jnp.float32)


# ---- Evaluation -----------------------------------------------------------------------------------------

Totals = dict[str, jax.Array]
EvalStepFn = Callable[[Totals, PyTree, PyTree, Batch], Totals]
Across = Callable[[dict[str, float]], dict[str, float]]


def _alone(sums: dict[str, float]) -> dict[str, float]:
    return sums


def make_eval_step(model: Model, pixels: Pixels, mesh: Mesh) -> EvalStepFn:
    """Return `step(totals, params, stats, batch) -> totals`: sums over examples, weighted by `batch['weight']`.

    Padding has weight 0. The sum of losses is float32; counts are int32, exact up to two billion examples.
    """

    def step(totals: Totals, params: PyTree, stats: PyTree, batch: Batch) -> Totals:
        logits, _ = model.apply(params, stats, pixels.normalize(batch["image"]), train=False, keys=None)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        weight = batch["weight"]
        sums = {
            "loss": (losses * weight).sum(),
            "correct": (correct(logits, batch["label"]) * weight).sum().astype(jnp.int32),
            "examples": weight.sum().astype(jnp.int32),
        }
        return jax.tree.map(jnp.add, totals, sums)

    everywhere = replicated(mesh)
    return jax.jit(
        step,
        in_shardings=(everywhere, everywhere, everywhere, split_by_example(mesh)),
        out_shardings=everywhere,
        compiler_options=inference_options(mesh.devices.flat[0].platform),
    )


def evaluate(
    step: EvalStepFn, params: PyTree, stats: PyTree, batches: Iterable[Batch], mesh: Mesh, across: Across = _alone
) -> dict[str, float]:
    """Return mean loss, accuracy and number of examples over `batches`.

    `across` sums over processes that the mesh does not span, as under MPI.
    """
    zeros = {"loss": jnp.zeros(()), "correct": jnp.zeros((), jnp.int32), "examples": jnp.zeros((), jnp.int32)}
    totals = jax.device_put(zeros, replicated(mesh))
    for batch in batches:
        totals = step(totals, params, stats, batch)
    sums = across({name: total.item() for name, total in jax.device_get(totals).items()})
    count = sums["examples"]
    return {"loss": sums["loss"] / count, "accuracy": sums["correct"] / count, "examples": count}
