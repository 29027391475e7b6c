"""The networks since 2014 learn in every precision, narrow and on small images."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxnet.models import ZOO, Heads, from_linen

CASES = {
    "resnet18": (28, "float16", {}),
    "resnet50_v1": (28, "bfloat16", {"depths": (1, 1, 1, 1)}),
    "resnet50_d": (64, "float16", {"depths": (1, 1, 1, 1)}),
    "googlenet": (64, "float16", {}),
    "inception_v3": (75, "float16", {}),
    "lstm": (28, "float16", {}),
    "vit_tiny": (28, "float16", {"patch": 7, "depth": 2, "dropout": 0.1}),
}
QUICK = {"xla_backend_optimization_level": 0}  # compiling takes longer than what is compiled
LABELS = jnp.arange(4) % 3
KEYS = jax.random.split(jax.random.key(1), 4)


def drawn(shapes):
    """Parameters for these shapes, none of them zero; cheaper than a compiled `init`."""
    draw = np.random.RandomState(2)

    def leaf(path, shape):
        noise = draw.standard_normal(shape.shape).astype(np.float32)
        if path[-1].key == "kernel":
            return noise * np.sqrt(2 / np.prod(shape.shape[:-1]))
        return 1 + 0.1 * noise if path[-1].key in ("scale", "var") else 0.1 * noise

    return jax.tree.map_with_path(leaf, shapes)


# The widest of the Inceptions take longer than all the others together; resnet18 stands for its siblings.
SLOW = {"inception_v3", "resnet50_v1", "resnet50_d"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
def test_every_parameter_learns(name):
    side, dtype, fields = CASES[name]
    model = from_linen(ZOO[name].build(num_classes=3, width=0.125, dtype=dtype).clone(**fields))
    images = jnp.asarray(np.random.RandomState(0).standard_normal((4, side, side, 1)), "float32")
    params, stats = drawn(jax.eval_shape(model.init, jax.random.key(0), images))

    def loss(params):
        outputs, changed = model.apply(params, stats, images, train=True, keys=KEYS)
        heads = outputs if isinstance(outputs, Heads) else Heads(outputs)
        every = [heads.logits, *(logits for _, logits in heads.auxiliary)]
        return sum(optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean() for logits in every), changed

    step = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=QUICK)
    (value, changed), gradients = step(params)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(changed))
    for path, gradient in jax.tree.leaves_with_path(gradients):
        assert np.isfinite(gradient).all(), jax.tree_util.keystr(path)
        assert np.abs(gradient).max() > 0, jax.tree_util.keystr(path)
