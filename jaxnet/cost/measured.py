"""What a step's parts take on these devices: computation, messages, and what these cost it.

1. Computation, in one program without communication: forward, backward up to some moments, the whole step. Gradients
   between two moments are ready in proportion to their bytes.
2. Messages: every kind of collective of the plans, in several sizes.
3. The part of the processor that messages take: by themselves, and from computation beside which they travel.
4. What it takes of the processor to launch one more program, and to pack and unpack a byte.

All processes measure together, and what the slowest sees counts.
"""

import math
import os
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxnet.comm import AXES, Message, all_reduce, local_shards, lower_launch, platform_of
from jaxnet.cost.collectives import TRANSFERS, Transfer, make_program, measured_times
from jaxnet.cost.fit import Curve, fitted, rising
from jaxnet.cost.prediction import Parts, Way
from jaxnet.cost.rounds import gathered, interleave, wait_for_all
from jaxnet.cost.steps import compute_only, packing_only, partial_gradient
from jaxnet.cost.workloads import Workload
from jaxnet.errors import InputError
from jaxnet.models import network_options
from jaxnet.parallel.device_step import example_keys, value_and_gradient
from jaxnet.parallel.pieces import computes_apart
from jaxnet.parallel.state import TrainState
from jaxnet.tasks.task import Batch

_CUTS = 3  # moments of backward that are timed
_SIZES = (1 << 16, 1 << 20, 1 << 22, 1 << 24)
_SMALL, _LARGE = 1 << 16, 1 << 22  # messages whose part of the processor is measured: launched, and on their way
_BYTES = 1 << 24  # that a size of messages is timed for, but at least 3 and at most 20 of them
_ROUNDS, _STEPS = 3, 1
_STEP, _PACKING = -1, -2  # beside gradients up to so many leaves
_PLAIN: dict[str, Transfer] = {each.kind: each for each in TRANSFERS.values() if each.plain}


def measured_parts(workload: Workload, ways: Iterable[Way]) -> Parts:
    """Time a workload's computation, and messages in each of `ways`. All processes call it with the same arguments.

    Raises:
        InputError: there is no such collective to time.
    """
    order, mesh = workload.order, workload.mesh
    sizes = [workload.shapes[leaf].size * workload.shapes[leaf].dtype.itemsize for leaf in order]
    cuts = _cuts(sizes)
    tasks = {0: partial_gradient(workload, ())} | {end: partial_gradient(workload, order[:end]) for end in cuts}
    others = {_STEP: compute_only(workload), _PACKING: packing_only(workload)}
    times = interleave({**tasks, **others}, _ROUNDS, _STEPS)
    forward, *moments, step = rising([float(np.median(times[key])) for key in [*tasks, _STEP]])
    known = dict(zip(order, _between(sizes, cuts, [forward, *moments]), strict=True))
    ready = tuple(known[leaf] for leaf in range(len(order)))
    curves = {way: _curve(mesh, way, workload.gradient_bytes) for way in sorted(ways)}
    large = min(workload.gradient_bytes, _LARGE)
    share, seconds, _ = _processor_part(mesh, large)
    if computes_apart(mesh):
        share = max(share, _taken_beside(workload, large, math.ceil(1.5 * moments[-1] / seconds)))
    launch = _processor_part(mesh, _SMALL)[2]
    packing = float(np.median(times[_PACKING])) / workload.gradient_bytes
    return Parts(forward, ready, moments[-1], step, curves, min(0.9, share), launch, packing)


def _cuts(sizes: Sequence[int]) -> list[int]:
    """How many leaves make a third of the bytes, two thirds, and all; of leaves that are whole.

    >>> _cuts([10, 10, 10, 30])
    [2, 4]
    """
    reached = np.cumsum(sizes)
    wanted = [reached[-1] * part / _CUTS for part in range(1, _CUTS + 1)]
    return sorted({min(int(np.searchsorted(reached, each)) + 1, len(sizes)) for each in wanted})


def _between(sizes: Sequence[int], cuts: Sequence[int], moments: Sequence[float]) -> list[float]:
    """When each leaf is ready: between two moments in proportion to bytes; `moments[0]` is before the first.

    >>> _between([1, 1, 2], cuts=[2, 3], moments=[10.0, 12.0, 20.0])
    [11.0, 12.0, 20.0]
    """
    reached = np.cumsum(sizes)
    return [float(each) for each in np.interp(reached, [0, *(reached[end - 1] for end in cuts)], moments)]


def _curve(mesh: Mesh, way: Way, total: int) -> Curve:
    kind, axes = way
    if kind not in _PLAIN:
        raise InputError(f"messages that travel by {kind} are not timed")
    times: dict[int, list[float]] = {}
    for size in [each for each in _SIZES if each <= max(total, _SIZES[1])]:
        elements, seen, _ = measured_times(mesh, axes, _PLAIN[kind], size, _times(size))
        times[4 * elements] = list(seen.mean(0))
    return fitted(times)


def _times(size: int) -> int:
    return min(20, max(3, _BYTES // size))


def _processor_part(mesh: Mesh, size: int) -> tuple[float, float, float]:
    """What a message takes of a process's cores by itself, the most of all processes: as a part of its time; its
    seconds; those of the processor."""
    program = make_program(TRANSFERS["all_reduce"], AXES, size, mesh)
    jax.block_until_ready(program.call(program.message))
    wait_for_all()
    begun, used = time.perf_counter(), time.process_time()
    for _ in range(_times(size)):
        jax.block_until_ready(program.call(program.message))
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    part = used / (seconds * len(os.sched_getaffinity(0)))
    most = gathered(np.array([part, seconds / _times(size), used / _times(size)])).max(0)
    return float(most[0]), float(most[1]), float(most[2])


def _taken_beside(workload: Workload, size: int, count: int) -> float:
    """The part of the processor's time that messages take from the gradient's computation, the most of all processes.

    More than what they use of it by themselves: they also take turns, caches and memory. Computation is cut as that of
    a step in pieces, and `count` messages of `size` bytes, at most 8, travel beside it twice. 0 if all have arrived
    before one piece is computed.
    """
    mesh, order = workload.mesh, workload.order
    first, batch = local_shards(workload.first_state._replace(comm=())), local_shards(workload.global_batch)
    # By the first message, of one element, processes wait for each other.
    elements = [1, *[size // 4] * min(count, 8)]
    sent = [Message(all_reduce(*AXES), jax.ShapeDtypeStruct((each,), "float32")) for each in elements]

    # 1. The first piece makes all messages, the others the gradients.
    def computed(state: TrainState, batch: Batch) -> list[jax.Array]:
        keys = example_keys(state.key, state.step, batch["id"])
        (loss, _), grads = value_and_gradient(workload.loss_fn)(state.params, state.stats, batch, keys)
        leaves = jax.tree.leaves(grads)
        return [*(jnp.full(each.spec.shape, loss, "float32") for each in sent), *(leaves[leaf] for leaf in order)]

    ends = [0, *_cuts([workload.shapes[leaf].size for leaf in order])]
    pieces = [range(len(sent)), *(range(len(sent) + begin, len(sent) + end) for begin, end in pairwise(ends))]
    launch = lower_launch(computed, jax.eval_shape(lambda: (first, batch)), sent, mesh, groups=pieces)
    # 2. Each piece alone, and again beside messages.
    *_, part = launch.compile(network_options(platform_of(mesh))).timed((first, batch), [()] * len(sent))
    return float(gathered(np.array([part])).max())
