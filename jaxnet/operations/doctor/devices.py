"""Check the devices of all ranks, and sum over them with JAX's own collectives, as gradients are summed."""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxnet.errors import one_line
from jaxnet.operations.doctor.finding import Finding, check_same, failed, ok, skipped
from jaxnet.operations.doctor.links import megabits
from jaxnet.operations.doctor.waiting import Talk, TimedOut, within

_CALLS = 3
_LEAST, _USUAL, _MOST = 16 << 10, 1 << 20, 8 << 20  # bytes
_TARGET_SECONDS = 0.2
_STARTED_CURE = (
    "check that JAX_PLATFORMS names what this host has, and read what `python -c 'import jax; jax.devices()'` prints"
)
_SAME_CURE = (
    "give every rank as many devices: see JAX_NUM_CPU_DEVICES, CUDA_VISIBLE_DEVICES, and what the launcher asks for"
)
_SUM_CURE = "see the lines above; else try JAX_PLATFORMS=cpu, which leaves the accelerators out"


class Sum(NamedTuple):
    """Seconds for the smallest sum and for one of `bytes`, each the fastest of a few; or the `problem`."""

    latency: float
    seconds: float
    bytes: int
    problem: str


def check_devices(talk: Talk, timeout_seconds: float) -> list[Finding]:
    """Compare the number and kind of the ranks' devices; every rank calls this."""
    own = _own_devices(timeout_seconds)
    everyone = talk.gather("devices", own)
    if problems := {rank: said["problem"] for rank, said in enumerate(everyone) if said["problem"]}:
        return [failed("devices", "; ".join(f"rank {rank}: {text}" for rank, text in problems.items()), _STARTED_CURE)]
    alike = f"{own['devices']} of kind {own['kind']}" + (" on each rank" if talk.count > 1 else "")
    keys = ("devices", "kind")
    return [check_same("devices", [{key: said[key] for key in keys} for said in everyone], alike, _SAME_CURE)]


def _own_devices(timeout_seconds: float) -> dict[str, str]:
    try:
        devices = within(timeout_seconds, jax.local_devices)
    except TimedOut:
        return {"problem": f"JAX made no devices within {timeout_seconds:g} s"}
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a known platform has a device
        return {"problem": one_line(error) or "JAX has no device of this platform"}
    return {"problem": "", "devices": str(len(devices)), "kind": devices[0].device_kind}


def check_sum(talk: Talk, slowest: float | None, timeout_seconds: float) -> Finding:
    """Time a sum over the ranks. Every rank calls this, with the same `slowest` link in bits a second, if known."""
    if talk.count == 1:
        return skipped("all-reduce", "one process")
    # A size that takes _TARGET_SECONDS on the slowest link.
    size = _USUAL if slowest is None else int(min(max(slowest / 8 * _TARGET_SECONDS, _LEAST), _MOST))
    try:
        own = within(timeout_seconds, lambda: _time_sums(size // 4))
    except TimedOut:
        own = Sum(0.0, 0.0, size, f"did not end within {timeout_seconds:g} s")
    except RuntimeError as error:
        own = Sum(0.0, 0.0, size, one_line(error)[:200])
    return judge_sums([Sum(*said) for said in talk.gather("all-reduce", own)])


def judge_sums(sums: Sequence[Sum]) -> Finding:
    """Judge the sums of all ranks.

    >>> judge_sums([Sum(0.001, 0.1, 1_000_000, "")] * 2).found
    '1.00 ms for the smallest; 1.00 MB in 100.0 ms, 80 Mbit/s of bus bandwidth'
    """
    if wrong := [f"rank {rank}: {own.problem}" for rank, own in enumerate(sums) if own.problem]:
        return failed("all-reduce", "; ".join(wrong), _SUM_CURE)
    latency = statistics.median(own.latency for own in sums)
    seconds = statistics.median(own.seconds for own in sums)
    bus = 2 * (len(sums) - 1) / len(sums) * sums[0].bytes * 8 / seconds
    found = f"{latency * 1e3:.2f} ms for the smallest; {sums[0].bytes / 1e6:.2f} MB in {seconds * 1e3:.1f} ms"
    return ok("all-reduce", f"{found}, {megabits(bus)} of bus bandwidth")


def _time_sums(elements: int) -> Sum:
    """Time `psum` over a mesh axis of hosts, with one device of each rank."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([first[rank] for rank in sorted(first)]), ("host",))
    latency, seconds = _seconds(mesh, 1), _seconds(mesh, elements)
    return Sum(latency, seconds, elements * 4, "")


def _seconds(mesh: Mesh, elements: int) -> float:
    """The fastest of a few sums of `elements` numbers from each rank; RuntimeError if the result is wrong."""
    split = NamedSharding(mesh, PartitionSpec("host"))
    ones = jax.make_array_from_callback((mesh.size, elements), split, lambda index: np.ones((1, elements), np.float32))
    add = jax.jit(
        jax.shard_map(
            lambda part: jax.lax.psum(part, "host"), mesh=mesh, in_specs=split.spec, out_specs=PartitionSpec()
        )
    )
    taken = []
    for _ in range(_CALLS + 1):  # the first compiles and connects
        started = time.perf_counter()
        total = add(ones).block_until_ready()
        taken.append(time.perf_counter() - started)
    if not np.array_equal(total.addressable_data(0), np.full((1, elements), mesh.size)):
        raise RuntimeError("the sum is wrong")
    return min(taken[1:])
