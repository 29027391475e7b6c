"""Compile options change how a program computes, not what it computes."""

import jax
import pytest

from jaxnet.models import inference_options, network_options


def dense_layers_in_one_operation(options):
    """Of three dense layers and a softmax: the most that the compiler makes one operation of."""

    def network(kernels, x):
        for kernel in kernels:
            x = jax.nn.relu(x @ kernel)
        return jax.nn.softmax(x)

    kernels = [jax.ShapeDtypeStruct((2048, 2048), "float32")] * 3
    compiled = jax.jit(network, compiler_options=options).lower(kernels, jax.ShapeDtypeStruct((8, 2048), "float32"))
    return max(computation.count(" dot(") for computation in compiled.compile().as_text().split("\n\n"))


def test_inference_takes_no_dense_layers_into_its_sums():
    if dense_layers_in_one_operation(network_options("cpu")) == 1:
        pytest.skip("this compiler keeps them apart anyway")
    assert dense_layers_in_one_operation(inference_options("cpu")) == 1


def test_other_platforms_need_none():
    for options in (network_options, inference_options):
        assert options("gpu") == options("tpu") == {}
