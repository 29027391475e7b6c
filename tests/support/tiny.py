"""A tiny training problem for tests of the step."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnet import comm
from jaxnet.models import CNN, ResNet, from_linen
from jaxnet.parallel import Layout, StepOptions, form_of
from jaxnet.parallel.state import abstract_state, first_state
from jaxnet.tasks.augmentation import Augmentation
from jaxnet.tasks.classification import Pixels, classification_loss

IMAGE = (8, 8, 1)
INPUTS = jax.ShapeDtypeStruct((1, *IMAGE), "float32")
CLASSES = 10


class Setup(NamedTuple):
    step: jax.stages.Wrapped
    state: object
    mesh: object
    layout: Layout


def batch(step: int, size: int = 32) -> dict[str, np.ndarray]:
    draw = np.random.RandomState(step)
    return {
        "image": draw.randint(0, 256, (size, *IMAGE)).astype(np.uint8),
        "label": draw.randint(0, CLASSES, size).astype(np.int32),
        "id": draw.permutation(1000)[:size].astype(np.int32),
    }


@functools.cache
def cnn(**fields):
    return from_linen(CNN(CLASSES, **{"widths": (4, 8), "hidden": 16, "dropout": 0.2, **fields}))


@functools.cache
def resnet(**fields):
    return from_linen(ResNet(CLASSES, **{"depths": (1, 1), "block": "basic", "stem": "small", "channels": 8, **fields}))


@functools.cache
def variables(model):
    """The first variables of a model, drawn once: compiling the draw takes as long as compiling a step."""
    return jax.device_get(jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, *IMAGE), jnp.float32)))


def setup(
    model,
    strategy="hierarchical",
    shape=(1, 8),
    bucket_bytes=None,
    optimizer=None,
    draw_on_mesh=False,
    scaled=False,
    **options,
):
    """A step and its first state, whose variables are drawn beforehand or, with `draw_on_mesh`, as in a run."""
    if not draw_on_mesh:
        drawn = variables(model)
        model = model._replace(init=lambda key, images: drawn)
    mesh = comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])
    loss_fn = classification_loss(model, Pixels((0.5,), (0.5,)), label_smoothing=0.1, augment=Augmentation(flip=True))
    if isinstance(strategy, str):
        strategy = comm.named_strategy(strategy, bucket_bytes)
    optimizer = optimizer or optax.sgd(0.1, 0.9)
    default = "jit" if strategy.kind == "xla" else "shard_map"
    form = form_of(strategy, mesh, StepOptions(**{"mode": default, **options}))
    optimizer = form.optimizer(optimizer)
    first = lambda: first_state(  # noqa: E731
        *(model, optimizer, form.reducer(None), mesh, INPUTS, 0), averaged="average_decay" in options, scaled=scaled
    )
    layout = form.layout(jax.eval_shape(first), optimizer)
    state = layout.make(first) if draw_on_mesh or jax.process_count() > 1 else layout.cut(placed(first(), layout, mesh))
    return Setup(form.step(loss_fn, optimizer, layout), state, mesh, layout)


def placed(state, layout, mesh):
    """A whole state on the mesh: what is made step by step need not be compiled for each mesh."""
    like = abstract_state(layout.whole_shapes, mesh)
    return jax.tree.map(lambda leaf, spec: jax.device_put(leaf, spec.sharding), state, like)


def run(setup, steps=5, size=32):
    """Losses of `steps` steps, and the final state on the host, whole."""
    state, losses = setup.state, []
    for index in range(steps):
        placed = jax.device_put(batch(index, size), comm.split_by_example(setup.mesh))
        state, metrics = setup.step(state, placed)
        losses.append(float(metrics["loss"]))
    return losses, jax.device_get(setup.layout.whole(state))
