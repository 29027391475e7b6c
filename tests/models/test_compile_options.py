"""Compile options change how a program computes, not what it computes."""

import jax
import numpy as np
import pytest

from jaxnet.models import inference_options, network_options, once_options


def test_a_program_that_runs_once_gives_the_bits_of_one_compiled_with_every_pass():
    def first_weights(key):
        return jax.random.truncated_normal(key, -2.0, 2.0, (3, 3, 5, 7)), jax.random.normal(key, (33,))

    def compiled(options):
        return jax.jit(lambda key: first_weights(key), compiler_options=options)(jax.random.key(0))

    quick, thorough = compiled(once_options("cpu")), compiled({"xla_backend_optimization_level": 3})
    jax.tree.map(np.testing.assert_array_equal, quick, thorough)


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
    for options in (network_options, inference_options, once_options):
        assert options("gpu") == options("tpu") == {}
