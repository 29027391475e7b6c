"""Random numbers of fast keys are those of JAX."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet.models import fast_keys, network_options


def same(draw: Callable[[jax.Array], jax.Array], key: jax.Array) -> bool:
    """Whether a key and its fast twin draw the same, as it is and compiled."""
    drawn, fast = draw(key), draw(fast_keys(key))
    return np.array_equal(drawn, fast) and np.array_equal(drawn, jax.jit(draw)(fast_keys(key)))


@pytest.mark.parametrize("shape", [(), (0,), (5,), (40, 60), (3, 5, 700)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_bits(shape: tuple[int, ...], dtype: str) -> None:
    assert same(lambda key: jax.random.bits(key, shape, dtype), jax.random.key(11))


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
def test_split(shape: tuple[int, ...]) -> None:
    assert same(lambda key: jax.random.key_data(jax.random.split(key, shape)), jax.random.key(2**31 - 1))


@pytest.mark.parametrize("number", [0, 1, 2**32 - 1])
def test_fold_in(number: int) -> None:
    assert same(lambda key: jax.random.key_data(jax.random.fold_in(key, number)), jax.random.key(5))


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: jax.random.normal(key, (30, 40)),
        lambda key: jax.random.bernoulli(key, 0.1, (3000,)),
        lambda key: jax.random.permutation(key, 2000),
        lambda key: jax.random.randint(key, (7000,), 0, 5),
        lambda key: jax.random.normal(key, (5000,), "bfloat16"),
    ],
)
def test_distributions(draw: Callable[[jax.Array], jax.Array]) -> None:
    assert same(draw, jax.random.key(3))


def test_64_bits() -> None:
    with jax.enable_x64(True):
        assert same(lambda key: jax.random.bits(key, (5000,), "uint64"), jax.random.key(3))


def test_many_keys_at_once() -> None:
    def draw(keys: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, 2), (4000,)))(keys)

    assert same(draw, jax.random.split(jax.random.key(1), 3))


def test_the_data_of_a_key_is_the_same() -> None:
    key = jax.random.key(2**31 + 5)
    assert jnp.array_equal(jax.random.key_data(key), jax.random.key_data(fast_keys(key)))
    assert jnp.array_equal(fast_keys(key).shape, key.shape)


def test_keys_of_another_generator_come_back() -> None:
    key = jax.random.key(0, impl="rbg")
    assert fast_keys(key) is key
    fast = fast_keys(jax.random.key(0))
    assert fast_keys(fast) is fast


def test_drawing_is_one_pass_on_cpus() -> None:
    """JAX's own form has a loop, which is what the module exists to avoid: if this fails for `key`, it may go."""
    draw = jax.jit(lambda key: jax.random.bits(key, (10_000,)))
    key = jax.random.key(0)
    assert "while" in draw.lower(key).as_text()
    assert "while" not in draw.lower(fast_keys(key)).as_text()


@pytest.mark.parametrize("count", [1, 4, 100, 1024, 3000])
def test_numbers_may_be_drawn_in_a_loop(count: int) -> None:
    """XLA:CPU refuses what is kept in a loop of small arrays, unless a pass is left out."""

    def total(key: jax.Array) -> jax.Array:
        draw = lambda index: jax.random.uniform(jax.random.fold_in(key, index), (count,)).sum()  # noqa: E731
        return jax.lax.fori_loop(0, 3, lambda index, total: total + draw(index), 0.0)

    key = jax.random.key(3)
    compiled = jax.jit(total, compiler_options=network_options("cpu"))
    assert compiled(fast_keys(key)) == pytest.approx(float(total(key)), rel=1e-5)
