"""A trained network as one function, from uint8 images to probabilities.

An `Architecture` is the model, the normalization of its images and its classes; a `Network` is an architecture with
weights. `load` makes them, `Predictor` calls them, `export` writes them as a program.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.checkpoints.leaves import named_leaves
from jaxnet.data import Inputs
from jaxnet.ensembles import member_of
from jaxnet.errors import InputError
from jaxnet.models import Model, abstract_variables, from_linen
from jaxnet.tasks.classification import Pixels

Weights = dict[str, jax.Array]
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Architecture:
    """A network without weights.

    Attributes:
        model: a Linen module, or a pure model.
        pixels: how images are normalized.
        inputs: the images that it takes, and its classes.
        members: how many networks an ensemble has: weights then lead with [members], and probabilities are the mean of
            the members'.
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
        variables = abstract_variables(self._pure, images)
        return {"params": variables.params, **variables.stats}

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of the weights by name, such as params/conv_0/kernel and batch_stats/norm_0/mean."""
        shapes: dict[str, jax.ShapeDtypeStruct] = named_leaves(self._tree)
        if self.members == 1:
            return shapes
        return {name: leaf.update(shape=(self.members, *leaf.shape)) for name, leaf in shapes.items()}

    def images(self, count: Any) -> jax.ShapeDtypeStruct:
        """Return the shape of a batch of `count` images."""
        return jax.ShapeDtypeStruct((count, *self.inputs.image_shape), "uint8")

    def probabilities(self, weights: Mapping[str, jax.Array], images: jax.Array) -> jax.Array:
        """Return the probabilities, float32 [batch, classes], of uint8 images [batch, height, width, channels].

        Call it inside `jax.jit`.
        """
        if self.members > 1:
            alone = replace(self, members=1)
            each = [alone.probabilities(member_of(weights, index), images) for index in range(self.members)]
            return jnp.stack(each).mean(0)
        leaves = [weights[name] for name in self.shapes]
        params, stats = split(jax.tree.unflatten(jax.tree.structure(self._tree), leaves))
        logits, _ = self._pure.apply(params, stats, self.pixels.normalize(images), train=False, keys=None)
        return jax.nn.softmax(logits.astype(jnp.float32))

    def in_dtype(self, dtype: str | None) -> "Architecture":
        """Return the same network with its computation in `dtype`, if it has a field for that."""
        if dtype is None:
            return self
        if dtype not in DTYPES:
            raise InputError(f"dtype {dtype}: wanted one of {', '.join(DTYPES)}")
        if isinstance(self.model, Model) or "dtype" not in {field.name for field in fields(self.model)}:
            return self
        return replace(self, model=self.model.clone(dtype=dtype))

    def check(self, where: str) -> None:
        """Raise InputError unless the network takes these images and has outputs for these classes."""
        try:
            result = jax.eval_shape(self.probabilities, self.shapes, self.images(2))
        except Exception as error:  # any error of the network about the images
            raise InputError(f"{where}: the network cannot be built: {error}") from error
        if len(result.shape) != 2 or result.shape[1] < self.inputs.num_classes:
            raise InputError(
                f"{where}: the network gives {list(result.shape[1:])} numbers per image for "
                f"{self.inputs.num_classes} classes"
            )


@dataclass(frozen=True)
class Network:
    """A network with its weights, on one device; `where` names the file that they come from."""

    architecture: Architecture
    weights: Weights
    where: str


def split(variables: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the parameters, and all other collections."""
    return variables["params"], {name: tree for name, tree in variables.items() if name != "params"}


def in_dtype(weights: Weights, dtype: str | None) -> Weights:
    """Return the weights with parameters in `dtype`; running averages stay as they are."""
    if dtype is None:
        return weights
    cast = {name: leaf.astype(dtype) for name, leaf in weights.items() if name.startswith("params/")}
    return {**weights, **cast}
