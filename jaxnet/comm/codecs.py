"""Codecs: smaller forms of one message, in which gradients travel.

    from jaxnet.comm import codecs, compressed
    compressed("host", codec=codecs.int8())

| codec | bytes beside float32 | |
|---|---|---|
| `float16`, `bfloat16` | 1/2 | narrower floats |
| `int8(block)` | 1/4 + 1/block | 255 levels, a scale for each block |
| `two_bit(threshold)` | 1/16 | a step up, a step down, or nothing yet |
| `one_bit(block)` | 1/32 + 2/block | the sign, and two means for each block |
| `top_k(fraction)` | 2 fraction | the largest elements, with their places |

A codec has no state. What it loses is kept and sent later by `compressed` and `compressed_scattered`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.expression import default_text, expressed
from jaxnet.comm.guards import require_count, require_functions

# ---- The contract ----


class Codec(NamedTuple):
    """What goes on the wire for one message: float32, one dim, any length, zero included. No state.

    Attributes:
        encode: `encode(message) -> arrays`, the arrays that travel.
        decode: `decode(arrays, size) -> message`, `size` float32 elements again. A NaN or an infinity never
            comes out finite; each codec says where it shows.
        spec: `spec(ShapeDtypeStruct of the message) -> ShapeDtypeStructs of the arrays`.
        expression: Python that makes it, where `codecs` is this module.

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
    expression: str = ""

    def __repr__(self) -> str:
        return self.expression or default_text("Codec", self.encode)


_P = ParamSpec("_P")


def _expressed(make: Callable[_P, Codec]) -> Callable[_P, Codec]:
    """As `expressed`; the call is printed with the name of this module."""
    return expressed(make, f"codecs.{make.__name__}")


@_expressed
def one_message(codec: Codec) -> Codec:
    """The same codec with one array on the wire: several arrays are joined as bytes.

    A second collective would cost its latency again for a handful of scales. A codec of one array stays as it is.

    Raises:
        TypeError: it is no codec.
    """
    require_functions(codec, ("encode", "decode", "spec"), "wanted a codec, such as codecs.int8()", got=repr(codec))

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
        own = message[start : start + _bytes(spec)]
        width = spec.dtype.itemsize
        if width > 1:
            own = own.reshape(-1, width)
        arrays.append(lax.bitcast_convert_type(own, spec.dtype).reshape(spec.shape))
        start += _bytes(spec)
    return arrays


def _bytes(spec: jax.ShapeDtypeStruct) -> int:
    return math.prod(spec.shape) * int(spec.dtype.itemsize)


# ---- Small codes in bytes ----
#
# The first `1/per_byte` of the codes are the lowest bits of all bytes, the next are the bits above, and so on.
# Neighbours are in different bytes, so packing and unpacking are shifts of whole contiguous runs, which vectorize.


def packed_size(size: int, bits: int) -> int:
    """Bytes that hold `size` codes of `bits` bits."""
    return -(-size * bits // 8)


def pack_bits(codes: jax.Array, bits: int) -> jax.Array:
    """uint8 codes below `2**bits`, 8 / bits of them in each byte.

    >>> pack_bits(jnp.array([1, 0, 3, 2, 1], jnp.uint8), 2).tolist()
    [29, 8]
    """
    per_byte, width = 8 // bits, packed_size(codes.size, bits)
    planes = jnp.pad(codes, (0, per_byte * width - codes.size)).reshape(per_byte, width)
    return functools.reduce(jnp.bitwise_or, [planes[place] << (bits * place) for place in range(per_byte)])


def unpack_bits(packed: jax.Array, bits: int, size: int) -> jax.Array:
    """The first `size` codes again.

    >>> unpack_bits(jnp.array([29, 8], jnp.uint8), 2, 5).tolist()
    [1, 0, 3, 2, 1]
    """
    shifts = jnp.arange(0, 8, bits, dtype=jnp.uint8)[:, None]
    return ((packed[None] >> shifts) & (2**bits - 1)).reshape(-1)[:size]


# ---- Blocks, each with a scale of its own ----


def in_blocks(message: jax.Array, block: int) -> jax.Array:
    """The message as [blocks, block]; the last block ends in zeros (False for bool).

    >>> in_blocks(jnp.arange(1, 6), 3).tolist()
    [[1, 2, 3], [4, 5, 0]]
    """
    return jnp.pad(message, (0, -message.size % block)).reshape(-1, block)


def block_count(size: int, block: int) -> int:
    """How many blocks `in_blocks` makes."""
    return -(-size // block)


# ---- Narrower floats ----


def _float16_arrays(message: jax.Array) -> tuple[jax.Array, ...]:
    return (message.astype(jnp.float16),)


def _float16_message(arrays: Sequence[jax.Array], size: int) -> jax.Array:
    del size
    return arrays[0].astype(jnp.float32)


def _bfloat16_arrays(message: jax.Array) -> tuple[jax.Array, ...]:
    # As integers, because XLA:CPU widens bfloat16 in collectives to float32.
    return (lax.bitcast_convert_type(message.astype(jnp.bfloat16), jnp.uint16),)


def _bfloat16_message(arrays: Sequence[jax.Array], size: int) -> jax.Array:
    del size
    return lax.bitcast_convert_type(arrays[0], jnp.bfloat16).astype(jnp.float32)


float16 = Codec(
    _float16_arrays,
    _float16_message,
    lambda message: (jax.ShapeDtypeStruct(message.shape, jnp.float16),),
    "codecs.float16",
)
"""IEEE half precision, 1/2 of the bytes: 11 bits of mantissa (relative error at most 2^-11 between 6e-5 and 65504).

Above 65504 an element becomes infinite. NaN and infinities stay what they are.
"""

bfloat16 = Codec(
    _bfloat16_arrays,
    _bfloat16_message,
    lambda message: (jax.ShapeDtypeStruct(message.shape, jnp.uint16),),
    "codecs.bfloat16",
)
"""The upper half of a float32, 1/2 of the bytes: 8 bits of mantissa (relative error at most 2^-8), all its exponents.

Travels as uint16, 2 bytes on every backend. NaN and infinities stay what they are.
"""


# ---- Eight bits an element ----


_LEVELS = 127
_SMALLEST = float(jnp.finfo(jnp.float32).tiny)


@_expressed
def int8(block: int = 256) -> Codec:
    """Round to 255 levels between minus and plus the largest magnitude of the block (EQuARX, 2025).

    `1/4 + 1/block` of the bytes of float32. The error of an element is at most 1/254 of its block's largest
    magnitude; the largest itself is exact, but for a last bit where XLA multiplies by 1/127. A block that is all below
    1.5e-36 is sent as 0. A block with a NaN or an infinity has no finite element left.
    """
    require_count(block, "block")

    def encode(message: jax.Array) -> tuple[jax.Array, ...]:
        rows = in_blocks(message, block)
        peaks = jnp.abs(rows).max(axis=1)
        # XLA multiplies by the reciprocal of `level`, so that must be a normal number: 127 / 3e38 is, 1 / 3e38 is not.
        level = (peaks / _LEVELS)[:, None]
        levels = jnp.round(jnp.where(level >= _SMALLEST, rows / level, 0)).astype(jnp.int8)
        return levels.reshape(-1)[: message.size], peaks

    def decode(arrays: Sequence[jax.Array], size: int) -> jax.Array:
        levels, peaks = arrays
        # In this order the largest magnitude comes out exact, and cannot overflow.
        rows = in_blocks(levels, block).astype(jnp.float32) / _LEVELS * peaks[:, None]
        # An infinite peak times a level other than 0 is infinite, times level 0 is NaN: never finite.
        return rows.reshape(-1)[:size]

    def spec(message: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
        [size] = message.shape
        return (
            jax.ShapeDtypeStruct((size,), jnp.int8),
            jax.ShapeDtypeStruct((block_count(size, block),), jnp.float32),
        )

    return Codec(encode, decode, spec)


# ---- One bit an element ----


@_expressed
def one_bit(block: int = 1024) -> Codec:
    """Signs, with the mean of the positive and of the negative elements of each block (CNTK; Seide et al., 2014).

    `1/32 + 2/block` of the bytes of float32: 1/30 by default. CNTK's blocks are the columns of a weight matrix.
    The two means keep the sum of a block, and no other two values are nearer: the error is orthogonal to
    what is sent, so never longer than the message. Needs feedback. A NaN or an infinity replaces all elements of
    its sign in its block (NaN counts as negative).
    """
    require_count(block, "block")

    def encode(message: jax.Array) -> tuple[jax.Array, ...]:
        positive = message >= 0
        rows = in_blocks(message, block)
        means = [_mean(rows, in_blocks(chosen, block)) for chosen in (positive, ~positive)]
        return pack_bits(positive.astype(jnp.uint8), bits=1), *means

    def decode(arrays: Sequence[jax.Array], size: int) -> jax.Array:
        packed, above, below = arrays
        positive = in_blocks(unpack_bits(packed, 1, size), block) == 1
        return jnp.where(positive, above[:, None], below[:, None]).reshape(-1)[:size]

    def spec(message: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
        [size] = message.shape
        means = jax.ShapeDtypeStruct((block_count(size, block),), jnp.float32)
        return jax.ShapeDtypeStruct((packed_size(size, 1),), jnp.uint8), means, means

    return Codec(encode, decode, spec)


def _mean(rows: jax.Array, chosen: jax.Array) -> jax.Array:
    """Mean of the chosen elements of each row, 0 if there are none."""
    length = rows.shape[1]
    # Divided first: the sum of large elements must not overflow where their mean does not.
    share = (jnp.where(chosen, rows, 0) / length).sum(axis=1)
    return share * (length / jnp.maximum(chosen.sum(axis=1, dtype=jnp.float32), 1))


# ---- Two bits an element ----


_ZERO, _UP, _DOWN, _NOT_FINITE = range(4)


@_expressed
def two_bit(threshold: float) -> Codec:
    """`+threshold` or `-threshold` where an element has reached it, else 0 (MXNet's gradient compression).

    1/16 of the bytes of float32, no scales. Needs feedback: the residual of an element grows until it reaches the
    threshold, and at most one threshold is sent in a step. NaN and infinities come out as NaN, by the fourth code.

    Args:
        threshold: in units of one device's gradient, above 0. MXNet's default is 0.5. Far above the gradients
            nothing is sent for many steps; far below, the residual grows without bound.
    """
    if not threshold > 0:
        raise ValueError(f"threshold must be above 0, got {threshold}")

    def encode(message: jax.Array) -> tuple[jax.Array, ...]:
        codes = jnp.where(message >= threshold, _UP, jnp.where(message <= -threshold, _DOWN, _ZERO))
        codes = jnp.where(jnp.isfinite(message), codes, _NOT_FINITE)
        return (pack_bits(codes.astype(jnp.uint8), bits=2),)

    def decode(arrays: Sequence[jax.Array], size: int) -> jax.Array:
        codes = unpack_bits(arrays[0], 2, size)
        steps = jnp.where(codes == _UP, threshold, jnp.where(codes == _DOWN, -threshold, 0.0))
        return jnp.where(codes == _NOT_FINITE, jnp.nan, steps).astype(jnp.float32)

    def spec(message: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (jax.ShapeDtypeStruct((packed_size(message.shape[0], 2),), jnp.uint8),)

    return Codec(encode, decode, spec)


# ---- The largest elements ----


@_expressed
def top_k(fraction: float) -> Codec:
    """The `fraction` of elements of largest magnitude, at least one; the others are 0 (Aji and Heafield, 2017).

    `2 fraction` of the bytes of float32: a place costs as much as a value, so above half it saves nothing. Needs
    feedback. The squared length of the error is at most `1 - fraction` of the message's. NaN counts
    as the largest, then infinity: if there is one, one is sent.

    Args:
        fraction: of the elements of each message, above 0 and at most 0.5.
    """
    if not 0 < fraction <= 0.5:
        raise ValueError(f"fraction must be above 0 and at most 0.5, got {fraction}")

    def count(size: int) -> int:
        return math.ceil(fraction * size)

    def encode(message: jax.Array) -> tuple[jax.Array, ...]:
        _, places = lax.top_k(jnp.abs(message), count(message.size))
        return message[places], places

    def decode(arrays: Sequence[jax.Array], size: int) -> jax.Array:
        values, places = arrays
        return jnp.zeros(size, jnp.float32).at[places].set(values, unique_indices=True)

    def spec(message: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
        shape = (count(message.shape[0]),)
        return jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32)

    return Codec(encode, decode, spec)
