"""Evaluation counts every example once, whatever the mesh."""

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.data import ArraySource, Shard, eval_batches, placed
from jaxnet.models import CNN, from_linen
from jaxnet.tasks import ImageClassification, Pixels, evaluate, make_eval_step

draw = np.random.RandomState(0)
SOURCE = ArraySource(draw.randint(0, 256, (37, 8, 8, 1)).astype(np.uint8), draw.randint(0, 10, 37).astype(np.int32), 10)
MODEL = from_linen(CNN(10, widths=(4,), hidden=8))
TASK = ImageClassification(Pixels((0.4,), (0.3,)))


def plain():
    """Example by example, in NumPy."""
    params, stats = MODEL.init(jax.random.key(0), np.zeros((1, 8, 8, 1), np.float32))
    rows = SOURCE.rows(np.arange(37))
    images = (rows["image"].astype(np.float32) / 255 - 0.4) / 0.3
    logits = np.asarray(MODEL.apply(params, stats, images, train=False, keys=None)[0], np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -log_probs[np.arange(37), rows["label"]].mean()
    return params, stats, loss, (logits.argmax(-1) == rows["label"]).mean()


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (2, 4)], ids=str)
@pytest.mark.parametrize("batch_size", [8, 16, 64])
def test_equals_the_plain_loop(shape, batch_size):
    mesh = comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])
    params, stats, loss, accuracy = plain()
    params, stats = jax.device_put((params, stats), comm.replicated(mesh))
    batches = eval_batches(SOURCE, batch_size=batch_size, shard=Shard(0, 1))
    on_devices = placed(batches, comm.split_by_example(mesh))
    result = evaluate(make_eval_step(MODEL, TASK, mesh), TASK, params, stats, on_devices)
    assert result["examples"] == 37
    assert result["accuracy"] == accuracy
    np.testing.assert_allclose(result["loss"], loss, rtol=1e-5)
