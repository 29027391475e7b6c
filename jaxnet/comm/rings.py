"""Recursive halving and doubling: few rounds, between devices ever nearer, and the fewest bytes."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.expression import expressed
from jaxnet.comm.halves import IDENTITY, Halves, Round, between, part_spec
from jaxnet.comm.reducer import Reducer
from jaxnet.comm.topology import Axis, Line, rotation

# ---- The ring: each device sends to the next, one part at a time --------------------------------------


@expressed
def ring(axis: Axis, inner: Reducer = IDENTITY, *, piece_bytes: int | None = None) -> Reducer:
    """Ring reduce-scatter over `axis`, `inner` on the part of each device, ring all-gather over `axis`.

    Law: as `scattered(axis, inner)`. For P devices and a message of n bytes `T = 2 (P-1) alpha + 2 (P-1)/P n beta`:
    the fewest bytes (Patarasuk and Yuan, 2009), in the most rounds. baidu-allreduce; Gloo; NCCL.

    Args:
        axis: a mesh axis, or a factor of one.
        inner: sums the parts over other axes; nothing by default.
        piece_bytes: a part is sent in pieces of at most so many bytes, each a permute. Gloo fills a slow link better
            with pieces of 1 MiB than with one message of 4 MiB or more.

    >>> plan = ring("host", piece_bytes=8).plan(jax.ShapeDtypeStruct((16,), "float32"), {"host": 4})
    >>> len(plan.collectives), {collective.elements for collective in plan.collectives}
    (12, {2})
    """
    halves = Halves(
        _ring_reduce_scatter,
        _ring_all_gather,
        _ring_rounds,
        share=lambda spec, size: part_spec(spec, f"ring({axis!r})", size),
        multiple=lambda size, inner_multiple: size * inner_multiple,
    )
    return between(axis, halves, inner, piece_bytes)


def _ring_rounds(size: int, elements: int) -> list[Round]:
    return [(rotation(size, 1), elements // size)] * (size - 1)


def _ring_reduce_scatter(message: jax.Array, line: Line) -> jax.Array:
    """Part p of the sum on place p: it starts at place p + 1 and is added to all the way round."""
    length, place = message.size // line.size, line.place()

    def part(back: int) -> jax.Array:
        return lax.dynamic_slice(message, ((place - back) % line.size * length,), (length,))

    total = part(1)
    for back in range(2, line.size + 1):
        total = line.send(total, rotation(line.size, 1)) + part(back)
    return total


def _ring_all_gather(part: jax.Array, line: Line) -> jax.Array:
    parts = [part]
    for _ in range(line.size - 1):
        parts.append(line.send(parts[-1], rotation(line.size, -1)))
    # A device has received its own part, then those of the places after it.
    return jnp.roll(jnp.concatenate(parts), line.place() * part.size)


@expressed
def halving_doubling(axis: Axis, inner: Reducer = IDENTITY, *, piece_bytes: int | None = None) -> Reducer:
    """Reduce-scatter by recursive halving, `inner` on each device's part, all-gather by recursive doubling.

    Law: as `scattered(axis, inner)`. For P devices, of any number, and a message of n bytes
    `T = 2 ceil(log2 P) alpha + 2 (P-1)/P n beta`. Sources: Rabenseifner (2004); Thakur, Rabenseifner and
    Gropp (2005); Gloo.

    Where those exchange with place `i xor d`, here place i sends to `i + d` and hears from `i - d` around a circle
    (Bruck et al., 1997; Traeff, 2023): at a power of two the same rounds and bytes. At any other size their remedies
    cost more: folding the extra devices into partners sends the whole message twice more, binary blocks make the
    large block wait for the small ones, and both leave devices without a part for `inner`. The circle does neither.

    Arguments as for `ring`.

    >>> plan = halving_doubling("host").plan(jax.ShapeDtypeStruct((12,), "float32"), {"host": 6})
    >>> [collective.elements for collective in plan.collectives]
    [6, 2, 2, 2, 2, 6]
    """
    halves = Halves(
        _halving_reduce_scatter,
        _doubling_all_gather,
        _halving_rounds,
        share=lambda spec, size: part_spec(spec, f"halving_doubling({axis!r})", size),
        multiple=lambda size, inner_multiple: size * inner_multiple,
    )
    return between(axis, halves, inner, piece_bytes)


def _halvings(size: int) -> list[tuple[int, int]]:
    """Parts held before and after each round of halving: 6 to 3, 3 to 2, 2 to 1."""
    held, steps = size, []
    while held > 1:
        kept = -(-held // 2)
        steps.append((held, kept))
        held = kept
    return steps


def _halving_rounds(size: int, elements: int) -> list[Round]:
    return [(rotation(size, kept), (held - kept) * elements // size) for held, kept in _halvings(size)]


def _halving_reduce_scatter(message: jax.Array, line: Line) -> jax.Array:
    length = message.size // line.size
    # First this device's own part, then those of the places after it: the parts to send stand at the end.
    parts = jnp.roll(message, -line.place() * length)
    for _, kept in _halvings(line.size):
        received = line.send(parts[kept * length :], rotation(line.size, kept))
        both, alone = parts[: received.size], parts[received.size : kept * length]
        parts = jnp.concatenate([both + received, alone]) if alone.size else both + received
    return parts


def _doubling_all_gather(part: jax.Array, line: Line) -> jax.Array:
    parts = part
    for held, kept in reversed(_halvings(line.size)):
        received = line.send(parts[: (held - kept) * part.size], rotation(line.size, -kept))
        parts = jnp.concatenate([parts, received])
    return jnp.roll(parts, line.place() * part.size)
