"""A config as what a simulation of many devices asks about."""

import jax
import jax.numpy as jnp
import pytest

from jaxnet.config.file import load_config
from jaxnet.models.zoo import count_flops, parameter_flops
from jaxnet.training.network import as_model
from jaxnet.training.scaling import layers_of
from support.programs import ROOT


@pytest.mark.parametrize("name", ["digits", "text_transformer"])
def test_layers_are_those_of_the_network_as_forward_uses_them(name):
    config = load_config(ROOT / f"configs/{name}.py")
    layers = layers_of(config)
    shape = ((1, 8, 8, 1), "float32") if name == "digits" else ((1, config.data.length), "int32")
    model, inputs = as_model(config.model), jax.ShapeDtypeStruct(*shape)
    params, stats = jax.eval_shape(model.init, jax.random.key(0), inputs)
    assert sum(layer.elements for layer in layers) == sum(leaf.size for leaf in jax.tree.leaves(params))
    flops = count_flops(lambda *given: model.apply(*given, train=False, keys=None)[0], params, stats, inputs)
    of_parameters = sum(layer.flops for layer in layers)
    assert 0.85 * flops < of_parameters <= flops  # attention's own products are no parameter's
    first, last = [layer for layer in layers if layer.elements > 100][:1], layers[-1]
    assert first[0].elements == (288 if name == "digits" else 256 * 128)  # a kernel of 3 x 3, the table of words
    assert last.elements == (10 if name == "digits" else 256)


def test_an_ensemble_has_the_parameters_of_all_members():
    config = load_config(ROOT / "configs/digits_ensemble.py")
    alone = layers_of(load_config(ROOT / "configs/digits_ensemble.py", "ensemble.members=1"))
    assert sum(layer.elements for layer in layers_of(config)) == 4 * sum(layer.elements for layer in alone)


def test_products_of_a_loop_count_as_often_as_it_runs():
    def rounds(params, x):
        return jax.lax.scan(lambda carry, _: (carry @ params["w"], None), x, length=5)[0]

    params, x = {"w": jax.ShapeDtypeStruct((3, 3), jnp.float32)}, jax.ShapeDtypeStruct((2, 3), jnp.float32)
    assert parameter_flops(rounds, params, x) == [5 * 2 * 2 * 3 * 3]
    assert count_flops(rounds, params, x) == 5 * 2 * 2 * 3 * 3
