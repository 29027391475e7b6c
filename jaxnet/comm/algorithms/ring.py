"""The ring: each device sends to the next, one part at a time."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.algorithms.all_reduce import part_spec
from jaxnet.comm.algorithms.factor import Axis
from jaxnet.comm.algorithms.halves import IDENTITY, Halves, Round, between
from jaxnet.comm.algorithms.hops import ring_of
from jaxnet.comm.algorithms.line import Line
from jaxnet.comm.reducer import Reducer


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
        _reduce_scatter,
        _all_gather,
        _rounds,
        share=lambda spec, size: part_spec(spec, f"ring({axis!r})", size),
        multiple=lambda size, inner_multiple: size * inner_multiple,
    )
    return between(axis, halves, inner, piece_bytes)


def _rounds(size: int, elements: int) -> list[Round]:
    return [(ring_of(size, 1), elements // size)] * (size - 1)


def _reduce_scatter(message: jax.Array, line: Line) -> jax.Array:
    """Part p of the sum on place p: it starts at place p + 1 and is added to all the way round."""
    length, place = message.size // line.size, line.place()

    def part(back: int) -> jax.Array:
        return lax.dynamic_slice(message, ((place - back) % line.size * length,), (length,))

    total = part(1)
    for back in range(2, line.size + 1):
        total = line.send(total, ring_of(line.size, 1)) + part(back)
    return total


def _all_gather(part: jax.Array, line: Line) -> jax.Array:
    parts = [part]
    for _ in range(line.size - 1):
        parts.append(line.send(parts[-1], ring_of(line.size, -1)))
    # A device has received its own part, then those of the places after it.
    return jnp.roll(jnp.concatenate(parts), line.place() * part.size)
