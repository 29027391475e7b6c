"""A codec is two pure functions between a message and the arrays that travel, and their shapes written down."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Codec(NamedTuple):
    """What goes on the wire for one message: float32, one dim, any length, zero included. No state.

    Attributes:
        encode: `encode(message) -> arrays`, the arrays that travel.
        decode: `decode(arrays, size) -> message`, `size` float32 elements again. Non-finite elements never
            come out as if nothing had happened: each codec says where they show.
        spec: `spec(ShapeDtypeStruct of the message) -> ShapeDtypeStructs of the arrays`.

    >>> from jaxnet.comm import codecs
    >>> codec = codecs.two_bit(threshold=0.5)
    >>> arrays = codec.encode(jnp.array([0.7, -0.2, -3.0, 0.1, 0.5]))
    >>> codec.decode(arrays, 5).tolist()
    [0.5, 0.0, -0.5, 0.0, 0.5]
    >>> [(array.shape, array.dtype.name) for array in codec.spec(jax.ShapeDtypeStruct((5,), "float32"))]
    [((2,), 'uint8')]
    """

    encode: Callable[[jax.Array], tuple[jax.Array, ...]]
    decode: Callable[[Sequence[jax.Array], int], jax.Array]
    spec: Callable[[jax.ShapeDtypeStruct], tuple[jax.ShapeDtypeStruct, ...]]


def one_message(codec: Codec) -> Codec:
    """The same codec with one array on the wire: several arrays lie side by side as bytes.

    A second collective would cost its latency again for a handful of scales. A codec that has one array
    already keeps it as it is.
    """

    def sizes(size: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        return codec.spec(jax.ShapeDtypeStruct((size,), jnp.float32))

    def encode(message: jax.Array) -> tuple[jax.Array, ...]:
        arrays = codec.encode(message)
        if len(arrays) == 1:
            return arrays
        return (jnp.concatenate([lax.bitcast_convert_type(array, jnp.uint8).reshape(-1) for array in arrays]),)

    def decode(arrays: Sequence[jax.Array], size: int) -> jax.Array:
        specs = sizes(size)
        return codec.decode(arrays if len(specs) == 1 else _cut(arrays[0], specs), size)

    def spec(message: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
        specs = codec.spec(message)
        if len(specs) == 1:
            return specs
        return (jax.ShapeDtypeStruct((sum(_bytes(array) for array in specs),), jnp.uint8),)

    return Codec(encode, decode, spec)


def _cut(message: jax.Array, specs: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    arrays, start = [], 0
    for spec in specs:
        part = message[start : start + _bytes(spec)]
        width = spec.dtype.itemsize
        if width > 1:
            part = part.reshape(-1, width)
        arrays.append(lax.bitcast_convert_type(part, spec.dtype).reshape(spec.shape))
        start += _bytes(spec)
    return arrays


def _bytes(spec: jax.ShapeDtypeStruct) -> int:
    return math.prod(spec.shape) * int(spec.dtype.itemsize)
