"""Traffic shaping: what a platform asks of the messages of any reducer, and `on_platform` gives it.

`tiled`, for TPUs. They keep arrays in tiles of 8 x 128 elements. Where a message has one dim, where a device's shard of
it is less than a tile for each direction that a ring of two dims has, and where it spans two axes at once, the compiler
replaces a reduce-scatter by an all-reduce, which sends twice the bytes. So messages are padded until every shard is a
multiple of four tiles, XLA's collectives take two dims, and halves over two axes go along one after the other:

    message [n], n a multiple of 4096 x devices   ->   [n / 128, 128], scattered along the first

No element moves for it: both are the same bytes in a TPU's memory.

`pipelined`, for GPUs. Where a bucket is summed in stages, their compiler leaves all but the first stage of all buckets
to the end, with nothing to compute beside them. So a bucket waits until the one two before it has been summed:

    bucket 0   reduce-scatter   all-reduce       all-gather
    bucket 1                    reduce-scatter   all-reduce   all-gather
    bucket 2                                                  reduce-scatter   ...
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax
from jax import lax

from jaxnet.comm.expression import expressed
from jaxnet.comm.guards import require_count
from jaxnet.comm.reducer import ByMessage, Reducer

if TYPE_CHECKING:
    from jaxnet.comm.sharded import Sharded

_LANES = 128  # elements of a row of a tile
_TILE = 4096  # elements: four tiles
_IN_FLIGHT = 2

# Contexts and not arguments, because an inner reducer is complete before it is put into `tiled` or `pipelined`.
_tile: ContextVar[int] = ContextVar("tile", default=1)
_in_flight: ContextVar[int | None] = ContextVar("in_flight", default=None)

_Sums = TypeVar("_Sums", bound="Reducer | Sharded")


def tiled(inner: _Sums, tile: int = _TILE) -> _Sums:
    """As `inner`, a tree `Reducer` or a `Sharded`, with messages whose shards are whole tiles.

    Law: the sums are those of `inner`, in another order of additions only where XLA's halves span several axes.
    Messages that are cut into shards end in more zeros.

    Args:
        inner: sums a pytree.
        tile: a shard is a multiple of so many elements; a multiple of 128.

    >>> from jaxnet.comm import all_reduce, bucketed, scattered, tiled
    >>> reducer = tiled(bucketed(scattered("device", all_reduce("host")), 2**20))
    >>> plan = reducer.plan(jax.ShapeDtypeStruct((3000,), "float32"), {"host": 2, "device": 4})
    >>> [collective.elements for collective in plan.collectives]
    [16384, 4096, 16384]
    """
    return cast(_Sums, _tiled(inner, tile))


def pipelined(inner: _Sums, in_flight: int = _IN_FLIGHT) -> _Sums:
    """As `inner`, with so many buckets on their way at once, where a bucket is summed in several stages.

    Law: the sums are those of `inner` to the last bit. A reducer with an `in_flight` of its own keeps it.

    Args:
        inner: sums a pytree; buckets are those of `bucketed` and `grouped`.
        in_flight: bucket i starts when bucket i - `in_flight` has been summed.
    """
    return cast(_Sums, _pipelined(inner, in_flight))


def tile_elements() -> int:
    """A shard is a multiple of so many elements: 1, or inside `tiled` those of a tile."""
    return _tile.get()


def in_rows(message: jax.Array) -> jax.Array:
    """Inside `tiled` a message [n] as [n / 128, 128], if n is a number of rows; else the message."""
    return message.reshape(-1, _LANES) if _tile.get() > 1 and message.size % _LANES == 0 else message


def buckets_in_flight() -> int | None:
    """How many buckets that are summed in stages are on their way at once: any number, or what `pipelined` says."""
    return _in_flight.get()


def wait_in_turn(message: jax.Array, before: Sequence[jax.Array], in_flight: int | None) -> jax.Array:
    """The message, once all results `before` it but the last `in_flight` - 1 are there; None: at once."""
    if in_flight is None or len(before) < in_flight:
        return message
    held: jax.Array = lax.optimization_barrier((message, before[len(before) - in_flight]))[0]
    return held


def _within_tiles(inner: Any, tile: int = _TILE) -> Any:
    if tile < 1 or tile % _LANES:
        raise ValueError(f"tiled: wanted a tile of a multiple of {_LANES} elements, got {tile}")
    return _inside(inner, _tile, tile)


def _within_pipeline(inner: Any, in_flight: int = _IN_FLIGHT) -> Any:
    require_count(in_flight, "pipelined: in_flight")
    return _inside(inner, _in_flight, in_flight)


_tiled, _pipelined = expressed(_within_tiles, "tiled"), expressed(_within_pipeline, "pipelined")


def _inside(inner: Any, context: ContextVar[Any], value: Any) -> Any:
    """`inner` with all its functions called where the context has this value."""

    def within(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any) -> Any:
            with _set(context, value):
                return function(*args)

        return called

    made: dict[str, Any] = {name: within(field) for name, field in inner._asdict().items() if callable(field)}
    if isinstance(inner, Reducer) and (message := inner.message):
        alike = functools.cache(lambda reducer: _inside(reducer, context, value))  # equal messages share a program
        made["by_message"] = ByMessage(made["reduce"], lambda shapes: alike(message(shapes)))
    return inner._replace(**made)


@contextmanager
def _set(context: ContextVar[Any], value: Any) -> Iterator[None]:
    token = context.set(value)
    try:
        yield
    finally:
        context.reset(token)
