"""A linear model on which an example with a negative id has no finite loss."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnet import comm
from jaxnet.models import Model, Variables
from jaxnet.parallel import Layout, StepOptions, form_of
from jaxnet.parallel.state import first_state
from jaxnet.tasks.classification import LossOutput

IMAGE, CLASSES = (4, 4, 1), 3
INPUTS = jax.ShapeDtypeStruct((1, *IMAGE), "float32")
SIZE = 16


class Setup(NamedTuple):
    step: jax.stages.Wrapped
    state: object
    mesh: object
    layout: Layout


def linear(dtype="float32"):
    """Its running average is the mean of its logits."""

    def init(key, images):
        params = {"kernel": jax.random.normal(key, (16, CLASSES)) / 4, "bias": jnp.zeros(CLASSES)}
        return Variables(params, {"mean": jnp.zeros(CLASSES)})

    def apply(params, stats, images, *, train, keys=None):
        cast = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        logits = images.reshape(images.shape[0], -1).astype(dtype) @ cast["kernel"] + cast["bias"][None]
        logits = logits.astype("float32")
        return logits, {"mean": 0.9 * stats["mean"] + 0.1 * logits.mean(0)}

    return Model(init, apply)


def loss_of(model, size):
    def loss_fn(params, stats, batch, keys):
        poison = jnp.where(batch["id"] < 0, jnp.nan, 1.0)[:, None, None, None]
        logits, stats = model.apply(params, stats, batch["image"] * poison, train=True, keys=keys)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
        return size * loss, LossOutput(stats, {"loss": loss})

    return loss_fn


def setup(strategy="hierarchical", shape=(2, 2), dtype="float32", size=1.0, **options):
    mesh = comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])
    model = linear(dtype)
    if isinstance(strategy, str):
        strategy = comm.named_strategy(strategy)
    optimizer = optax.adam(0.05)
    default = "jit" if strategy.kind == "xla" else "shard_map"
    form = form_of(strategy, mesh, StepOptions(**{"mode": default, "average_decay": 0.9, **options}))
    optimizer = form.optimizer(optimizer)
    first = lambda: first_state(  # noqa: E731
        *(model, optimizer, form.reducer(None), mesh, INPUTS, 0),
        averaged=True,
        scaled=dtype == "float16",
    )
    layout = form.layout(jax.eval_shape(first), optimizer)
    return Setup(form.step(loss_of(model, size), optimizer, layout), layout.make(first), mesh, layout)


def batch(setup, seed, bad=()):
    """A batch in which the examples at the places `bad` are poisoned."""
    draw = np.random.RandomState(seed)
    ids = np.arange(1, SIZE + 1, dtype=np.int32)
    ids[list(bad)] = -1
    image = draw.standard_normal((SIZE, *IMAGE)).astype(np.float32)
    label = draw.randint(0, CLASSES, SIZE).astype(np.int32)
    return jax.device_put({"image": image, "label": label, "id": ids}, comm.split_by_example(setup.mesh))


def held(state):
    """A state on the host, every device's copy of `comm` included."""
    return jax.tree.map(np.array, jax.device_get(state))
