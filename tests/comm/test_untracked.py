"""A function whose loops begin with a constant, under shard_map: its values and gradients are a device's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxnet import comm

EXAMPLES = np.random.RandomState(0).standard_normal((8, 3, 4)).astype(np.float32)
WEIGHTS = jnp.linspace(0.5, 1.5, 4)


def by_scan(weights, rows):
    return lax.scan(lambda carry, row: (jnp.tanh(carry + weights * row), None), jnp.zeros(4), rows)[0].sum()


def by_loop(weights, rows):
    return lax.fori_loop(0, 3, lambda index, carry: carry + (weights * rows[index]) ** 2, jnp.zeros(4)).sum()


def by_branch(weights, rows):
    return lax.cond(rows.sum() > 0, lambda: (rows @ weights).sum(), lambda: jnp.float32(0))


def mapped(function, argument):
    mesh = comm.make_mesh(2)
    own = lambda rows: jax.tree.map(lambda leaf: leaf[None], function(rows[0]))  # noqa: E731
    return jax.jit(jax.shard_map(own, mesh=mesh, in_specs=P(comm.AXES), out_specs=P(comm.AXES)))(argument)


@pytest.mark.parametrize("function", [by_scan, by_loop, by_branch])
def test_values_and_gradients_are_those_of_each_device_alone(function):
    with pytest.raises(TypeError, match="manual axis types"):  # what it is for
        mapped(lambda rows: function(WEIGHTS, rows), EXAMPLES)

    def gradients(rows):
        varying = lax.pcast(WEIGHTS, comm.AXES, to="varying")
        return jax.value_and_grad(comm.untracked(function), argnums=(0, 1))(varying, rows)

    got = mapped(gradients, EXAMPLES)
    alone = [jax.value_and_grad(function, argnums=(0, 1))(WEIGHTS, rows) for rows in EXAMPLES]
    wanted = jax.tree.map(lambda *rows: np.stack(rows), *alone)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6), got, wanted)


def test_results_are_typed_as_what_they_are():
    """So that what no argument changes is not taken for a device's own; and nothing travels."""
    types = []

    def told(rows):
        made = comm.untracked(lambda rows, same: (rows.sum(), same + 1))(rows, jnp.ones(2))
        types.extend(comm.varying_axes(leaf) for leaf in made)
        return made[0]

    mapped(told, EXAMPLES)
    assert types == [frozenset(comm.AXES), frozenset()]


def test_keys_and_whole_numbers_go_in_too():
    keys = jax.random.split(jax.random.key(0), 8)
    draw = lambda keys: lax.fori_loop(0, 2, lambda _, carry: carry + jax.random.normal(keys), 0.0)  # noqa: E731
    got = mapped(comm.untracked(draw), keys)
    np.testing.assert_allclose(got, [2 * jax.random.normal(key) for key in keys], rtol=1e-6)


def test_a_function_in_which_something_travels_is_refused():
    def summed(rows):
        return lax.fori_loop(0, 3, lambda _, carry: carry + lax.psum(rows, "device"), jnp.zeros((3, 4)))

    with pytest.raises(TypeError, match="nothing travels, and this one has all-reduce"):
        mapped(comm.untracked(summed), EXAMPLES)
