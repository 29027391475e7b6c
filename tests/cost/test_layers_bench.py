"""benchmarks/layers.py: the layers that it times are those of the network, in every direction."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.layers import Row, layers_of, text
from benchmarks.peers.layers_jax import VARIANTS, layer_run
from benchmarks.peers.networks import CLASSES, DIRECTIONS, NETWORKS, Layer
from jaxnet.models import ZOO
from jaxnet.models.convolution import convolve

STRIDED = Layer((2, 9, 9, 4), (3, 3, 2, 6), stride=2, padding=(1, 1), groups=2)
PRODUCT = Layer((2, 5, 4), (4, 3))


@pytest.mark.parametrize("network", NETWORKS)
def test_their_operations_are_those_of_the_network(network):
    needed = layers_of(network, 2)
    forward = sum(times * layer.flops for (layer, direction), times in needed.items() if direction == "forward")
    entry = ZOO[NETWORKS[network].zoo]
    assert entry.classes == CLASSES
    auxiliary = forward - 2 * entry.flops  # heads that are there in training alone
    assert auxiliary > 0 if NETWORKS[network].auxiliary else auxiliary == 0
    first = next(iter(needed))[0]
    assert (first, "to_inputs") not in needed


def test_shapes_of_results():
    given = jax.ShapeDtypeStruct(STRIDED.inputs, "float32"), jax.ShapeDtypeStruct(STRIDED.kernel, "float32")
    assert STRIDED.outputs == jax.eval_shape(lambda x, k: convolve(x, k, 2, 1, 2), *given).shape
    assert PRODUCT.outputs == jnp.zeros(PRODUCT.inputs).dot(jnp.zeros(PRODUCT.kernel)).shape
    assert Layer.of([list(part) if isinstance(part, tuple) else part for part in STRIDED]) == STRIDED


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", [STRIDED, PRODUCT], ids=["convolution", "product"])
def test_a_layer_runs(layer, direction, variant):
    layer_run(layer, direction, variant)(2)


def test_the_table_ends_with_the_sums_of_a_step():
    rows = [Row(PRODUCT, direction, 3, jaxnet=2.0, written=3.0, torch=1.0) for direction in DIRECTIONS]
    cells = [cell.strip() for cell in list(text(rows))[-1].split("|")]
    assert cells[2:-1] == ["all", "9", "0.00", "18.00 (0)", "27.00 (0)", "9.00 (0)", "0.50"]
