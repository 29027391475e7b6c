"""Recursive halving and doubling: few rounds, between devices ever nearer, and the fewest bytes."""

import jax
import jax.numpy as jnp

from jaxnet.comm.algorithms.all_reduce import part_spec
from jaxnet.comm.algorithms.factor import Axis
from jaxnet.comm.algorithms.halves import IDENTITY, Halves, Round, between
from jaxnet.comm.algorithms.hops import ring_of
from jaxnet.comm.algorithms.line import Line
from jaxnet.comm.reducer import Reducer


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
        _reduce_scatter,
        _all_gather,
        _rounds,
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


def _rounds(size: int, elements: int) -> list[Round]:
    return [(ring_of(size, kept), (held - kept) * elements // size) for held, kept in _halvings(size)]


def _reduce_scatter(message: jax.Array, line: Line) -> jax.Array:
    length = message.size // line.size
    # First this device's own part, then those of the places after it: the parts to send stand at the end.
    parts = jnp.roll(message, -line.place() * length)
    for _, kept in _halvings(line.size):
        received = line.send(parts[kept * length :], ring_of(line.size, kept))
        both, alone = parts[: received.size], parts[received.size : kept * length]
        parts = jnp.concatenate([both + received, alone]) if alone.size else both + received
    return parts


def _all_gather(part: jax.Array, line: Line) -> jax.Array:
    parts = part
    for held, kept in reversed(_halvings(line.size)):
        received = line.send(parts[: (held - kept) * part.size], ring_of(line.size, -kept))
        parts = jnp.concatenate([parts, received])
    return jnp.roll(parts, line.place() * part.size)
