"""Ring all-reduce, and recursive halving and doubling: the fewest bytes, in the most rounds and in few.

Both are built from permutes, and both are a reduce-scatter and an all-gather, so each comes as halves too.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.expression import expressed
from jaxnet.comm.halves import IDENTITY, Halves, Round, bracket, permuted_halves
from jaxnet.comm.reducer import Reducer
from jaxnet.comm.topology import Axis, Line, rotation

# ---- The ring ----


@expressed
def ring(axis: Axis, inner: Reducer = IDENTITY, *, piece_bytes: int | None = None) -> Reducer:
    """Ring reduce-scatter over `axis`, `inner` on the shard of each device, ring all-gather over `axis`.

    Law: as `scattered(axis, inner)`. For P devices and a message of n bytes `T = 2 (P-1) alpha + 2 (P-1)/P n beta`:
    the fewest bytes (Patarasuk and Yuan, 2009), in the most rounds. baidu-allreduce; Gloo; NCCL.

    Args:
        axis: a mesh axis, or a factor of one.
        inner: sums the shards over other axes; nothing by default.
        piece_bytes: a shard is sent in pieces of at most so many bytes, each a permute. Gloo fills a slow link better
            with pieces of 1 MiB than with one message of 4 MiB or more.

    >>> plan = ring("host", piece_bytes=8).plan(jax.ShapeDtypeStruct((16,), "float32"), {"host": 4})
    >>> len(plan.collectives), {collective.elements for collective in plan.collectives}
    (12, {2})
    """
    return bracket(ring_halves(axis, piece_bytes=piece_bytes), inner)


@expressed
def ring_halves(axis: Axis, *, piece_bytes: int | None = None) -> Halves:
    """The two halves of `ring`: in each round every device sends one shard to its neighbour.

    Four devices, a message of one letter a shard. The sum of shard p starts on device p + 1, and each device that it
    reaches adds its own: `d1` is shard d of device 1. After three rounds device p holds the sum of shard p.

        round   device 0      device 1      device 2      device 3
        start   d0            a1            b2            c3
        1       c3+c0         d0+d1         a1+a2         b2+b3
        2       b2+b3+b0      c3+c0+c1      d0+d1+d2      a1+a2+a3
        3       a1+a2+a3+a0   b2+b3+b0+b1   c3+c0+c1+c2   d0+d1+d2+d3

    The all-gather sends the sums back around the ring.

    Arguments as for `ring`.

    >>> plan = ring_halves("device").plan(jax.ShapeDtypeStruct((8,), "float32"), {"device": 4})
    >>> [collective.elements for collective in plan.scatter], plan.scatter[0].pairs, plan.gather[0].pairs
    ([2, 2, 2], ((0, 1), (1, 2), (2, 3), (3, 0)), ((1, 0), (2, 1), (3, 2), (0, 3)))
    """
    return permuted_halves(
        axis, _ring_reduce_scatter, _ring_all_gather, _ring_rounds, name=f"ring({axis!r})", piece_bytes=piece_bytes
    )


def _ring_rounds(size: int, elements: int) -> list[Round]:
    return [(rotation(size, 1), elements // size)] * (size - 1)


def _ring_reduce_scatter(message: jax.Array, line: Line) -> jax.Array:
    """Shard p of the sum on place p."""
    length, place = message.size // line.size, line.place()

    def own_shard(back: int) -> jax.Array:
        return lax.dynamic_slice(message, ((place - back) % line.size * length,), (length,))

    # In round r a device receives the sum of the shard r + 1 places behind it, and adds its own.
    total = own_shard(1)
    for back in range(2, line.size + 1):
        total = line.send(total, rotation(line.size, 1)) + own_shard(back)
    return total


def _ring_all_gather(shard: jax.Array, line: Line) -> jax.Array:
    shards = [shard]
    for _ in range(line.size - 1):
        shards.append(line.send(shards[-1], rotation(line.size, -1)))
    # A device has its own shard first, then those of the places after it.
    return jnp.roll(jnp.concatenate(shards), line.place() * shard.size)


# ---- Recursive halving and doubling ----


@expressed
def halving_doubling(axis: Axis, inner: Reducer = IDENTITY, *, piece_bytes: int | None = None) -> Reducer:
    """Reduce-scatter by recursive halving, `inner` on each device's shard, all-gather by recursive doubling.

    Law: as `scattered(axis, inner)`. For P devices, of any number, and a message of n bytes
    `T = 2 ceil(log2 P) alpha + 2 (P-1)/P n beta`. Sources: Rabenseifner (2004); Thakur, Rabenseifner and
    Gropp (2005); Gloo.

    Where those exchange with place `i xor d`, here place i sends to `i + d` and receives from `i - d` around a circle
    (Bruck et al., 1997; Traeff, 2023): at a power of two the same rounds and bytes. At any other size their remedies
    cost more: folding the extra devices into partners sends the whole message twice more, binary blocks make the
    large block wait for the small ones, and both leave devices without a shard for `inner`. The circle does neither.

    Arguments as for `ring`.

    >>> plan = halving_doubling("host").plan(jax.ShapeDtypeStruct((12,), "float32"), {"host": 6})
    >>> [collective.elements for collective in plan.collectives]
    [6, 2, 2, 2, 2, 6]
    """
    return bracket(halving_doubling_halves(axis, piece_bytes=piece_bytes), inner)


@expressed
def halving_doubling_halves(axis: Axis, *, piece_bytes: int | None = None) -> Halves:
    """The two halves of `halving_doubling`: in each round every device sends half of the shards that it holds.

    Four devices, a message of one letter a shard. A device keeps its shards in the order that begins with its own,
    and sends the far half; what it receives is added to the near half. `d1` is shard d of device 1, `d13` is d1 + d3.

        round   device 0            device 1            device 2            device 3
        start   a0  b0  c0  d0      b1  c1  d1  a1      c2  d2  a2  b2      d3  a3  b3  c3
        1       a02 b02             b13 c13             c20 d20             d31 a31
        2       a02+a31             b13+b02             c20+c13             d31+d20

    In round 1 device i sends two shards to device i + 2, in round 2 one shard to device i + 1. The all-gather runs the
    rounds backwards and doubles what a device holds.

    Arguments as for `ring`.
    """
    name = f"halving_doubling({axis!r})"
    return permuted_halves(
        axis, _halving_reduce_scatter, _doubling_all_gather, _halving_rounds, name=name, piece_bytes=piece_bytes
    )


def _halvings(size: int) -> list[tuple[int, int]]:
    """Shards held before and after each round of halving: of 6, (6, 3), (3, 2), (2, 1)."""
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
    # 1. Rotate: this device's own shard first, then those of the places after it. The shards to send are at the end.
    shards = jnp.roll(message, -line.place() * length)
    for _, kept in _halvings(line.size):
        # 2. Send the end to the device whose own shard is the first of it.
        received = line.send(shards[kept * length :], rotation(line.size, kept))
        # 3. Add what arrived. With an odd number of shards the last of those kept has no partner in this round.
        both, alone = shards[: received.size], shards[received.size : kept * length]
        shards = jnp.concatenate([both + received, alone]) if alone.size else both + received
    return shards


def _doubling_all_gather(shard: jax.Array, line: Line) -> jax.Array:
    shards = shard
    for held, kept in reversed(_halvings(line.size)):
        received = line.send(shards[: (held - kept) * shard.size], rotation(line.size, -kept))
        shards = jnp.concatenate([shards, received])
    return jnp.roll(shards, line.place() * shard.size)
