"""One random key an example, handed to a network as a single key.

Flax's layers draw random numbers for a whole batch with one key, so what an example gets depends on its place in the
batch and on the batch's size: the same run would differ with the number of devices. `example_key` makes of the keys of
all examples one key that JAX's and Flax's functions take as any other, and with which row i of all that is drawn comes
from key i alone.

    keys       [k0, k1, k2]           one an example
    drawn      bits [3, 4, 5]         row i: bits [4, 5] of k_i
    split      2 keys                 each of them again a key an example: [split(k0)[j], split(k1)[j], split(k2)[j]]
    fold_in    one key                [fold_in(k0, n), fold_in(k1, n), fold_in(k2, n)]
"""

import functools
from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

from jaxnet.errors import InputError
from jaxnet.models.fast_keys import fast_keys

_data = jax.random.key_data


def example_key(keys: jax.Array) -> jax.Array:
    """One key for keys [batch]: what is drawn with it, [batch, ...], has in row i what `keys[i]` gives.

    Raises:
        InputError: when something is drawn whose first dim is not the batch.

    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> drawn = jax.random.normal(example_key(keys), (3, 4))
    >>> bool((drawn[1] == jax.random.normal(example_key(keys[1:]), (2, 4))[0]).all())
    True
    """
    rows = _data(keys)
    key: jax.Array = jax.random.wrap_key_data(rows, impl=_implementation(*rows.shape))
    return key


def _wrap(rows: jax.Array) -> jax.Array:
    return fast_keys(jax.random.wrap_key_data(rows))


@functools.lru_cache  # a new one would be a new type of key, and compile everything again
def _implementation(batch: int, *words: int) -> Hashable:
    """JAX's generator of random numbers, once for each of `batch` examples; a key's data are [batch, *words]."""

    def random_bits(rows: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
        if not shape or shape[0] != batch:
            raise InputError(
                f"the model draws random numbers of the shape {list(shape)}, which do not belong to the {batch} "
                "examples of its batch: wanted the batch as the first dim, so that a run does not depend on the number "
                "of devices; in Flax's attention set broadcast_dropout=False, in Dropout leave the batch out of "
                "broadcast_dims"
            )
        return jax.vmap(lambda key: jax.random.bits(key, shape[1:], f"uint{width}"))(_wrap(rows))

    def split(rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        each = jax.vmap(lambda key: _data(jax.random.split(key, shape)))(_wrap(rows))  # [batch, *shape, *words]
        return jnp.moveaxis(each, 0, len(shape))

    def fold_in(rows: jax.Array, number: int) -> jax.Array:
        return _data(jax.vmap(lambda key: jax.random.fold_in(key, number))(_wrap(rows)))

    def seed(number: jax.Array) -> jax.Array:
        raise InputError(f"a key of several examples cannot be made from one seed ({number})")

    return define_prng_impl(
        key_shape=(batch, *words),
        seed=seed,
        split=split,
        random_bits=random_bits,
        fold_in=fold_in,
        name=f"a key for each of {batch} examples",
        tag=f"x{batch}",
    )
