"""The timeline of one step: when each device computed, when each bucket travelled, and how much of that was hidden.

A collective is hidden while the same device computes, and exposed while it does not.
Overlap = 1 - exposed / communication.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxnet.comm import FoundCollective
from jaxnet.errors import InputError
from jaxnet.report.programs import TracedProgram, axes_of, bucket_of, message_bytes, scope_of
from jaxnet.report.steps import join_pieces, median_step, runs_by_step, step_program, step_ranges, steps_of_all
from jaxnet.report.trace import Event, Trace

# ---- Sets of spans --------------------------------------------------------------------------------------


class Span(NamedTuple):
    """The time from `start` to `end`, in seconds from the step's start."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """Seconds."""
        return self.end - self.start


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return spans that cover the same time, disjoint and in order.

    >>> union([Span(3, 4), Span(0, 2), Span(1, 3), Span(6, 6)])
    (Span(start=0, end=4),)
    """
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.end > span.start):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return tuple(merged)


def intersection(a: Sequence[Span], b: Sequence[Span]) -> tuple[Span, ...]:
    """Return the time that is in both; `a` and `b` are results of `union`.

    >>> intersection([Span(0, 4)], [Span(1, 2), Span(3, 9)])
    (Span(start=1, end=2), Span(start=3, end=4))
    """
    shared: list[Span] = []
    left = right = 0
    while left < len(a) and right < len(b):
        start, end = max(a[left].start, b[right].start), min(a[left].end, b[right].end)
        if start < end:
            shared.append(Span(start, end))
        if a[left].end < b[right].end:
            left += 1
        else:
            right += 1
    return tuple(shared)


def difference(a: Sequence[Span], b: Sequence[Span]) -> tuple[Span, ...]:
    """Return the time of `a` that is not in `b`; both are results of `union`.

    >>> difference([Span(0, 4)], [Span(1, 2), Span(3, 9)])
    (Span(start=0, end=1), Span(start=2, end=3))
    """
    ends = [float("-inf"), *(span.end for span in b)]
    starts = [*(span.start for span in b), float("inf")]
    return intersection(a, [Span(end, start) for end, start in zip(ends, starts, strict=True)])


def total_seconds(spans: Iterable[Span]) -> float:
    """Return the seconds in a result of `union`."""
    return sum(span.length for span in spans)


def hidden_seconds(span: Span, compute: Sequence[Span]) -> float:
    """Return the seconds of a span in which something was computed; `compute` is a result of `union`."""
    return total_seconds(intersection([span], compute))


# ---- One step, measured --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedCollective:
    """One collective on one device.

    Attributes:
        name: the name of the instruction.
        kind: HLO's name for it, such as 'all-reduce'.
        bucket: number of the bucket that it carries; None if it is no bucket of a reducer.
        scope: named scopes in which it was traced.
        axes: mesh axes that it spans; empty if the mesh is not known.
        size: devices in a group; 0: all.
        bytes: size of the whole message.
        span: from when the device is ready to send until it has the result, waiting for others included.
        hidden: seconds of the span in which the same device computed.
    """

    name: str
    kind: str
    bucket: int | None
    scope: str
    axes: tuple[str, ...]
    size: int
    bytes: int
    span: Span
    hidden: float

    @property
    def hidden_fraction(self) -> float:
        """The fraction of its time that was hidden, 0 to 1."""
        return self.hidden / self.span.length if self.span.length else 1.0


@dataclass(frozen=True)
class DeviceStep:
    """One step of one device; all times are in seconds, from the step's start on the earliest device.

    Attributes:
        process: the process of the device.
        device: its id.
        compute: when anything but collectives was under way, as disjoint spans in order. An operation that is shared
            among threads counts from its start to its end, even while its threads wait for a core.
        collectives: in order of their start.
    """

    process: int
    device: int
    compute: tuple[Span, ...]
    collectives: tuple[TimedCollective, ...]

    @cached_property
    def communicating(self) -> tuple[Span, ...]:
        """When at least one collective was under way, as disjoint spans in order."""
        return union(collective.span for collective in self.collectives)

    @cached_property
    def span(self) -> Span:
        """From the start of the first operation to the end of the last."""
        busy = union([*self.compute, *self.communicating])
        return Span(busy[0].start, busy[-1].end)

    @property
    def compute_seconds(self) -> float:
        """Time in which it computed."""
        return total_seconds(self.compute)

    @property
    def communication_seconds(self) -> float:
        """Time in which a collective was under way."""
        return total_seconds(self.communicating)

    @property
    def exposed_seconds(self) -> float:
        """Time in which a collective was under way and nothing was computed."""
        return total_seconds(difference(self.communicating, self.compute))

    @property
    def overlap(self) -> float:
        """1 - exposed / communication; 1 if there was no communication."""
        return 1 - self.exposed_seconds / self.communication_seconds if self.communicating else 1.0


@dataclass(frozen=True)
class Timeline:
    """One step on all devices that were traced.

    Attributes:
        program: name of the step's program.
        step: its number.
        steps: all complete steps in the trace, in order.
        devices: ordered by process and device.
        notes: reasons to doubt the numbers, such as clocks that differ.
    """

    program: str
    step: int
    steps: tuple[int, ...]
    devices: tuple[DeviceStep, ...]
    notes: tuple[str, ...] = ()

    @property
    def first_devices(self) -> tuple[DeviceStep, ...]:
        """The first device of each process; the devices of a process differ little."""
        return tuple({device.process: device for device in reversed(self.devices)}.values())[::-1]


def timeline(traces: Sequence[Trace], step: int | None = None, axis_sizes: Mapping[str, int] | None = None) -> Timeline:
    """Build the timeline of a step from the traces of all processes.

    The program of the step is the one whose collectives carry the most bytes; the programs of a step in pieces count as
    one. Steps have the numbers of `jax.profiler.StepTraceAnnotation` if it was used, as train.py does; otherwise they
    are counted from 0.

    Args:
        traces: those of all processes that traced.
        step: its number; None: the one of median length.
        axis_sizes: the mesh's `shape`, to name axes.

    Raises:
        InputError: the trace holds no events of a program, no collectives, or no such step.
    """
    traces = [join_pieces(trace) for trace in traces]
    programs = [step_program(trace) for trace in traces]
    runs = runs_by_step(traces, programs)
    steps = steps_of_all(runs)
    step = median_step(runs, steps) if step is None else step
    if step not in steps:
        raise InputError(f"step {step} is not whole in the trace; it holds {step_ranges(steps)}")
    origin = min(event.start for of_process in runs for event in of_process[step])
    devices: list[DeviceStep] = []
    for trace, name, of_process in zip(traces, programs, runs, strict=True):
        program = trace.programs[name]
        sizes = axis_sizes or program.axis_sizes
        devices.extend(_devices(trace.process, program, of_process[step], origin, sizes))
    first = traces[0].programs[programs[0]]
    return Timeline(first.name, step, tuple(steps), tuple(devices), tuple(_notes(first, devices)))


def _devices(
    process: int, program: TracedProgram, events: Sequence[Event], origin: int, axis_sizes: Mapping[str, int]
) -> list[DeviceStep]:
    by_device: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_device[event.device].append(event)
    made = []
    for device, own in sorted(by_device.items()):
        spans = [(event.op, Span((event.start - origin) / 1e9, (event.end - origin) / 1e9)) for event in own]
        aside = program.enclosing | program.collectives.keys()
        compute = union(span for op, span in spans if op not in aside)
        collectives = [
            timed_collective(op, program.collectives[op], span, compute, axis_sizes)
            for op, span in spans
            if op in program.collectives
        ]
        made.append(DeviceStep(process, device, compute, tuple(sorted(collectives, key=lambda timed: timed.span))))
    return made


def timed_collective(
    name: str, found: FoundCollective, span: Span, compute: tuple[Span, ...], axis_sizes: Mapping[str, int]
) -> TimedCollective:
    """A collective of a program with the span in which it travelled, on a device that computed in these spans."""
    return TimedCollective(
        name=name,
        kind=found.kind,
        bucket=bucket_of(found),
        scope=scope_of(found),
        axes=axes_of(found, axis_sizes) if axis_sizes else (),
        size=max(map(len, found.groups), default=0),
        bytes=message_bytes(found),
        span=span,
        hidden=hidden_seconds(span, compute),
    )


def _notes(program: TracedProgram, devices: Sequence[DeviceStep]) -> list[str]:
    notes = []
    if len(devices) < program.devices:
        notes.append(
            f"the trace holds {len(devices)} of {program.devices} devices: the other processes wrote none, or "
            "elsewhere; what a device waited for them shows as communication"
        )
    else:
        skew = clock_skew(devices, program.devices)
        if skew > 0:
            notes.append(
                f"the clocks of the processes differ by {1e3 * skew:.3f} ms or more: rows of different processes are "
                "shifted against each other; times within a process are not affected"
            )
    missing = program.collectives.keys() - {timed.name for device in devices for timed in device.collectives}
    if missing:
        notes.append(f"{len(missing)} of the program's {len(program.collectives)} collectives did not run in this step")
    return notes


def clock_skew(devices: Sequence[DeviceStep], count: int) -> float:
    """Return the seconds by which clocks must differ, judged from the collectives over all `count` devices.

    Such a collective (a permute aside) cannot end on any device before it has begun on all. If it seems to, the clocks
    of the processes differ by at least that time.
    """
    together: defaultdict[tuple[str, int], list[Span]] = defaultdict(list)
    for device in devices:
        seen: defaultdict[str, int] = defaultdict(int)
        for timed in device.collectives:
            if timed.kind != "collective-permute" and timed.size in (0, count):
                together[timed.name, seen[timed.name]].append(timed.span)
            seen[timed.name] += 1
    early = [max(span.start for span in spans) - min(span.end for span in spans) for spans in together.values()]
    return max(0.0, *early) if early else 0.0
