"""Bucket reducers that send fewer bits: encoded messages, decoded and added in float32; or a sum in a narrow type.

`compressed` and `compressed_scattered` own the whole combine: exchange encoded messages, decode, add. If XLA added in
the narrow type, the sum would round after the residual was computed, and no device would send that error later. Every
device adds the same bits in the same order (law L3).

Two devices, `codecs.two_bit(threshold=1)`, two steps with feedback; what is not sent is added to the next message:

    step            device 0        device 1        sum
    1   message     [0.7, 2.0]      [0.5, -1.5]
        sent        [0.0, 1.0]      [0.0, -1.0]     [0.0, 0.0]
        residual    [0.7, 1.0]      [0.5, -0.5]
    2   message     [0.7, 0.0]      [0.5, 0.0]
        with it     [1.4, 1.0]      [1.0, -0.5]
        sent        [1.0, 1.0]      [1.0, 0.0]      [2.0, 1.0]
        residual    [0.4, 0.0]      [0.0, -0.5]
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.codecs import Codec, one_message
from jaxnet.comm.expression import expressed
from jaxnet.comm.guards import (
    LOSSY,
    require_array,
    require_axes,
    require_floats,
    require_varying,
    same_along,
    without_derivative,
)
from jaxnet.comm.reducer import (
    BOUND_AXES,
    FIRST_STATE,
    AxisSizes,
    Collective,
    CollectiveKind,
    Plan,
    PyTree,
    Reducer,
    axes_size,
)
from jaxnet.comm.sharded import rows_of, shard_size, whole_of
from jaxnet.comm.traffic import in_rows, tile_elements

# ---- Encoded messages ----


@expressed
def compressed(*axes: str, codec: Codec, feedback: bool = True) -> Reducer:
    """Sum over `axes` what `codec` keeps of each device's message: all-gather, decode all, add in float32.

    With `feedback` each device keeps what was not sent and adds it to its next message (Seide et al., 2014;
    Karimireddy et al., 2019). Law (L7): the results so far plus the residuals of all devices are the sum of all
    messages so far, up to the rounding of float32 (and of results to the dtype of messages that have 16 bits, which no
    residual has). The state is one float32 array as long as the message.

    Each of n devices sends `(n-1) S` for an encoded message of S bytes: right for two devices; from three on
    `compressed_scattered` sends less. One device alone sends nothing, gets its own message exactly, and has
    no residual.

    >>> from jaxnet.comm import codecs
    >>> reducer = compressed("host", codec=codecs.one_bit(block=1024))
    >>> plan = reducer.plan(jax.ShapeDtypeStruct((2**20,), "float32"), {"host": 2})
    >>> plan.collectives[0].wire_bytes / 2**22  # 1/32 for the signs, 1/512 for the means
    0.033203125
    """
    require_axes(axes, "compressed")
    wire = one_message(codec)

    def init_fn(spec: jax.ShapeDtypeStruct, axis_sizes: AxisSizes) -> PyTree:
        return jnp.zeros(spec.shape, jnp.float32) if feedback and _exchanged(spec, axes, axis_sizes) else ()

    def reduce_fn(message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        require_varying(message, axes, "the message")
        require_floats(message)
        if not _exchanged(message, axes, BOUND_AXES):
            return same_along(message, axes), state
        message = without_derivative(message, "compressed(...)", LOSSY)
        [sent], state = _encode(wire, message.astype(jnp.float32), state)
        received = _gathered(sent, axes)
        total = _sum_decoded(received, lambda row: wire.decode((row,), message.size))
        return same_along(total.astype(message.dtype), axes), state

    def plan_fn(spec: jax.ShapeDtypeStruct, axis_sizes: AxisSizes) -> Plan:
        require_array(spec, "the message")
        return Plan(_exchange("all-gather", axes, wire, spec, math.prod(spec.shape), axis_sizes))

    return Reducer(init_fn, reduce_fn, plan_fn)


@expressed
def compressed_scattered(*axes: str, codec: Codec, sum_codec: Codec | None = None, feedback: bool = True) -> Reducer:
    """Sum over `axes` in two exchanges: encoded shards to their owners, encoded sums of the shards to all.

    Each of n devices owns one shard of the message: it decodes what the others send for it, adds in float32 and
    encodes the sum again. Bytes sent by each: `2 (n-1)/n S` for an encoded message of S bytes, whatever n.

    With `feedback` there are two residuals: what a device did not send of its message, and what an owner did
    not send of its sum (CNTK's 1-bit SGD; DoubleSqueeze, Tang et al., 2019). The law of `compressed` holds for
    both together. Without it and with `int8` it is EQuARX (2025). One device alone: as in `compressed`.

    Args:
        axes: mesh axes.
        codec: of the messages.
        sum_codec: of the sums, by default the same. Do not use `two_bit` here: a sum of n messages is up to n
            thresholds, of which it would send one a step (MXNet's servers answer uncompressed).
        feedback: whether to keep residuals.
    """
    require_axes(axes, "compressed_scattered")
    wire, sum_wire = one_message(codec), one_message(sum_codec or codec)

    def init_fn(spec: jax.ShapeDtypeStruct, axis_sizes: AxisSizes) -> PyTree:
        if not feedback or not _exchanged(spec, axes, axis_sizes):
            return (), ()
        return jnp.zeros(spec.shape, jnp.float32), jnp.zeros(_shard_length(spec, axes, axis_sizes), jnp.float32)

    def reduce_fn(message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        require_varying(message, axes, "the message")
        require_floats(message)
        if not _exchanged(message, axes, BOUND_AXES):
            return same_along(message, axes), state
        message = without_derivative(message, "compressed_scattered(...)", LOSSY)
        count, length = axes_size(axes, BOUND_AXES), _shard_length(message, axes, BOUND_AXES)
        # 1. Each shard, encoded, to its owner.
        [sent], unsent = _encode(_by_shard(wire, count), message.astype(jnp.float32), state[0])
        received = lax.all_to_all(sent, _long(axes), 0, 0, tiled=True)
        # 2. The owner decodes, adds in float32, and encodes the sum.
        total = _sum_decoded(received, lambda row: wire.decode((row,), length))
        [sent], unsent_sum = _encode(sum_wire, total, state[1])
        # 3. All sums to all devices.
        received = _gathered(sent, axes)
        sums = _by_shard(sum_wire, count).decode((received,), message.size)
        return same_along(sums.astype(message.dtype), axes), (unsent, unsent_sum)

    def plan_fn(spec: jax.ShapeDtypeStruct, axis_sizes: AxisSizes) -> Plan:
        require_array(spec, "the message")
        length = _shard_length(spec, axes, axis_sizes)
        there = _exchange("all-to-all", axes, wire, spec, length, axis_sizes)
        back = _exchange("all-gather", axes, sum_wire, spec, length, axis_sizes)
        return Plan(there + back)

    return Reducer(init_fn, reduce_fn, plan_fn)


def _gathered(sent: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """What every device has encoded, [devices, ...]; inside `tiled` it travels with zeros up to whole tiles."""
    if tile_elements() == 1:
        return lax.all_gather(sent, _long(axes), to="invarying")
    filled = _whole(sent.size, sent.dtype)
    rows = in_rows(jnp.pad(sent, (0, filled - sent.size)))
    received = lax.all_gather(rows, _long(axes), tiled=True, to="invarying")
    return received.reshape(-1, filled)[:, : sent.size]


def _whole(elements: int, dtype: jnp.dtype) -> int:
    """So many elements, filled to whole tiles inside `tiled`: a tile of a smaller type has more of them."""
    if tile_elements() == 1:
        return elements
    tile = tile_elements() * 4 // dtype.itemsize
    return -(-elements // tile) * tile


def _encode(codec: Codec, message: jax.Array, residual: PyTree) -> tuple[tuple[jax.Array, ...], PyTree]:
    """What to send, and the residual that it leaves; a residual of () means no feedback, and stays ()."""
    feedback = not isinstance(residual, tuple)
    if feedback:
        if residual.shape != message.shape:
            raise ValueError(
                f"the message has {message.size} elements and its residual {residual.size}: the state is that of "
                f"another plan. {FIRST_STATE}"
            )
        message = message + residual
    # The barrier keeps XLA from removing a narrowing and the widening after it: the residual would be 0.
    arrays = lax.optimization_barrier(codec.encode(message))
    return arrays, message - codec.decode(arrays, message.size) if feedback else residual


def _by_shard(codec: Codec, count: int) -> Codec:
    """`codec` on each of `count` shards of a message: arrays [count, ...]."""

    def encode(message: jax.Array) -> tuple[jax.Array, ...]:
        return jax.vmap(codec.encode)(rows_of(message, count))

    def decode(arrays: Sequence[jax.Array], size: int) -> jax.Array:
        rows = jax.vmap(lambda *row: codec.decode(row, shard_size(size, count)))(*arrays)
        return whole_of(rows, (size,))

    return codec._replace(encode=encode, decode=decode)


def _sum_decoded(rows: jax.Array, decode: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Sum of the decoded rows, from the first to the last. A loop holds one decoded row at a time in memory."""
    return lax.fori_loop(1, rows.shape[0], lambda i, total: total + decode(rows[i]), decode(rows[0]))


def _shard_length(message: jax.ShapeDtypeStruct | jax.Array, axes: tuple[str, ...], axis_sizes: AxisSizes) -> int:
    """Elements of the shard that one device owns; the last shards may end in padding."""
    return shard_size(math.prod(message.shape), axes_size(axes, axis_sizes))


def _exchanged(message: jax.ShapeDtypeStruct | jax.Array, axes: tuple[str, ...], axis_sizes: AxisSizes) -> bool:
    """Whether anything travels: the message has elements, and there are several devices (law L4)."""
    return math.prod(message.shape) > 0 and axes_size(axes, axis_sizes) > 1


def _long(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Those with more than one device: vmap may bind an axis of one, and exchanges over one axis only."""
    return tuple(axis for axis in axes if lax.axis_size(axis) > 1)


def _exchange(
    kind: CollectiveKind,
    axes: tuple[str, ...],
    wire: Codec,
    message: jax.ShapeDtypeStruct,
    elements: int,
    axis_sizes: AxisSizes,
) -> tuple[Collective, ...]:
    """The collective that carries so many elements, encoded, for every device; none where nothing travels."""
    if not _exchanged(message, axes, axis_sizes):
        return ()
    [sent] = wire.spec(jax.ShapeDtypeStruct((elements,), jnp.float32))
    size, each = axes_size(axes, axis_sizes), math.prod(sent.shape)
    if kind == "all-gather":
        each = _whole(each, sent.dtype)
    return (Collective(kind, axes, size, size * each, sent.dtype.name),)


# ---- A narrow sum ----


@expressed
def cast(dtype: str, inner: Reducer) -> Reducer:
    """Cast the message to `dtype`, sum it with `inner`, cast the sum back.

    Half the bytes for float16 and bfloat16 (Horovod's fp16 compression, PyTorch's `fp16_compress_hook`). The sum
    is taken in the narrow type too, so it loses bits at every addition and float16 overflows at 65504.
    XLA:CPU sends bfloat16 as float32 (`as_sent`). Integers and complex numbers travel as they are, and
    where `inner` sends nothing, nothing is rounded. ValueError if `dtype` is not a floating-point type.
    """
    narrow = jnp.dtype(dtype).name
    if not jnp.issubdtype(narrow, jnp.floating):
        raise ValueError(f"cast: wanted a floating-point dtype such as 'bfloat16', got {narrow!r}")

    def narrowed(spec: jax.ShapeDtypeStruct | jax.Array) -> jax.ShapeDtypeStruct:
        require_array(spec, "the message")
        return jax.ShapeDtypeStruct(spec.shape, narrow if jnp.issubdtype(spec.dtype, jnp.floating) else spec.dtype)

    def reduce_fn(message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        sent = narrowed(message)
        if not inner.plan(sent, BOUND_AXES).collectives:
            return inner.reduce(message, state)
        total, state = inner.reduce(message.astype(sent.dtype), state)
        return total.astype(message.dtype), state

    return Reducer(
        lambda spec, axis_sizes: inner.init(narrowed(spec), axis_sizes),
        reduce_fn,
        lambda spec, axis_sizes: inner.plan(narrowed(spec), axis_sizes),
    )
