"""A trained network as one function, from what it is asked about to what it says: from uint8 images to probabilities.

An `Architecture` is the model, its task, and what an example is; a `Network` is an architecture with weights. `load`
makes them, `Predictor` calls them, `export` writes them as a program.
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
from jaxnet.tasks.task import Batch, Task
from jaxnet.weights import flattened_maps

Weights = dict[str, jax.Array]
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Architecture:
    """A network without weights.

    Attributes:
        model: a Linen module, or a pure model.
        task: that it was trained for: says what it is called with, and what its outputs say.
        inputs: the images that it takes, and its classes; of other data, the shapes of the arrays of one example, by
            name.
        members: how many networks an ensemble has: weights then lead with [members], and the prediction is their
            common one.
    """

    model: nn.Module | Model
    task: Task
    inputs: Inputs | Mapping[str, Any]
    members: int = 1

    @functools.cached_property
    def _pure(self) -> Model:
        return self.model if isinstance(self.model, Model) else from_linen(self.model)

    @functools.cached_property
    def _tree(self) -> Any:
        asked = jax.eval_shape(lambda given: self.task.asked(self._batch(given)), self.given(1))
        variables = abstract_variables(self._pure, asked)
        return {"params": variables.params, **variables.stats}

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of the weights by name, such as params/conv_0/kernel and batch_stats/norm_0/mean."""
        shapes: dict[str, jax.ShapeDtypeStruct] = named_leaves(self._tree)
        if self.members == 1:
            return shapes
        return {name: leaf.update(shape=(self.members, *leaf.shape)) for name, leaf in shapes.items()}

    def given(self, count: Any) -> Any:
        """Return the shapes of what a prediction of `count` examples is given: images, or arrays by name."""
        if isinstance(self.inputs, Inputs):
            return jax.ShapeDtypeStruct((count, *self.inputs.image_shape), "uint8")
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), dict(self.inputs))

    def _batch(self, given: Any) -> Batch:
        return {"image": given} if isinstance(self.inputs, Inputs) else given

    def predictions(self, weights: Mapping[str, jax.Array], given: Any) -> Any:
        """Return what the task says of examples: of images, the probabilities of classes, float32 [batch, classes].

        Call it inside `jax.jit`. `given` are images, uint8 [batch, height, width, channels], or arrays by name.
        """
        return self.task.predicted(self._outputs(weights, given))

    @property
    def maps(self) -> dict[str, tuple[int, int, int]]:
        """(height, width, channels) of the feature map that a dense layer flattens, by its kernel's name."""

        def forward(variables: Any, given: Any, train: bool) -> Any:
            params, stats = split(variables)
            keys = jax.random.split(jax.random.key(0), 2) if train else None
            return self._pure.apply(params, stats, self.task.asked(self._batch(given)), train=train, keys=keys)[0]

        return flattened_maps(forward, self._tree, self.given(2))

    def _outputs(self, weights: Mapping[str, jax.Array], given: Any) -> Any:
        if self.members > 1:
            alone = replace(self, members=1)
            each = [alone._outputs(member_of(weights, index), given) for index in range(self.members)]
            together = self.task.combined(jax.tree.map(lambda *of: jnp.stack(of), *each))
            if together is None:
                raise InputError(f"{type(self.task).__name__} has no common prediction of members: choose one of them")
            return together
        leaves = [weights[name] for name in self.shapes]
        params, stats = split(jax.tree.unflatten(jax.tree.structure(self._tree), leaves))
        return self._pure.apply(params, stats, self.task.asked(self._batch(given)), train=False, keys=None)[0]

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
        """Raise InputError unless the network takes these examples and, of images, has outputs for these classes."""
        try:
            result = jax.eval_shape(self.predictions, self.shapes, self.given(2))
        except Exception as error:  # any error of the network about the examples
            raise InputError(f"{where}: the network cannot be built: {error}") from error
        if not isinstance(self.inputs, Inputs):
            return
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
