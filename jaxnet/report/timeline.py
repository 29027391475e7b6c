"""The timeline of one step: when each device computed, when each bucket travelled, and how much of that was hidden."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxnet.errors import InputError
from jaxnet.report.events import Event
from jaxnet.report.pieces import joined
from jaxnet.report.program import Program, axes_of, bucket_of, message_bytes, scope_of
from jaxnet.report.runs import ranges, runs_by_step, step_program, steps_of_all, typical
from jaxnet.report.spans import Span, common, total, union, without
from jaxnet.report.trace import Trace


@dataclass(frozen=True)
class TimedCollective:
    """One collective as one device saw it.

    Attributes:
        name: of the instruction.
        kind: by the name that HLO gives it.
        bucket: number of the bucket that it carries, or None: it is none of a reducer's.
        scope: named scopes in which it was traced.
        axes: mesh axes that it spans; empty if the mesh is not known.
        size: devices that take part together; 0: as many as there are.
        bytes: of the whole message.
        span: from when the device is ready to send until it has the result: waiting for the others included.
        hidden: seconds of it in which the same device computed.
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
        """Part of its time that was hidden, 0 to 1."""
        return self.hidden / self.span.length if self.span.length else 1.0


@dataclass(frozen=True)
class DeviceStep:
    """One step of one device; all times are in seconds, from the step's start on the earliest device.

    Attributes:
        process: that it belongs to.
        device: its id.
        compute: when anything but collectives was under way, as disjoint spans in order; an operation that is
            shared among threads may meanwhile wait for a core.
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
        """From the first operation to the end of the last."""
        busy = union([*self.compute, *self.communicating])
        return Span(busy[0].start, busy[-1].end)

    @property
    def compute_seconds(self) -> float:
        """Time in which it computed."""
        return total(self.compute)

    @property
    def communication_seconds(self) -> float:
        """Time in which a collective was under way."""
        return total(self.communicating)

    @property
    def exposed_seconds(self) -> float:
        """Time in which a collective was under way and nothing was computed."""
        return total(without(self.communicating, self.compute))

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
        steps: all that the trace holds whole, in order.
        devices: by process and device.
        notes: what a reader should know before believing it.
    """

    program: str
    step: int
    steps: tuple[int, ...]
    devices: tuple[DeviceStep, ...]
    notes: tuple[str, ...] = ()

    @property
    def first_devices(self) -> tuple[DeviceStep, ...]:
        """One device of each process: where a process has several, they differ little."""
        return tuple({device.process: device for device in reversed(self.devices)}.values())[::-1]


def timeline(traces: Sequence[Trace], step: int | None = None, axis_sizes: Mapping[str, int] | None = None) -> Timeline:
    """The timeline of a step, put together from the traces of all processes.

    The program of the step is the one whose collectives carry the most bytes; those of a step in pieces count as one.
    Steps are numbered by
    `jax.profiler.StepTraceAnnotation` where it was used, as train.py does; else from 0.

    Args:
        traces: of all processes that traced.
        step: its number; None: the one of median length.
        axis_sizes: the mesh's `shape`, to name axes.

    Raises:
        InputError: the trace holds no events of a program, no collectives, or no such step.
    """
    traces = [joined(trace) for trace in traces]
    programs = [step_program(trace) for trace in traces]
    runs = runs_by_step(traces, programs)
    steps = steps_of_all(runs)
    step = typical(runs, steps) if step is None else step
    if step not in steps:
        raise InputError(f"step {step} is not whole in the trace; it holds {ranges(steps)}")
    origin = min(event.start for of_process in runs for event in of_process[step])
    devices: list[DeviceStep] = []
    for trace, name, of_process in zip(traces, programs, runs, strict=True):
        program = trace.programs[name]
        sizes = axis_sizes or program.axis_sizes
        devices.extend(_devices(trace.process, program, of_process[step], origin, sizes))
    first = traces[0].programs[programs[0]]
    return Timeline(first.name, step, tuple(steps), tuple(devices), tuple(_notes(first, devices)))


def _devices(
    process: int, program: Program, events: Sequence[Event], origin: int, axis_sizes: Mapping[str, int]
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
            _timed(program, op, span, compute, axis_sizes) for op, span in spans if op in program.collectives
        ]
        made.append(DeviceStep(process, device, compute, tuple(sorted(collectives, key=lambda timed: timed.span))))
    return made


def _timed(
    program: Program, op: str, span: Span, compute: tuple[Span, ...], axis_sizes: Mapping[str, int]
) -> TimedCollective:
    found = program.collectives[op]
    return TimedCollective(
        name=op,
        kind=found.kind,
        bucket=bucket_of(found),
        scope=scope_of(found),
        axes=axes_of(found, axis_sizes) if axis_sizes else (),
        size=max(map(len, found.groups), default=0),
        bytes=message_bytes(found),
        span=span,
        hidden=total(common([span], compute)),
    )


def _notes(program: Program, devices: Sequence[DeviceStep]) -> list[str]:
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
    """Seconds by which clocks must differ, if a collective over all `count` devices ended before all had begun it."""
    together: defaultdict[tuple[str, int], list[Span]] = defaultdict(list)
    for device in devices:
        seen: defaultdict[str, int] = defaultdict(int)
        for timed in device.collectives:
            if timed.kind != "collective-permute" and timed.size in (0, count):
                together[timed.name, seen[timed.name]].append(timed.span)
            seen[timed.name] += 1
    early = [max(span.start for span in spans) - min(span.end for span in spans) for spans in together.values()]
    return max(0.0, *early) if early else 0.0
