"""What `jaxnet bench step` times: a model with its data, as the trainer's own step under any strategy.

Five are built in, plain JAX functions whose gradients are worth sending. Any Config is another one
(`jaxnet.training.prepare.workload_of`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh

from jaxnet.comm import AXES, DEVICE, HOST, AllReduce, Strategy, all_reduce, backward_order, bucketed, split_by_example
from jaxnet.cost.shapes import MIXING_WIDTH, SIZES, Sizes
from jaxnet.errors import InputError
from jaxnet.parallel import Form, Layout, Mode, Step, StepOptions, TrainState, form_of
from jaxnet.parallel.state import first_comm
from jaxnet.tasks.task import Batch, LossFn, LossOutput

PyTree = Any
Params = list[jax.Array]
LEARNING_RATE = 1e-3  # small: a thousand steps change little, so every round times the same numbers


class PreparedStep(Protocol):
    """A training step under one strategy, before there are arrays."""

    @property
    def form(self) -> Form: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def step(self) -> Step: ...

    def init(self) -> TrainState:
        """The state before the first step, on the mesh."""


PrepareFn = Callable[[Strategy, Mode, AllReduce], PreparedStep]


@dataclass(frozen=True)
class Workload:
    """A model with its data, to be trained under any strategy.

    Attributes:
        name: what it is called.
        batch: examples a host.
        mesh: axes ('host', 'device').
        params: shapes of the parameters, and so of the gradients.
        order: leaves in the order in which backward produces their gradients.
        loss_fn: a mean over examples, as the trainer minimizes it.
        prepare: `prepare(strategy, mode, all_reduce)`: the trainer's step; `all_reduce` sums its metrics.
        global_batch: examples of all hosts, on the mesh.
        allows: whether the model goes with a strategy in this mode; all do by default.
        settings: what else the time of a step depends on, in words.
        may_cross: whether, by default, messages may cross the end of a step.
    """

    name: str
    batch: int
    mesh: Mesh
    params: PyTree
    order: tuple[int, ...]
    loss_fn: LossFn
    prepare: PrepareFn
    global_batch: Batch
    allows: Callable[[Strategy, Mode], bool] = lambda strategy, mode: True
    settings: str = ""
    may_cross: bool = True

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """The leaves of `params`."""
        return jax.tree.leaves(self.params)

    @property
    def gradient_bytes(self) -> int:
        """Of all gradients."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in self.shapes)

    @cached_property
    def first_state(self) -> TrainState:
        """The whole state before the first step, on every device; not to be donated."""
        flat = Strategy(bucketed(all_reduce(*AXES), bucket_bytes=None))
        return self.prepare(flat, "shard_map", all_reduce).init()


@dataclass(frozen=True)
class _Synthetic:
    """A built-in workload's step under one strategy."""

    form: Form
    layout: Layout
    step: Step
    first: Callable[..., TrainState]
    initial: list[np.ndarray]

    def init(self) -> TrainState:
        return self.layout.make(self.first, self.initial)


def named_workload(name: str, mesh: Mesh, batch: int | None = None) -> Workload:
    """The built-in workload called `name`, with `batch` examples a host instead of its own number.

    Raises:
        InputError: no such workload, or the devices of a host cannot share the batch equally.
    """
    if name not in SIZES:
        raise InputError(f"no workload {name!r}; there are: {', '.join(SIZES)}")
    sizes = SIZES[name] if batch is None else replace(SIZES[name], batch=batch)
    devices = mesh.shape[DEVICE]
    if sizes.batch % devices:
        raise InputError(
            f"--batch {sizes.batch}: wanted a multiple of {devices}, the devices of a host, for equal shares"
        )
    return synthetic(name, LOSSES[name], sizes, mesh)


def synthetic(name: str, loss: Callable[[Params, jax.Array], jax.Array], sizes: Sizes, mesh: Mesh) -> Workload:
    """A workload of plain JAX: `loss(params, examples)`, a mean over examples, for parameters of these sizes."""
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in sizes.leaves]
    example = jax.ShapeDtypeStruct((1, *sizes.example), "float32")
    order = backward_order(jax.grad(loss), shapes, example)

    def loss_fn(params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array) -> tuple[jax.Array, LossOutput]:
        del keys
        value = loss(params, batch["x"])
        return value, LossOutput(stats, {"loss": value})

    def prepare(strategy: Strategy, mode: Mode = "shard_map", sums: AllReduce = all_reduce) -> _Synthetic:
        form = form_of(strategy, mesh, StepOptions(mode, order=order, all_reduce=sums))
        optimizer = form.optimizer(optax.sgd(LEARNING_RATE))

        def first(params: list[jax.Array]) -> TrainState:
            comm = first_comm(form.reducer(shapes), params, mesh)
            key = jax.random.key_data(jax.random.key(0))
            params = jax.tree.map(jnp.copy, params)  # every leaf of the state is donated
            return TrainState(jnp.zeros((), jnp.int32), params, {}, optimizer.init(params), comm, None, key)

        layout = form.layout(jax.eval_shape(first, shapes), optimizer)
        return _Synthetic(form, layout, form.step(loss_fn, optimizer, layout), first, initial_values(sizes))

    return Workload(name, sizes.batch, mesh, shapes, order, loss_fn, prepare, _random_batch(sizes, mesh))


def initial_values(sizes: Sizes) -> list[np.ndarray]:
    """Parameters that keep activations near 1, the same on every process."""
    draw = np.random.default_rng(0)
    return [draw.standard_normal(leaf, np.float32) * np.float32(_scale(leaf)) for leaf in sizes.leaves]


def _scale(leaf: Sequence[int]) -> float:
    return math.sqrt(2 / math.prod(leaf[:-1])) if len(leaf) > 1 else 0.1


def _random_batch(sizes: Sizes, mesh: Mesh) -> Batch:
    count, sharding = sizes.batch * mesh.shape[HOST], split_by_example(mesh)
    examples = np.random.default_rng(1).standard_normal((count, *sizes.example), np.float32)
    values = {"x": examples, "id": np.arange(count, dtype=np.int32)}
    # Every process holds the whole, and gives its devices their examples.
    return {
        name: jax.make_array_from_callback(value.shape, sharding, value.__getitem__) for name, value in values.items()
    }


# ---- Losses: mean squares of the outputs, which are as heavy as a real loss and stay finite -------------------


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


LOSSES: dict[str, Callable[[Params, jax.Array], jax.Array]] = {
    "dense": _dense,
    "vgg": _vgg,
    "resnet50": _resnet50,
    "odd": _dense,
    "small": _small,
}
