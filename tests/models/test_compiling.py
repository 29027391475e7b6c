"""What compiler options may change, and what not."""

import jax
import numpy as np

from jaxnet.models.compiling import once_options


def test_a_program_that_runs_once_gives_the_bits_of_one_compiled_with_every_pass():
    def first_weights(key):
        return jax.random.truncated_normal(key, -2.0, 2.0, (3, 3, 5, 7)), jax.random.normal(key, (33,))

    def compiled(options):
        return jax.jit(lambda key: first_weights(key), compiler_options=options)(jax.random.key(0))

    quick, thorough = compiled(once_options("cpu")), compiled({"xla_backend_optimization_level": 3})
    jax.tree.map(np.testing.assert_array_equal, quick, thorough)


def test_other_platforms_need_none():
    assert once_options("gpu") == once_options("tpu") == {}
