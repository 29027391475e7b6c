"""Built-in workloads: plain JAX functions whose gradients are worth sending."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxnet.cost.shapes import MIXING_WIDTH, SIZES, Sizes
from jaxnet.errors import InputError

Params = list[jax.Array]
LossFn = Callable[[Params, jax.Array], jax.Array]


@dataclass(frozen=True)
class Workload:
    """A loss over `sizes.leaves` and a batch of examples; the loss is a mean over examples.

    All losses are mean squares of the outputs: as heavy as a real one, and they stay finite however long they run.
    """

    name: str
    sizes: Sizes
    loss: LossFn

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Parameters, and so gradients, as abstract values."""
        return [jax.ShapeDtypeStruct(shape, "float32") for shape in self.sizes.leaves]

    def examples(self, count: int) -> jax.ShapeDtypeStruct:
        """A batch of that many examples, as an abstract value."""
        return jax.ShapeDtypeStruct((count, *self.sizes.example), "float32")

    def initial(self) -> list[np.ndarray]:
        """Parameters that keep activations near 1, the same on every process."""
        draw = np.random.default_rng(0)
        return [draw.standard_normal(leaf, np.float32) * np.float32(_scale(leaf)) for leaf in self.sizes.leaves]


def named_workload(name: str, batch: int | None = None) -> Workload:
    """The workload called `name`, with `batch` examples a host instead of its own number.

    >>> named_workload("dense", batch=4).examples(2).shape
    (2, 1024)
    """
    if name not in SIZES:
        raise InputError(f"no workload {name!r}; there are: {', '.join(SIZES)}")
    sizes = SIZES[name] if batch is None else replace(SIZES[name], batch=batch)
    return Workload(name, sizes, _LOSSES[name])


def _scale(leaf: Sequence[int]) -> float:
    return math.sqrt(2 / math.prod(leaf[:-1])) if len(leaf) > 1 else 0.1


def _dense(params: Params, x: jax.Array) -> jax.Array:
    for kernel in params[:-1]:
        x = jax.nn.relu(x @ kernel)
    return jnp.mean((x @ params[-1]) ** 2)


def _vgg(params: Params, x: jax.Array) -> jax.Array:
    """Convolutions with ReLU, each halved by mean pooling, then dense layers."""
    for kernel in params[:3]:
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = _halved(jax.nn.relu(x))
    return _dense(params[3:], x.reshape(x.shape[0], -1))


def _halved(x: jax.Array) -> jax.Array:
    count, height, width, channels = x.shape
    return x.reshape(count, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def _resnet50(params: Params, x: jax.Array) -> jax.Array:
    """For each leaf a product with it as a matrix and one with a constant matrix.

    So every leaf is read in forward, and its gradient is a product over the examples, which needs the backward pass of
    all later leaves; the size of the convolutions' own compute is left out. A gradient that is a number times the leaf
    would not do: XLA's partitioner sends the number.
    """
    rows = np.arange(MIXING_WIDTH, dtype=np.float32)
    mix = jnp.asarray(np.cos(np.outer(rows, rows + 0.5) * (np.pi / MIXING_WIDTH)) / math.sqrt(MIXING_WIDTH / 2))
    for leaf in params:
        inputs = math.gcd(leaf.size, MIXING_WIDTH)
        shift = jnp.mean(jnp.tanh(x[:, :inputs] @ leaf.reshape(inputs, -1)), 1, keepdims=True)
        x = jnp.tanh(x @ mix + shift)
    return jnp.mean(x**2)


def _small(params: Params, x: jax.Array) -> jax.Array:
    for kernel in params:
        x = jnp.tanh(x @ kernel)
    return jnp.mean(x**2)


_LOSSES: dict[str, LossFn] = {"dense": _dense, "vgg": _vgg, "resnet50": _resnet50, "small": _small}
