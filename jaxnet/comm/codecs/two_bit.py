"""Two bits an element: a step up, a step down, or nothing yet."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxnet.comm.codecs.bits import pack_bits, packed_size, unpack_bits
from jaxnet.comm.codecs.codec import Codec

_ZERO, _UP, _DOWN, _NOT_FINITE = range(4)


def two_bit(threshold: float) -> Codec:
    """`+threshold` or `-threshold` where an element has reached it, else 0 (MXNet's gradient compression).

    1/16 of the bytes of float32, no scales. Needs feedback: an element travels once enough of it has gathered
    in the residual, and never more than one threshold a step. NaN and infinities come out as NaN, by the
    fourth code.

    Args:
        threshold: in units of one device's gradient, above 0. MXNet's default is 0.5. Far above the gradients
            nothing travels for many steps; far below, the residual grows without bound.
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
