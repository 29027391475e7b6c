"""Predict numbers: squared, absolute or Huber's error, and R2."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from jaxnet.data import example_shapes
from jaxnet.errors import InputError
from jaxnet.limits import Positive
from jaxnet.tasks.task import Batch, Measures, PyTree, Task, Values, in_float32

_LEAST_VARIANCE = 1e-5  # of squared targets: less is lost in the rounding of float32


@dataclass(frozen=True)
class Regression(Task):
    """One or several numbers: batches with 'features', which the model is called with, and 'target', [batch(, n)].

    The model learns the standardized target, `(target - mean) / std`, since networks begin near 0 and learn numbers
    around 1 best. The loss is of that; errors are reported in the units of the target, and R2 of a single number an
    example: `1 - mean((y - prediction)^2) / variance(y)`, as scikit-learn's `r2_score`.

    Attributes:
        mean: what is subtracted from the target, such as its mean over the training examples.
        std: what it is divided by then.
        error: 'squared', 'absolute', or 'huber': squared up to 1 standard deviation and linear beyond.
    """

    mean: float = 0.0
    std: Positive = 1.0
    error: Literal["squared", "absolute", "huber"] = "squared"

    needs: ClassVar[tuple[str, ...]] = ("features", "target")

    def inputs(self, batch: Batch) -> PyTree:
        """The features."""
        return batch["features"]

    def measures(self, outputs: PyTree, batch: Batch) -> Measures:
        """The loss, and the sums that errors and R2 are made of."""
        target = (batch["target"].astype(jnp.float32) - self.mean) / self.std
        single = math.prod(target.shape[1:]) == 1
        target = target.reshape(len(target), -1)
        difference = in_float32(outputs).reshape(target.shape) - target
        absolute, squared = abs(difference), difference**2
        losses = {
            "squared": squared,
            "absolute": absolute,
            "huber": jnp.where(absolute < 1, 0.5 * squared, absolute - 0.5),
        }
        found = {"loss": losses[self.error], "absolute_error": absolute, "squared_error": squared}
        if single:
            found |= {"target": target, "squared_target": target**2}
        return {name: values.mean(1) for name, values in found.items()}

    def reported(self, means: Mapping[str, float]) -> Values:
        """The loss, the mean absolute error, the root of the mean squared one and, of one number an example, R2."""
        shown = {
            "loss": means["loss"],
            "mean_absolute_error": self.std * means["absolute_error"],
            "root_mean_squared_error": self.std * math.sqrt(means["squared_error"]),
        }
        if "target" in means:
            variance = means["squared_target"] - means["target"] ** 2
            # Examples with one and the same target have no variance that could be explained. What float32 has left of
            # it beside a large mean is noise: see `warnings`.
            known = variance > _LEAST_VARIANCE * means["squared_target"]
            shown["r2"] = 1 - means["squared_error"] / variance if known else 0.0
        return shown

    def warnings(self, source: Any) -> Iterator[str]:
        """Targets far from `mean`, of which neither a network nor R2 in float32 sees the differences."""
        some = np.linspace(0, source.num_examples - 1, min(source.num_examples, 100)).astype(np.int64)
        target = np.asarray(source.rows(some)["target"], np.float64)
        mean, std = target.mean(), target.std()
        if math.prod(target.shape[1:]) == 1 and std > 0 and (mean - self.mean) ** 2 > std**2 / (10 * _LEAST_VARIANCE):
            yield (
                f"task.mean={self.mean:g}: the targets are {mean:.4g} with a deviation of {std:.4g}, too far from it "
                f"for float32; set task.mean={mean:.4g} and task.std={std:.4g}"
            )

    def predicted(self, outputs: PyTree) -> PyTree:
        """The numbers in the units of the target."""
        return in_float32(outputs) * self.std + self.mean

    def combined(self, outputs: PyTree) -> PyTree:
        """The mean of the members' predictions."""
        return in_float32(outputs).mean(0)

    def check_model(self, model: Any, outputs: PyTree, source: Any) -> None:
        """Refuse a model that gives another number of numbers for an example than the target has."""
        del model
        if not hasattr(outputs, "shape"):
            raise InputError(f"the model gives a {type(outputs).__name__}: wanted an array, [batch] or [batch, n]")
        got, wanted = math.prod(outputs.shape[1:]), math.prod(example_shapes(source)["target"].shape)
        if got != wanted:
            raise InputError(
                f"the model gives {got} numbers for an example, and a target has {wanted}: make the width of its last "
                f"layer {wanted}"
            )
