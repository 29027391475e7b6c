"""How fast messages travel: nccl-tests' table for every transfer, axis and size, and the peak of each link."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxnet.comm import (
    AXES,
    DEVICE,
    HOST,
    CollectiveKind,
    MiB,
    Reducer,
    all_reduce,
    axes_size,
    compiler_options,
    halving_doubling,
    one_per_device,
    platform_of,
    ring,
    rooted,
    scattered,
    varying_along,
)
from jaxnet.cost.rounds import gathered, wait_for_all

_progress = logging.getLogger("jaxnet.progress")

# ---- Bytes and seconds as nccl-tests counts them: S bytes, algbw = S / t, busbw = algbw x a factor of the kind
#
# GB are 10^9 bytes. busbw is what each device sends a second by an algorithm that sends the fewest bytes, and so can be
# compared with the speed of a link, whatever the collective and the number of devices.


GB = 1e9


def busbw_factor(kind: CollectiveKind, size: int) -> float:
    """Fewest bytes that each of `size` devices sends, as a multiple of S.

    >>> [busbw_factor(kind, 4) for kind in ("all-reduce", "reduce-scatter", "all-gather", "collective-permute")]
    [1.5, 0.75, 0.75, 1.0]
    """
    if kind == "collective-permute":
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (size - 1) / size


def algbw(bytes_: int, seconds: float) -> float:
    """GB/s at which the algorithm gets through a message of `bytes_`.

    >>> algbw(2_000_000, 0.001)
    2.0
    """
    return bytes_ / seconds / GB


def percentile(times: Sequence[float] | np.ndarray, percent: float) -> float:
    """The value that `percent` of `times` do not exceed, between two of them by proportion."""
    return float(np.percentile(np.asarray(times), percent))


# ---- Every way to move one message over mesh axes, as a program with a known answer -------------------


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
    kind: CollectiveKind
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
class TransferProgram:
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


def make_program(transfer: Transfer, axes: Axes, bytes_: int, mesh: Mesh) -> TransferProgram:
    """Compile `transfer` for a float32 message of at least `bytes_`, rounded up to what it takes."""
    multiple = _multiple(transfer, axes, mesh.shape)
    elements = max(1, -(-bytes_ // (4 * multiple))) * multiple
    taken = elements // axes_size(axes, mesh.shape) if transfer.kind == "all-gather" else elements
    sharding = one_per_device(mesh)

    def on_device(message: jax.Array) -> jax.Array:
        result = _moved(transfer, message[0, 0], axes)
        return varying_along(result, AXES)[None, None]

    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=sharding.spec, out_specs=sharding.spec)
    shape = (mesh.shape[HOST], mesh.shape[DEVICE], taken)
    own = lambda index: _own(index[0].start or 0, index[1].start or 0, taken)[None, None]  # noqa: E731
    message = jax.make_array_from_callback(shape, sharding, own)
    options = compiler_options(platform_of(mesh))
    call = jax.jit(mapped, compiler_options=options).lower(message).compile()
    expected = lambda host, device: _expected(transfer.kind, axes, mesh.shape, (host, device), taken)  # noqa: E731
    return TransferProgram(call, message, elements, expected)


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
    kind: CollectiveKind, axes: Axes, axis_sizes: Mapping[str, int], place: tuple[int, int], elements: int
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


_WARMUPS = 2
_LARGE = 1 * MiB
_PROBE_ITERATIONS = 5
# Which of them fills a link depends on the transport: over Gloo all-reduces do, and permutes of at most 1 MiB.
PROBES: tuple[tuple[str, int], ...] = (("permute", 1 * MiB), ("all_reduce", 4 * MiB), ("all_reduce", 32 * MiB))


@dataclass(frozen=True)
class CollectiveRow:
    """One line of the table.

    Attributes:
        axis: the axes, joined by '+'.
        size: how many devices take part.
        bytes: S: what all-reduce sums, reduce-scatter takes in, all-gather gives out, a permute's sender sends.
        min_us: the fastest iteration; an iteration's time is the mean over processes, microseconds.
        p50_us: the median iteration.
        p99_us: the 99th percentile.
        algbw: S / p50, GB/s.
        busbw: algbw x `busbw_factor`, GB/s.
        percent_of_peak: busbw as percent of the peak of these axes.
        wrong: elements of the first result that were wrong, on all processes.
    """

    algorithm: str
    axis: str
    size: int
    bytes: int
    elements: int
    min_us: float
    p50_us: float
    p99_us: float
    algbw: float
    busbw: float
    percent_of_peak: float
    wrong: int


def communicating_axes(mesh: Mesh) -> list[Axes]:
    """The axes that join several devices: each by itself, and both together if both do."""
    single: list[Axes] = [(axis,) for axis in AXES if mesh.shape[axis] > 1]
    return [*single, AXES] if len(single) == 2 else single


def measure_collectives(
    mesh: Mesh,
    sizes: Sequence[int],
    axes: Sequence[Axes],
    transfers: Sequence[Transfer],
    iterations: int,
    probes: Sequence[tuple[str, int]] = PROBES,
) -> tuple[list[CollectiveRow], dict[str, float]]:
    """Measure every transfer of `transfers` over each of `axes` with messages of `sizes` bytes.

    Every process must call it with the same arguments. The second result is the peak of each axis in bytes a
    second: the best busbw of any call among the backend's own collectives with messages of 1 MiB and more, those of the
    table and those of `probes`.
    """
    rows, peaks = [], {}
    for over in axes:
        peak, measured = link_peak(mesh, over, probes), []
        for transfer in transfers:
            for size in sizes:
                _progress.info("%s over %s, %d bytes", transfer.name, "+".join(over), size)
                row = measured_row(mesh, over, transfer, size, iterations)
                measured.append(row)
                if transfer.plain and row.bytes >= _LARGE:
                    peak = max(peak, _best_rate(row))
        peaks["+".join(over)] = peak
        rows += [replace(row, percent_of_peak=100 * row.busbw * GB / peak) for row in measured]
    return rows, peaks


def link_peak(mesh: Mesh, axes: Axes, probes: Sequence[tuple[str, int]] = PROBES) -> float:
    """Bytes a second that each device can send over `axes`: the fastest call of `probes`, (name, bytes) each."""
    return max(_best_rate(measured_row(mesh, axes, TRANSFERS[name], size, _PROBE_ITERATIONS)) for name, size in probes)


def _best_rate(row: CollectiveRow) -> float:
    """Wire bytes a second of the fastest call: on a shared machine the others say what else was going on."""
    return GB * row.busbw * row.p50_us / row.min_us


def measured_row(mesh: Mesh, axes: Axes, transfer: Transfer, size: int, iterations: int) -> CollectiveRow:
    """The line of one transfer of `size` bytes, without the peak: the same on all processes, which all call this."""
    elements, times, wrong = measured_times(mesh, axes, transfer, size, iterations)
    return make_row(transfer, axes, axes_size(axes, mesh.shape), elements, times, wrong)


def measured_times(
    mesh: Mesh, axes: Axes, transfer: Transfer, size: int, iterations: int
) -> tuple[int, np.ndarray, int]:
    """Elements, seconds [processes, iterations] and wrong elements of one transfer: the same on all processes."""
    program = make_program(transfer, axes, size, mesh)
    # Compiling takes each process another time, and some collectives do not wait long for the last.
    wait_for_all()
    wrong = program.wrong_elements(jax.block_until_ready(program.call(program.message)))
    wait_for_all()
    times = np.empty(iterations)
    for index in range(-_WARMUPS, iterations):
        started = time.perf_counter()
        jax.block_until_ready(program.call(program.message))
        if index >= 0:
            times[index] = time.perf_counter() - started
    seen = gathered(np.append(times, wrong))
    return program.elements, seen[:, :-1], int(seen[:, -1].sum())


def make_row(transfer: Transfer, axes: Axes, size: int, elements: int, times: np.ndarray, wrong: int) -> CollectiveRow:
    """The arithmetic of a line, without the peak; `times` is [processes, iterations], seconds."""
    means = times.mean(0)
    p50, p99 = percentile(means, 50), percentile(means, 99)
    rate = algbw(4 * elements, p50)
    return CollectiveRow(
        algorithm=transfer.name,
        axis="+".join(axes),
        size=size,
        bytes=4 * elements,
        elements=elements,
        min_us=float(means.min()) * 1e6,
        p50_us=p50 * 1e6,
        p99_us=p99 * 1e6,
        algbw=rate,
        busbw=rate * busbw_factor(transfer.kind, size),
        percent_of_peak=float("nan"),
        wrong=wrong,
    )
