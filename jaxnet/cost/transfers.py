"""Every way to move one message over mesh axes, as a program with a known answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxnet.comm import (
    AXES,
    DEVICE,
    HOST,
    MiB,
    Reducer,
    all_reduce,
    compiler_options,
    halving_doubling,
    one_per_device,
    ring,
    rooted,
    scattered,
)
from jaxnet.comm.collective import Kind, axes_size

Axes = tuple[str, ...]
Move = Callable[[jax.Array, Axes], jax.Array]


@dataclass(frozen=True)
class Transfer:
    """One way to move a message.

    Attributes:
        name: what `--algorithm NAME` says.
        kind: decides what the result must be, what counts as its bytes, and the factor of busbw.
        move: `(message, axes) -> result`, on each device; None where a reducer does it.
        reducer: a bucket reducer for given axes.
    """

    name: str
    kind: Kind
    move: Move | None = None
    reducer: Callable[[Axes], Reducer] | None = None

    @property
    def plain(self) -> bool:
        """One collective of the backend: what the speed of a link is measured with."""
        return self.move is not None


def _permute(message: jax.Array, axes: Axes) -> jax.Array:
    count = lax.axis_size(axes)
    return lax.ppermute(message, axes, [(place, (place + 1) % count) for place in range(count)])


def _nested(build: Callable[[str, Reducer], Reducer]) -> Callable[[Axes], Reducer]:
    """`build(axis, inner)` over one axis, or over both: first inside the hosts, then across."""

    def over(axes: Axes) -> Reducer:
        return build(axes[0], all_reduce()) if len(axes) == 1 else build(DEVICE, build(HOST, all_reduce()))

    return over


# To add a reducer, add its name with its expression.
_REDUCERS: dict[str, Callable[[Axes], Reducer]] = {
    "scattered": _nested(scattered),
    "ring": _nested(ring),
    "ring_1MiB": _nested(lambda axis, inner: ring(axis, inner, piece_bytes=MiB)),
    "halving_doubling": _nested(halving_doubling),
    "binomial": _nested(lambda axis, inner: rooted(axis, inner, tree="binomial")),
    "chain": _nested(lambda axis, inner: rooted(axis, inner, tree="chain")),
    "chunked_chain": _nested(lambda axis, inner: rooted(axis, inner, tree="chunked_chain")),
    "star": _nested(lambda axis, inner: rooted(axis, inner, tree="star")),
}

_PLAIN: tuple[Transfer, ...] = (
    Transfer("all_reduce", "all-reduce", lambda message, axes: lax.psum(message, axes)),
    Transfer("reduce_scatter", "reduce-scatter", lambda message, axes: lax.psum_scatter(message, axes, tiled=True)),
    Transfer("all_gather", "all-gather", lambda message, axes: lax.all_gather(message, axes, tiled=True)),
    Transfer("permute", "collective-permute", _permute),
)

TRANSFERS: dict[str, Transfer] = {
    **{transfer.name: transfer for transfer in _PLAIN},
    **{name: Transfer(name, "all-reduce", reducer=reducer) for name, reducer in _REDUCERS.items()},
}


@dataclass(frozen=True)
class Program:
    """A compiled transfer with its input, ready to be called.

    Attributes:
        elements: of the whole message, as `Collective.elements` counts them.
    """

    call: Callable[[jax.Array], jax.Array]
    message: jax.Array
    elements: int
    expected: Callable[[int, int], np.ndarray]

    def wrong_elements(self, result: jax.Array) -> int:
        """How many elements of `result` on this process's devices are not what they must be."""
        wrong = 0
        for shard in result.addressable_shards:
            host, device = (index.start or 0 for index in shard.index[:2])
            wrong += int(np.sum(np.asarray(shard.data)[0, 0] != self.expected(host, device)))
        return wrong


def make_program(transfer: Transfer, axes: Axes, bytes_: int, mesh: Mesh) -> Program:
    """Compile `transfer` for a float32 message of at least `bytes_`, rounded up to what it takes."""
    multiple = _multiple(transfer, axes, mesh.shape)
    elements = max(1, -(-bytes_ // (4 * multiple))) * multiple
    taken = elements // axes_size(axes, mesh.shape) if transfer.kind == "all-gather" else elements
    sharding = one_per_device(mesh)

    def on_device(message: jax.Array) -> jax.Array:
        result = _moved(transfer, message[0, 0], axes)
        missing = tuple(set(AXES) - set(jax.typeof(result).manual_axis_type.varying))
        return lax.pcast(result, missing, to="varying")[None, None]

    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=sharding.spec, out_specs=sharding.spec)
    shape = (mesh.shape[HOST], mesh.shape[DEVICE], taken)
    own = lambda index: _own(index[0].start or 0, index[1].start or 0, taken)[None, None]  # noqa: E731
    message = jax.make_array_from_callback(shape, sharding, own)
    options = compiler_options(mesh.devices.flat[0].platform)
    call = jax.jit(mapped, compiler_options=options).lower(message).compile()
    expected = lambda host, device: _expected(transfer.kind, axes, mesh.shape, (host, device), taken)  # noqa: E731
    return Program(call, message, elements, expected)


def _multiple(transfer: Transfer, axes: Axes, axis_sizes: Mapping[str, int]) -> int:
    if transfer.reducer is not None:
        return transfer.reducer(axes).plan(jax.ShapeDtypeStruct((0,), "float32"), axis_sizes).multiple
    return axes_size(axes, axis_sizes) if transfer.kind in ("reduce-scatter", "all-gather") else 1


def _moved(transfer: Transfer, message: jax.Array, axes: Axes) -> jax.Array:
    if transfer.move is not None:
        return transfer.move(message, axes)
    assert transfer.reducer is not None
    reducer = transfer.reducer(axes)
    sizes = {axis: lax.axis_size(axis) for axis in AXES}
    return reducer.reduce(message, reducer.init(message, sizes))[0]


def _own(host: int, device: int, elements: int) -> np.ndarray:
    """What a device sends: small whole numbers, whose sums are exact in any order; different on each device."""
    return (np.arange(elements) % 7 + 3 * host + device).astype(np.float32)


def _expected(
    kind: Kind, axes: Axes, axis_sizes: Mapping[str, int], place: tuple[int, int], elements: int
) -> np.ndarray:
    """The plain reference: what the device at `place` must end with."""
    members = [
        (host if HOST in axes else place[0], device if DEVICE in axes else place[1])
        for host in range(axis_sizes[HOST] if HOST in axes else 1)
        for device in range(axis_sizes[DEVICE] if DEVICE in axes else 1)
    ]
    mine = members.index(place)
    if kind == "collective-permute":
        return _own(*members[mine - 1], elements)
    if kind == "all-gather":
        return np.concatenate([_own(*member, elements) for member in members])
    total = np.sum([_own(*member, elements) for member in members], axis=0)
    return np.split(total, len(members))[mine] if kind == "reduce-scatter" else total
