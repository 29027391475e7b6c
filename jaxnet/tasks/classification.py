"""Classify: softmax cross-entropy and accuracy, of any arrays, and of normalized, augmented and mixed images."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnet.checkpoints.leaves import named_leaves
from jaxnet.data import example_shapes
from jaxnet.errors import InputError
from jaxnet.limits import BelowOne, Limit, Side
from jaxnet.models import Heads, Model
from jaxnet.tasks.augmentation import Augmentation
from jaxnet.tasks.mixing import Mixed, Mixing, neighbours
from jaxnet.tasks.task import Batch, LossFn, LossOutput, Measures, PyTree, Task, in_float32

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
    size: Side | None = None

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


# ---- The tasks ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Classification(Task):
    """Classes of anything: batches with 'features', which the model is called with, and 'label', int32 [batch]."""

    best: ClassVar[str] = "accuracy"
    best_mode: ClassVar[Literal["min", "max"]] = "max"
    needs: ClassVar[tuple[str, ...]] = ("features", "label")

    def inputs(self, batch: Batch) -> PyTree:
        """The features."""
        return batch["features"]

    def measures(self, outputs: PyTree, batch: Batch) -> Measures:
        """Cross-entropy with the label, and whether the largest logit is that of the label."""
        losses = optax.softmax_cross_entropy_with_integer_labels(in_float32(outputs), batch["label"])
        return {"loss": losses, "accuracy": correct(outputs, batch["label"])}

    def predicted(self, outputs: jax.Array) -> jax.Array:
        """The probability of each class, float32 [batch, classes]."""
        return jax.nn.softmax(outputs.astype(jnp.float32))

    def combined(self, outputs: jax.Array) -> jax.Array:
        """The logarithm of the mean of the members' probabilities, of logits [members, batch, classes]."""
        return mean_probability(outputs)

    def check_data(self, source: Any) -> None:
        """Refuse labels that are no classes; a subclass that measures for itself may take others."""
        label = example_shapes(source).get("label")
        if label is None or not measures_as(self, Classification):
            return
        if label.shape != () or not jnp.issubdtype(label.dtype, jnp.integer):
            cure = "label.argmax(1)" if label.shape[:1] > (1,) else "label.reshape(-1).astype(int)"
            raise InputError(
                f"data: the label of an example is {label.dtype}{list(label.shape)}; {type(self).__name__} takes its "
                f"class, a whole number from 0 on, as {cure}"
            )

    def check_model(self, model: Any, outputs: PyTree, source: Any) -> None:
        """Refuse a model that gives no logits, or fewer than there are classes."""
        shape: tuple[int, ...] = getattr(outputs, "shape", ())
        if len(shape) != 2:
            raise InputError(
                f"the model gives {shape or type(outputs).__name__} for one example; wanted logits, [1, classes]"
            )
        require_logits(outputs)
        classes: int = getattr(source, "num_classes", 1)  # a user's own source need not say
        if shape[1] < classes:
            width = "set model.num_classes=" if hasattr(model, "num_classes") else "make the width of its last layer "
            raise InputError(
                f"the model's logits for one example have the shape {shape}, but the data set has {classes} classes; "
                f"{width}{classes}"
            )

    def check_batch(self, batch: Mapping[str, Any], outputs: PyTree, split: str) -> None:
        """Refuse labels that have no logit; a subclass that measures or weighs for itself may take others."""
        if measures_as(self, Classification):
            require_logits_of(batch["label"], outputs.shape[-1], batch["id"], f"data: the label of {split} example")


@dataclass(frozen=True)
class ImageClassification(Classification):
    """Classes of images: batches with 'image', uint8 [batch, height, width, channels], and 'label', int32 [batch].

    Attributes:
        pixels: mean and deviation by which images are normalized, and the size to which they are resized.
        augmentation: random changes to training images; see `Augmentation`.
        mixing: training on mixtures of two images; see `Mixing`.
        resolutions: (part of the run, size): from there on training images have that height and width, such as
            ((0, 128), (0.5, 160)), on the command line 0:128,0.5:160; evaluation keeps its own. Empty: as they are.
        label_smoothing: part of the target spread over all classes.
    """

    pixels: Pixels = field(default_factory=Pixels)
    augmentation: Augmentation = field(default_factory=Augmentation)
    mixing: Mixing = field(default_factory=Mixing)
    resolutions: tuple[tuple[float, int], ...] = ()
    label_smoothing: BelowOne = 0.0

    needs: ClassVar[tuple[str, ...]] = ("image", "label")

    @property
    def group(self) -> int:
        """Two where neighbours are mixed."""
        return 2 if self.mixing.on else 1

    def inputs(self, batch: Batch) -> jax.Array:
        """Normalized images."""
        return self.pixels.normalize(batch["image"])

    def loss(self, model: Model) -> LossFn:
        """Cross-entropy with smoothed and mixed labels, of all heads."""
        # Images that grow during a run have their size when they come.
        pixels = dataclasses.replace(self.pixels, size=None) if self.resolutions else self.pixels
        mix = self.mixing if self.mixing.on else None
        return classification_loss(
            model, pixels, label_smoothing=self.label_smoothing, augment=self.augmentation, mix=mix
        )

    def check_data(self, source: Any) -> None:
        """Refuse data without images and classes, and pixels with other channels."""
        lacking = [name for name in ("image_shape", "num_classes") if not hasattr(source, name)]
        if lacking:
            found = example_shapes(source)
            held = ", ".join(f"{name} {leaf.dtype}{list(leaf.shape)}" for name, leaf in named_leaves(found).items())
            other = (
                "Regression()" if "target" in found else "Classification()" if "features" in found else "another one"
            )
            raise InputError(
                f"the data set holds {held}, and the task, ImageClassification(), takes image uint8[height, width, "
                f"channels] and label int32[]: give it these, or set task={other}"
            )
        channels = source.image_shape[-1]
        for key, values in (("pixels.mean", self.pixels.mean), ("pixels.std", self.pixels.std)):
            if len(values) not in (1, channels):
                raise InputError(
                    f"task.{key}={values}: wanted one number, or one for each of the {channels} channels of the images"
                )
        height, width, _ = source.image_shape  # images are augmented before they are resized
        if self.augmentation.shift > (most := max(height, width)):  # images are padded by that much
            raise InputError(
                f"task.augmentation.shift={self.augmentation.shift}: images of {height}x{width} are gone when they are "
                f"moved by more than {most}; wanted at most that"
            )

    def warnings(self, source: Any) -> Iterator[str]:
        """Augmentation that leaves nothing of an image, or does nothing to it."""
        height, width, channels = source.image_shape
        for name in ("shift", "erase"):
            if (size := getattr(self.augmentation, name)) >= min(height, width):
                yield (
                    f"task.augmentation.{name}={size}: images of {height}x{width} may be left with nothing in them; "
                    "give less"
                )
        if self.augmentation.saturation and channels == 1:
            yield f"task.augmentation.saturation={self.augmentation.saturation:g}: grey images have none; leave it out"
        if self.mixing.cutmix_share != Mixing().cutmix_share and not (self.mixing.mixup and self.mixing.cutmix):
            yield (
                f"task.mixing.cutmix_share={self.mixing.cutmix_share:g}: it counts where task.mixing.mixup and "
                "task.mixing.cutmix are both on"
            )


def require_logits(outputs: Any) -> None:
    """Raise InputError unless outputs, given by their shape and dtype, are real numbers that have a gradient."""
    if not jnp.issubdtype(outputs.dtype, jnp.floating):
        raise InputError(f"the model gives {outputs.dtype}{list(outputs.shape)}: wanted floating-point logits")


def measures_as(task: Task, kind: type[Task]) -> bool:
    """Whether a task measures and weighs its examples as this class does."""
    return all(getattr(type(task), name) is getattr(kind, name) for name in ("measures", "weights"))


def require_logits_of(
    classes: np.ndarray, logits: int, rows: np.ndarray, what: str, besides: int | None = None
) -> None:
    """Raise InputError unless all classes, [batch, ...], are below `logits`, or `besides`; it names `what` and the row.

    The cross-entropy of a class without a logit would be another's, or no number.
    """
    if classes.size and 0 <= classes.min() <= classes.max() < logits:
        return
    wrong = (classes < 0) | (classes >= logits)
    if besides is not None:
        wrong &= classes != besides
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        raise InputError(
            f"{what} {rows[first[0]]} is {classes[first]}: wanted 0 to {logits - 1}, as the model gives {logits} "
            "logits; count from 0, or make its last layer wider"
        )


# ---- Loss -----------------------------------------------------------------------------------------------


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
        loss = optax.softmax_cross_entropy(in_float32(logits), target).mean()
        for weight, others in auxiliary:
            loss += weight * optax.softmax_cross_entropy(in_float32(others), target).mean()
        metrics = {"loss": loss, "accuracy": correct(logits, labels).mean()}
        return loss, LossOutput(stats, metrics)

    return loss_fn


def _mixture(target: jax.Array, share: jax.Array) -> jax.Array:
    """Mix each example's target, [batch, classes], with its neighbour's."""
    return share[:, None] * target + (1 - share)[:, None] * neighbours(target)


def correct(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return 1.0 where the largest logit is that of the label, else 0.0: float32 [batch]."""
    return (logits.argmax(-1) == labels).astype(jnp.float32)


def mean_probability(logits: jax.Array) -> jax.Array:
    """Return the logarithm of the mean of the probabilities that these logits say, over dim 0."""
    return jax.nn.logsumexp(jax.nn.log_softmax(in_float32(logits)), axis=0) - jnp.log(len(logits))
