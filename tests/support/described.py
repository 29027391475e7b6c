"""A small network under a strategy, compiled for accelerators that are described."""

import importlib.util

import flax.linen as nn
import pytest

from jaxnet import Config, Optimizer
from jaxnet.comm import has_bucket_size
from jaxnet.cost.accelerators import Cluster, prepare_compilers
from jaxnet.data import Synthetic
from jaxnet.training.forecast import Forecast, forecast
from jaxnet.training.prepare import prepare

_MODULES = {"gpu": "jax_cuda12_plugin", "tpu": "libtpu"}


class Net(nn.Module):
    """Layers of 256, so that backward has something to compute while sums travel."""

    num_classes: int = 10
    depth: int = 3

    @nn.compact
    def __call__(self, images, *, train):
        x = images.reshape(len(images), -1)
        for _ in range(self.depth):
            x = nn.relu(nn.Dense(256)(x))
        return nn.Dense(self.num_classes)(x)


def config(strategy, depth=3, batch_size=128, **fields):
    """A run of it with buckets of a part of a layer."""
    return Config(
        model=Net(depth=depth),
        data=Synthetic((8, 8, 1), num_train=512, num_test=64),
        batch_size=batch_size,
        epochs=1,
        optimizer=Optimizer("sgd", learning_rate=0.1),
        strategy=strategy,
        bucket_bytes=100_000 if isinstance(strategy, str) and has_bucket_size(strategy) else None,
        **fields,
    )


def compiled_for(cluster: Cluster, strategy, **fields) -> Forecast:
    """What the compiler makes of its step; the test is skipped where that compiler is not installed."""
    require_compiler(cluster)
    prepare_compilers()
    return forecast(prepare(config(strategy, **fields), cluster.mesh(fields.get("hosts"))), cluster)


def require_compiler(cluster: Cluster) -> None:
    """Skip the test where it is not installed."""
    platform = cluster.accelerator.platform
    if importlib.util.find_spec(_MODULES[platform]) is None:
        pytest.skip(f"the compiler for {platform}s is not installed: make compilers")
