"""A trained network as one function from uint8 images to probabilities."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.checkpoints.leaves import named_leaves
from jaxnet.data import Inputs
from jaxnet.errors import InputError
from jaxnet.models import Model, abstract_variables, from_linen
from jaxnet.training.ensemble import member_of
from jaxnet.training.loss import Pixels

Weights = dict[str, jax.Array]
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Architecture:
    """A network before it has weights.

    Attributes:
        model: a Linen module, or a pure model.
        pixels: how images are normalized.
        inputs: what images those are, and the classes.
        members: of an ensemble: weights lead with [members], and probabilities are the mean of the members'.
    """

    model: nn.Module | Model
    pixels: Pixels
    inputs: Inputs
    members: int = 1

    @functools.cached_property
    def _pure(self) -> Model:
        return self.model if isinstance(self.model, Model) else from_linen(self.model)

    @functools.cached_property
    def _tree(self) -> Any:
        images = jax.eval_shape(self.pixels.normalize, self.images(1))
        variables = abstract_variables(self._pure, images.shape[1:])
        return {"params": variables.params, **variables.stats}

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Of the weights by name, such as params/conv_0/kernel and batch_stats/norm_0/mean."""
        shapes: dict[str, jax.ShapeDtypeStruct] = named_leaves(self._tree)
        if self.members == 1:
            return shapes
        return {name: leaf.update(shape=(self.members, *leaf.shape)) for name, leaf in shapes.items()}

    def images(self, count: Any) -> jax.ShapeDtypeStruct:
        """A batch of that many images."""
        return jax.ShapeDtypeStruct((count, *self.inputs.image_shape), "uint8")

    def probabilities(self, weights: Mapping[str, jax.Array], images: jax.Array) -> jax.Array:
        """Of each class, float32 [batch, classes], for uint8 images [batch, height, width, channels]. To be traced."""
        if self.members > 1:
            alone = replace(self, members=1)
            each = [alone.probabilities(member_of(weights, index), images) for index in range(self.members)]
            return jnp.stack(each).mean(0)
        leaves = [weights[name] for name in self.shapes]
        params, stats = split(jax.tree.unflatten(jax.tree.structure(self._tree), leaves))
        logits, _ = self._pure.apply(params, stats, self.pixels.normalize(images), train=False, keys=None)
        return jax.nn.softmax(logits.astype(jnp.float32))

    def in_dtype(self, dtype: str | None) -> "Architecture":
        """The same network with its computation in `dtype`, if it has a field for that."""
        if dtype is None:
            return self
        if dtype not in DTYPES:
            raise InputError(f"dtype {dtype}: wanted one of {', '.join(DTYPES)}")
        if isinstance(self.model, Model) or "dtype" not in {field.name for field in fields(self.model)}:
            return self
        return replace(self, model=self.model.clone(dtype=dtype))

    def check(self, where: str) -> None:
        """Raise InputError unless the network takes these images and gives these classes."""
        try:
            result = jax.eval_shape(self.probabilities, self.shapes, self.images(2))
        except Exception as error:  # whatever the network has against the images
            raise InputError(f"{where}: the network cannot be built: {error}") from error
        if len(result.shape) != 2 or result.shape[1] < self.inputs.num_classes:
            raise InputError(
                f"{where}: the network gives {list(result.shape[1:])} numbers an image for "
                f"{self.inputs.num_classes} classes"
            )


@dataclass(frozen=True)
class Network:
    """A network with its weights, on one device; `where` is the file that they come from."""

    architecture: Architecture
    weights: Weights
    where: str


def split(variables: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Parameters, and all other collections."""
    return variables["params"], {name: tree for name, tree in variables.items() if name != "params"}


def in_dtype(weights: Weights, dtype: str | None) -> Weights:
    """Parameters held in `dtype`; running averages stay as they are."""
    if dtype is None:
        return weights
    cast = {name: leaf.astype(dtype) for name, leaf in weights.items() if name.startswith("params/")}
    return {**weights, **cast}
