"""Mixup and cutmix keep the sums of a batch, depend on the pair alone, and match their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxnet import comm
from jaxnet.models import Model, Variables
from jaxnet.parallel import StepOptions, form_of
from jaxnet.parallel.state import first_state
from jaxnet.tasks.classification import Pixels, classification_loss
from jaxnet.tasks.mixing import Mixing, neighbours
from support import tiny

KEYS = jax.random.split(jax.random.key(0), 64)
IMAGES = np.random.RandomState(0).uniform(1, 2, (64, 6, 5, 2)).astype(np.float32)
WAYS = {
    "mixup": Mixing(mixup=0.4),
    "cutmix": Mixing(cutmix=1.0),
    "both": Mixing(mixup=0.2, cutmix=1.0, probability=0.7),
}
each_way = pytest.mark.parametrize("mix", WAYS.values(), ids=WAYS)


@each_way
def test_a_pair_keeps_its_sum(mix):
    images, share = mix(KEYS, IMAGES)
    assert (images.shape, images.dtype, share.shape) == (IMAGES.shape, np.float32, (64,))
    np.testing.assert_allclose(images[0::2] + images[1::2], IMAGES[0::2] + IMAGES[1::2], rtol=1e-5)
    np.testing.assert_array_equal(share[0::2], share[1::2])
    assert ((share >= 0) & (share <= 1)).all()


@each_way
def test_the_randomness_belongs_to_the_pair(mix):
    whole, part = mix(KEYS, IMAGES), mix(KEYS[10:14], IMAGES[10:14])
    for all_of_it, some in zip(whole, part, strict=True):
        np.testing.assert_allclose(some, all_of_it[10:14], rtol=1e-6)


def test_mixup_adds_by_the_share():
    images, share = Mixing(mixup=0.4)(KEYS, IMAGES)
    share = np.asarray(share)[:, None, None, None]
    np.testing.assert_allclose(images, share * IMAGES + (1 - share) * neighbours(IMAGES), rtol=1e-5)


def test_the_share_is_distributed_as_beta():
    share = np.asarray(Mixing(mixup=2.0)(jax.random.split(jax.random.key(5), 4000), jnp.ones((4000, 1, 1, 1)))[1])
    assert abs(share.mean() - 0.5) < 0.02
    assert abs(share.var() - 0.05) < 0.005  # of Beta(2, 2)


def test_cutmix_sets_in_one_box_whose_area_is_the_neighbours_share():
    images, share = Mixing(cutmix=1.0)(KEYS, IMAGES)
    other = (np.asarray(images) == np.asarray(neighbours(IMAGES))).all(-1)
    np.testing.assert_array_equal(np.where(other[..., None], neighbours(IMAGES), IMAGES), images)
    for box, part in zip(other, share, strict=True):
        np.testing.assert_allclose(1 - box.mean(), part, atol=1e-6)
        np.testing.assert_array_equal(box, box.any(1)[:, None] & box.any(0)[None, :])
    assert len(np.unique(share)) > 8


def test_probability_leaves_pairs_alone_and_the_switch_takes_both_ways():
    images, share = Mixing(mixup=1.0, cutmix=1.0, probability=0.5)(KEYS, IMAGES)
    left = np.asarray(share) == 1
    np.testing.assert_array_equal(np.asarray(images)[left], IMAGES[left])
    values = (np.asarray(images) == IMAGES) | (np.asarray(images) == np.asarray(neighbours(IMAGES)))
    cut = values.all((1, 2, 3)) & ~left
    assert left.sum() > 10
    assert cut.sum() > 4
    assert (~left & ~cut).sum() > 4


def seen(pixels_of):
    """A model whose logits are given by its images."""
    return Model(lambda key, images: Variables({}, {}), lambda p, s, images, *, train, keys: (pixels_of(images), s))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_mixture_of_targets(smoothing):
    logits = np.random.RandomState(1).randn(64, 7).astype(np.float32)
    labels = np.random.RandomState(2).randint(0, 7, 64).astype(np.int32)
    mix = Mixing(mixup=0.4)
    loss_fn = classification_loss(seen(lambda images: logits), Pixels(), label_smoothing=smoothing, mix=mix)
    batch = {"image": (IMAGES * 100).astype(np.uint8), "label": labels}
    loss, result = loss_fn({}, {}, batch, KEYS)
    share = np.asarray(mix(KEYS, IMAGES)[1], np.float64)
    log_probs = np.asarray(jax.nn.log_softmax(logits), np.float64)
    target = (1 - smoothing) * (
        share[:, None] * np.eye(7)[labels] + (1 - share)[:, None] * np.eye(7)[np.asarray(neighbours(labels))]
    ) + smoothing / 7
    own = (1 - smoothing) * np.eye(7)[labels] + smoothing / 7
    np.testing.assert_allclose(target[0::2] + target[1::2], own[0::2] + own[1::2])
    np.testing.assert_allclose(loss, -(target * log_probs).sum(-1).mean(), rtol=1e-5)
    larger = np.where(share >= 0.5, labels, np.asarray(neighbours(labels)))
    np.testing.assert_allclose(result.metrics["accuracy"], (logits.argmax(-1) == larger).mean(), rtol=1e-6)


LINEAR = Model(
    lambda key, images: Variables({"w": jnp.zeros((images[0].size, tiny.CLASSES))}, {}),
    lambda params, stats, x, *, train, keys: (x.reshape(len(x), -1) @ params["w"], stats),
)


def losses(devices, strategy="hierarchical", mode="shard_map", microbatches=1):
    """Of three steps of 32 examples in pairs."""
    mesh = comm.make_mesh(1, jax.devices()[:devices])
    strategy, optimizer = comm.named_strategy(strategy), optax.sgd(0.1)
    loss_fn = classification_loss(LINEAR, Pixels(size=10), mix=Mixing(mixup=0.2, cutmix=1.0))
    form = form_of(strategy, mesh, StepOptions(mode, microbatches))
    image = jax.ShapeDtypeStruct((1, 10, 10, 1), "float32")
    first = lambda: first_state(LINEAR, optimizer, form.reducer(None), mesh, image, 0)  # noqa: E731
    layout = form.layout(jax.eval_shape(first), optimizer)
    step = form.step(loss_fn, optimizer, layout)
    return tiny.run(tiny.Setup(step, layout.make(first), mesh, layout), steps=3)[0]


def test_the_same_losses_on_any_number_of_devices_and_microbatches():
    one = losses(1)
    np.testing.assert_allclose(losses(8), one, rtol=2e-5)
    np.testing.assert_allclose(losses(4, microbatches=2), one, rtol=2e-5)
    np.testing.assert_allclose(losses(2, "xla", "jit", microbatches=2), one, rtol=2e-5)
