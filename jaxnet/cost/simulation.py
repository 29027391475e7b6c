"""What a run would do on machines that are not here: a step as events, from the rate of one device.

One device's step is measured, or published. On more devices the same computation takes as long, and messages travel
beside it:

1. Forward takes a third of the step. Backward takes the rest, each layer in proportion to its operations.
2. A message may leave when backward has made all that is in it, and goes through its stages: those of the strategy's
   plan, such as reduce-scatter in the host, all-reduce across, all-gather in the host.
3. A link takes one stage at a time, in the order in which they come to it. So the stages of several messages overlap.
4. The step ends with the last of computation and messages, and on all devices when the slowest of them is done: the
   times of n devices vary, and the largest of n normal values is about `sqrt(2 ln n)` deviations above the mean.

    near  | RS 0 | RS 1 | AG 0 | RS 2 | AG 1 |        | AG 2 |
    far          |     AR 0    |     AR 1    |  AR 2  |

What it leaves out: that messages slow computation down, input, checkpoints, failures.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxnet.comm import DEVICE, HOST, Averaging, Collective, Reducer, Strategy, messages_of
from jaxnet.cost.machines import Machine
from jaxnet.errors import InputError

FORWARD = 1 / 3  # of a step's computation: backward has two products for each of forward's
_INSTANT = 1e-12  # seconds: what is nearer happens at once
DEVIATION = 0.01  # assumed: of the time that a device takes for a step, as a part of it


class Layer(NamedTuple):
    """Parameters that are ready together.

    Attributes:
        elements: of its parameters.
        flops: of its forward pass, for one example.
    """

    elements: int
    flops: float


@dataclass(frozen=True)
class Work:
    """What one device does in a step.

    Attributes:
        name: of the network.
        layers: in the order of forward.
        batch: examples of a device.
        rate: examples a second of one device alone.
        dtype: of the gradients that travel.
    """

    name: str
    layers: tuple[Layer, ...]
    batch: int
    rate: float
    dtype: str = "float32"

    @property
    def seconds(self) -> float:
        """Of one device's step."""
        return self.batch / self.rate

    @property
    def gradient_bytes(self) -> int:
        """Of all gradients."""
        return sum(layer.elements for layer in self.layers) * jnp.dtype(self.dtype).itemsize


class Simulated(NamedTuple):
    """A step on so many devices.

    Attributes:
        devices: in all.
        seconds: of the step.
        exposed: of them, in which nothing is computed.
        rate: examples a second of all.
        efficiency: `rate` over that of as many devices by themselves.
        unhidden: what `efficiency` would be if nothing travelled before the end of backward.
        limit: what `efficiency` can be at most: computation and the busiest link side by side, see `fewest_seconds`.
    """

    devices: int
    seconds: float
    exposed: float
    rate: float
    efficiency: float
    unhidden: float
    limit: float


def simulated(work: Work, strategy: Strategy, machine: Machine, hosts: int, devices: int) -> Simulated:
    """A step on `hosts` of so many devices each.

    Raises:
        InputError: the strategy does not sum message by message, or not in each step.
    """
    count = hosts * devices
    compute = work.seconds * (1 + DEVIATION * math.sqrt(2 * math.log(count)))
    least = max(compute, fewest_seconds(work.gradient_bytes, machine, hosts, devices))
    ends = 0.0, 0.0
    if count > 1:
        ends = _last_arrivals(work, strategy, machine, {HOST: hosts, DEVICE: devices}, compute)
    step, late = (max(compute, each) for each in ends)
    rate = count * work.batch / step
    shares = (work.seconds / each for each in (step, late, least))
    return Simulated(count, step, step - compute, rate, *shares)


def fewest_seconds(gradient_bytes: float, machine: Machine, hosts: int, devices: int) -> float:
    """What the busiest link takes for a sum over all devices, without latency: `2 (n - 1) / n` of the bytes, once each.

    Patarasuk and Yuan (2009), for the devices of a host and for the hosts. No strategy that sends the gradients as they
    are has a shorter sum; one that sends fewer bytes may.

    >>> from jaxnet.cost.machines import MACHINES
    >>> round(1e3 * fewest_seconds(100e6, MACHINES["v100-edr"], hosts=4, devices=8), 2)
    14.12
    """
    busy = [
        2 * (count - 1) / count * gradient_bytes / link.reached
        for count, link in ((hosts, machine.far), (devices, machine.near))
    ]
    return max(busy)


def _last_arrivals(
    work: Work, strategy: Strategy, machine: Machine, sizes: dict[str, int], compute: float
) -> tuple[float, float]:
    """Seconds from the step's begin to the last message's end; and if all messages begin after backward."""
    reducer = summing_messages(strategy, f"strategy={strategy.label} is not simulated")
    if reducer.by_shape:
        raise InputError(
            f"strategy={strategy.label} is not simulated: what it sends follows from the shapes of the parameters, and "
            "a simulation knows their numbers; try top_k or int8"
        )
    # 1. Backward makes the last layer's gradient first.
    order = tuple(reversed(range(len(work.layers))))
    shapes = [jax.ShapeDtypeStruct((layer.elements,), work.dtype) for layer in work.layers]
    messages = messages_of(reducer, shapes, sizes, order)
    ready = _ready(work, compute)
    # 2. Each message's stages, as what they take of which link.
    stages, begins = [], []
    for collectives, bucket in zip(messages.collectives(sizes), messages.buckets.buckets, strict=True):
        stages.append([stage(each, machine, sizes) for each in collectives if each.size > 1])
        begins.append(max(ready[order[piece.leaf]] for piece in bucket.pieces))
    late = overlapped(compute, [compute] * len(begins), stages).arrived
    return late if strategy.schedule == "after" else overlapped(compute, begins, stages).arrived, late


def summing_messages(strategy: Strategy, otherwise: str) -> Reducer:
    """What sums gradients in each step, message by message; else an InputError that begins with `otherwise`."""
    reducer, schedule = strategy.reducer, strategy.schedule
    if isinstance(schedule, Averaging):
        raise InputError(
            f"{otherwise}: its steps are not alike, parameters travel in every {schedule.every}th; try ddp or "
            "hierarchical"
        )
    if not isinstance(reducer, Reducer) or reducer.message is None:
        raise InputError(f"{otherwise}: it does not sum message by message; try ddp or hierarchical")
    return reducer


def _ready(work: Work, compute: float) -> list[float]:
    """When each layer's gradient is there, in seconds from the step's begin."""
    total = sum(layer.flops for layer in work.layers) or 1.0
    ready, done = [0.0] * len(work.layers), FORWARD * compute
    for index in reversed(range(len(work.layers))):
        done += (1 - FORWARD) * compute * work.layers[index].flops / total
        ready[index] = done
    return ready


def stage(collective: Collective, machine: Machine, sizes: dict[str, int]) -> tuple[str, float]:
    """Which link a collective takes, 'near' or 'far', and for how many seconds.

    What all devices of a host send at once to other hosts shares the host's link. A collective over all devices is a
    ring that leaves each host once; of an all-to-all, what each of a host's devices sends to others' leaves it.
    """
    hosts = sizes[HOST] if HOST in collective.axes else 1
    devices = sizes[DEVICE] if DEVICE in collective.axes else 1
    rounds = 2 if collective.kind == "all-reduce" else 1
    inside_hops, hops = rounds * machine.near_hops(devices), rounds * _hops(hosts)
    if collective.kind == "collective-permute":
        inside_hops = hops = 1
    inside = machine.near.seconds(collective.wire_bytes, inside_hops) if devices > 1 else 0.0
    if hosts == 1:
        return "near", inside
    at_once: float = sizes[DEVICE] if devices == 1 else 1
    if collective.kind == "all-to-all":
        at_once *= devices * (collective.size - devices) / (collective.size - 1)
    return "far", max(inside, machine.far.seconds(at_once * collective.wire_bytes, hops))


def _hops(hosts: int) -> int:
    """One after another, to reach all: along a ring of few, or a tree of many."""
    return min(hosts - 1, math.ceil(math.log2(hosts)))


class Overlap(NamedTuple):
    """Computation beside messages; seconds from the begin of the step.

    Attributes:
        computed: when all is computed.
        arrived: when the last message has arrived.
        stages: of each message, from when to when it was on each of its links.
    """

    computed: float
    arrived: float
    stages: tuple[tuple[tuple[float, float], ...], ...]


def overlapped(
    work: float,
    begins: Sequence[float],
    stages: Sequence[Sequence[tuple[str, float]]],
    share: float = 0.0,
) -> Overlap:
    """When `work` seconds of computation are done, and when messages travel beside it.

    Args:
        work: seconds, if nothing travels.
        begins: of each message, after how many of these seconds it may leave: of all, at the end.
        stages: of each message, the links that it takes one after the other, and for how many seconds.
        share: of the processor that what travels takes from computation.

    Message 1 is ready after 1 second while message 0 is on the near link, and its second stage waits for the far one:

    >>> overlapped(2, [0, 1], [[("near", 2), ("far", 3)], [("near", 2), ("far", 3)]])
    Overlap(computed=2.0, arrived=8.0, stages=(((0.0, 2.0), (2.0, 5.0)), ((2.0, 4.0), (5.0, 8.0))))
    >>> overlapped(2, [1], [[("far", 2)]], share=0.5)  # the second half of the work takes twice as long
    Overlap(computed=3.0, arrived=3.0, stages=(((1.0, 3.0),),))
    """
    coming = deque(sorted(range(len(begins)), key=begins.__getitem__))
    queues: dict[str, deque[tuple[int, int]]] = {}
    left: dict[str, float] = {}  # of the stages that are on a link
    ended: list[tuple[int, int]] = []
    begun: dict[str, float] = {}  # when they came to it
    spans: list[list[tuple[float, float]]] = [[] for _ in stages]
    now = done = computed = arrived = 0.0
    while True:
        # 1. Messages that are ready, and those whose stage has ended, come to their next link.
        while coming and begins[coming[0]] <= done + _INSTANT:
            ended.append((coming.popleft(), -1))
        for message, number in sorted(ended):
            if number + 1 < len(stages[message]):
                queues.setdefault(stages[message][number + 1][0], deque()).append((message, number + 1))
        # 2. A free link takes the first of its queue.
        for link, queue in queues.items():
            if queue and link not in left:
                message, number = queue[0]
                left[link] = stages[message][number][1]
                begun[link] = now
        if not left and done >= work:
            return Overlap(computed, arrived, tuple(map(tuple, spans)))
        # 3. To the next event: a stage ends, a message is ready, or all is computed.
        rate = 1.0 - share if left else 1.0
        ahead = (begins[coming[0]] if coming else work) - done
        span = min([*left.values(), *([ahead / rate] if done < work else [])])
        now += span
        if done < work:
            done = done + ahead if span * rate >= ahead - _INSTANT else done + span * rate
            computed = now
        ended = []
        for link in list(left):
            left[link] -= span
            if left[link] <= _INSTANT:
                del left[link]
                message, number = queues[link].popleft()
                spans[message].append((begun[link], now))
                ended.append((message, number))
                arrived = now


def grown(hosts: int, devices: int) -> list[tuple[int, int]]:
    """Numbers of hosts and devices up to these, doubled: first inside a host.

    >>> grown(4, 8)
    [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8)]
    """
    inside = [1 << power for power in range(devices.bit_length()) if 1 << power < devices]
    across = [1 << power for power in range(hosts.bit_length()) if 1 << power < hosts]
    return [*((1, count) for count in inside), *((count, devices) for count in across), (hosts, devices)]


def scaled(
    work: Work, strategy: Strategy, machine: Machine, most: tuple[int, int], *, strong: bool
) -> Iterator[tuple[tuple[int, int], Simulated]]:
    """Steps on more and more devices; `strong`: of the same batch, as far as devices can share it."""
    together = work.batch * math.prod(most)
    for hosts, devices in grown(*most):
        batch = together // (hosts * devices) if strong else work.batch
        yield (hosts, devices), simulated(replace(work, batch=batch), strategy, machine, hosts, devices)


# ---- Hosts that fail ------------------------------------------------------------------------------------


class Upkeep(NamedTuple):
    """What failures cost a long run.

    Attributes:
        interval: seconds of training between two saves.
        goodput: of all time, the part in which steps are made that count.
    """

    interval: float
    goodput: float


def upkeep(hosts: int, between_failures: float, save: float, restart: float) -> Upkeep:
    """The best interval of checkpoints, and what is then left of the time.

    Of `hosts` one fails every `M = between_failures / hosts` seconds. A save takes `C` and is made every
    `W = sqrt(2 C M)` of training, which makes the sum of both losses smallest: `C / W` for saves, and for each failure
    half an interval and a restart, `(W / 2 + R) / M`. Young (1974); Daly (2006) has the terms of higher order, which
    matter where `W` is no longer small beside `M`.

    Args:
        hosts: how many.
        between_failures: mean seconds until a host fails.
        save: seconds in which a save holds up training.
        restart: seconds from a failure until training goes on, without what was lost.

    >>> found = upkeep(hosts=100, between_failures=1e8, save=20.0, restart=300.0)
    >>> round(found.interval), round(found.goodput, 4)
    (6325, 0.9934)
    """
    mean = between_failures / hosts
    interval = math.sqrt(2 * save * mean)
    lost = (interval + restart) / mean  # `C / W` is half an interval, too
    return Upkeep(interval, 1 / (1 + lost))
