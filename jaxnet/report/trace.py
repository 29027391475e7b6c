"""Finding and reading the traces that the JAX profiler wrote, one for each process."""

import math
import re
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.profiler import ProfileData

from jaxnet.comm import HOST, PIECE, SUM, UPDATE, FoundCollective, collectives_in
from jaxnet.errors import InputError
from jaxnet.report.xspace import about

# ---- Which instruction of which program ran on which device, from when to when, as XLA's CPU backend records it
#
# Every instruction is an event on the thread that started it. One that is shared among threads, such as a large matrix
# product, may leave that thread before it is done; a mark `end: NAME` with the same flow number then follows its end.
# But the thread that finishes it resumes the program first and leaves the mark when it comes back from there, many
# instructions later: the true end is the moment of resumption.


_RESUMED = "ThunkExecutor::Execute"
_TASK = "ThreadpoolListener::StartRegion"


class Event(NamedTuple):
    """One execution of an instruction.

    Attributes:
        program: `name(program id)`.
        run: number of the program's execution, growing within a process.
        device: where.
        op: the instruction's name.
        start: in nanoseconds of the host's clock.
        end: likewise.
    """

    program: str
    run: int
    device: int
    op: str
    start: int
    end: int


@dataclass
class Thread:
    """What one thread did besides executing instructions; times are in nanoseconds.

    Attributes:
        marks: (flow, time) of each `end: NAME`.
        resumed: (end, start) of each resumption of a program.
        tasks: when it took a task from its pool.
    """

    marks: list[tuple[int, int]] = field(default_factory=list)
    resumed: list[tuple[int, int]] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)

    def ends(self, starts: dict[int, int]) -> Iterator[tuple[int, int]]:
        """(flow, end) of each instruction whose end it marked; `starts` are those of the instructions, by flow."""
        self.resumed.sort()
        self.tasks.sort()
        for flow, mark in self.marks:
            latest = bisect_right(self.resumed, (mark, mark)) - 1
            left, resumed = self.resumed[latest] if latest >= 0 else (0, 0)
            same_task = bisect_left(self.tasks, left) == bisect_left(self.tasks, mark)
            yield flow, resumed if resumed >= starts.get(flow, mark) and same_task else mark


def read_events(data: ProfileData, origin: int) -> tuple[list[Event], list[int]]:
    """All executions of instructions, and the numbers of annotated steps in order of time.

    Args:
        data: what one process traced.
        origin: when it began, in nanoseconds.
    """
    events: dict[int, Event] = {}
    steps: list[tuple[int, int]] = []
    threads: list[Thread] = []
    for line in (line for plane in data.planes for line in plane.lines):
        threads.append(Thread())
        for item in line.events:
            stats: dict[str, Any] = dict(item.stats)
            start = origin + round(item.start_ns)
            end = start + round(item.duration_ns)
            if "hlo_op" in stats and "run_id" in stats:
                events[stats.get("_p", -1 - len(events))] = _event(stats, start, end)
            elif "step_num" in stats:
                steps.append((start, stats["step_num"]))
            elif item.name == _RESUMED:
                threads[-1].resumed.append((end, start))
            elif item.name == _TASK:
                threads[-1].tasks.append(start)
            elif item.name.startswith("end: ") and "_c" in stats:
                threads[-1].marks.append((stats["_c"], start))
    starts = {flow: event.start for flow, event in events.items()}
    ends = dict(pair for thread in threads for pair in thread.ends(starts))
    finished = [event._replace(end=max(event.end, ends.get(flow, 0))) for flow, event in events.items()]
    return finished, [number for _, number in sorted(steps)]


def _event(stats: dict[str, Any], start: int, end: int) -> Event:
    program = f"{stats['hlo_module']}({stats.get('program_id')})"
    return Event(program, stats["run_id"], stats.get("device_ordinal", 0), stats["hlo_op"], start, end)


# ---- What has to be known of a compiled program to read its events in a trace -------------------------


_COMPUTATION = re.compile(r"^\s*(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = ")
_CALLED = re.compile(r"\w=\{?(%[\w.\-]+(?:, ?%[\w.\-]+)*)")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\]")
_BUCKET = re.compile(r"(?:bucket|scatter|gather)_(\d+)$")


@dataclass(frozen=True)
class TracedProgram:
    """A compiled program, as far as its timeline needs it.

    Attributes:
        name: of the HLO module, such as 'jit_step'.
        collectives: by the instruction's name.
        enclosing: names of loops, calls and branches that hold a collective: neither compute nor communication.
        devices: how many its collectives join, over all processes; 0 if it does not say.
        axis_sizes: of the mesh, if the program names it (JAX 0.12 does, 0.10 does not).
    """

    name: str
    collectives: dict[str, FoundCollective]
    enclosing: frozenset[str]
    devices: int
    axis_sizes: dict[str, int]


def read_program(hlo: str) -> TracedProgram:
    """Read an optimized HLO text."""
    found = {collective.name: collective for collective in collectives_in(hlo, every_device=True)}
    mesh = _MESH.search(hlo)
    return TracedProgram(
        name=hlo.removeprefix("HloModule ").partition(",")[0],
        collectives=found,
        enclosing=_enclosing(hlo, found),
        devices=len({place for each in found.values() for group in each.groups or each.pairs for place in group}),
        axis_sizes={name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])} if mesh else {},
    )


def _enclosing(hlo: str, collectives: Mapping[str, FoundCollective]) -> frozenset[str]:
    """Computations stand before those that call them, so one pass finds calls of any depth."""
    holding, enclosing, computation = set[str](), set[str](), ""
    for line in hlo.splitlines():
        if header := _COMPUTATION.match(line):
            computation = header[1]
        elif match := _INSTRUCTION.match(line):
            called = {name for names in _CALLED.findall(line) for name in re.findall(r"[\w.\-]+", names)}
            if called & holding:
                enclosing.add(match[1])
            if match[1] in collectives or called & holding:
                holding.add(computation)
    return frozenset(enclosing)


def message_bytes(found: FoundCollective) -> int:
    """Bytes of the whole message, all arrays together."""
    return sum(elements * np.dtype(dtype).itemsize for dtype, elements in found.arrays)


def bucket_of(found: FoundCollective) -> int | None:
    """Number of the bucket that a collective carries, from the scope that `bucketed` gives it.

    >>> scope = "jit(f)/shard_map/bucket_3/psum"
    >>> reduce = FoundCollective("all-reduce", frozenset(), (("float32", 8),), 0, "psum.1", scope)
    >>> bucket_of(reduce), scope_of(reduce)
    (3, 'bucket_3')
    """
    numbers = [int(match[1]) for part in scope_of(found).split("/") if (match := _BUCKET.match(part))]
    return numbers[-1] if numbers else None


def scope_of(found: FoundCollective) -> str:
    """The named scopes in which a collective was traced, without the functions around them and the operation itself."""
    parts = found.op_name.split("/")[:-1]
    return "/".join(part for part in parts if part != "shard_map" and not part.startswith(("jit(", "pmap(")))


def axes_of(found: FoundCollective, axis_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes that a collective spans: those along which the devices that take part together differ.

    Empty if its devices are not of this mesh. MPI carries across hosts, of which a mesh then has but one.

    >>> groups = frozenset({frozenset({0, 2}), frozenset({1, 3})})
    >>> axes_of(FoundCollective("all-reduce", groups, (("float32", 8),), 0, "psum.1", ""), {"host": 2, "device": 2})
    ('host',)
    """
    if found.transport == "mpi":
        return (HOST,)
    together = [set(group) for group in found.pairs or found.groups] or [set(range(math.prod(axis_sizes.values())))]
    sizes = list(axis_sizes.values())
    if max(map(max, together)) >= math.prod(sizes):
        return ()
    spanned = np.zeros(len(sizes), bool)
    for group in together:
        places = np.array(np.unravel_index(sorted(group), sizes))
        spanned |= places.min(axis=1) != places.max(axis=1)
    return tuple(axis for axis, spans in zip(axis_sizes, spanned, strict=True) if spans)


_HOW = "make one with profile.steps=3 of train.py, or with jax.profiler.trace(DIRECTORY)"
_SUFFIX = ".xplane.pb"


class Trace(NamedTuple):
    """What one process traced.

    Attributes:
        process: its number.
        programs: by `name(program id)`.
        events: of all programs.
        steps: numbers given by `jax.profiler.StepTraceAnnotation`, in order of time; empty if it was not used.
    """

    process: int
    programs: dict[str, TracedProgram]
    events: list[Event]
    steps: list[int]


def read_traces(path: Path) -> list[Trace]:
    """Read the newest trace of each process.

    Args:
        path: a run's workdir, a directory given to `jax.profiler.trace`, or one `.xplane.pb` file.

    Raises:
        InputError: there is no trace, or it cannot be read.
    """
    return [_read(file, process) for process, file in sorted(_files(path).items())]


def _files(path: Path) -> dict[int, Path]:
    """The trace of each process, by its number."""
    if not path.exists():
        raise InputError(f"{path}: no such file or directory; wanted a workdir, a profile directory or a *{_SUFFIX}")
    if path.is_file():
        if not path.name.endswith(_SUFFIX):
            raise InputError(f"{path}: wanted a trace of the JAX profiler, a file named *{_SUFFIX}")
        return {_process(path, 0): path}
    newest: dict[Path, Path] = {}  # of each directory that was given to the profiler, its last session
    for file in sorted(path.rglob(f"plugins/profile/*/*{_SUFFIX}")):
        newest[file.parents[3]] = file.parent
    files = [file for session in newest.values() for file in sorted(session.glob(f"*{_SUFFIX}"))]
    if not files:
        raise InputError(f"{path}: there is no trace of the JAX profiler here or below; {_HOW}")
    numbered = {_process(file, index): file for index, file in enumerate(files)}
    if len(numbered) < len(files):
        raise InputError(f"{path}: {len(files)} traces of {len(numbered)} processes; give the directory of one run")
    return numbered


def _process(file: Path, default: int) -> int:
    """The process whose directory this is (`process_3`), as train.py names them."""
    numbers = [match[1] for part in file.parts if (match := re.fullmatch(r"process_(\d+)", part))]
    return int(numbers[-1]) if numbers else default


def _read(file: Path, process: int) -> Trace:
    try:
        content = file.read_bytes()
        start, texts = about(content)
        with warnings.catch_warnings():
            # jaxlib's types lack a module name; where warnings are errors, that would abort Python 3.12.
            warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
            events, steps = read_events(ProfileData.from_serialized_xspace(content), start)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{file} cannot be read as a trace of the JAX profiler: {error}") from error
    programs = {name: read_program(hlo) for name, hlo in texts.items()}
    return Trace(process, programs, events, steps)


# ---- The programs of a step in pieces, put together as if they were one -------------------------------
#
# Each process runs the pieces, the sums and at the end the update of one step before anything of the next, which needs
# what the update gives. Sums run in the order in which they were launched.


NAME = "step in pieces"
_SUM, _UPDATE = f"jit_{SUM}", f"jit_{UPDATE}"
_OURS = (f"jit_{PIECE}", _SUM, _UPDATE)

Run = list[Event]  # the events of one execution of a program


def joined(trace: Trace) -> Trace:
    """The same trace with one program in place of those of a step in pieces; unchanged if there are none.

    An instruction is called `PROGRAM.n:NAME` in the n-th run of its program in a step. Messages alike share a program,
    so the number of a bucket is that of its sum among those of the step.
    """
    steps = list(_steps(trace))
    if not steps:
        return trace
    events, collectives, enclosing = [], dict[str, FoundCollective](), set[str]()
    for number, runs in enumerate(steps):
        buckets, times = 0, Counter[str]()
        for run in runs:
            key = run[0].program
            program, prefix = trace.programs[key], f"{key}.{times[key]}:"
            times[key] += 1
            named = {op: _in_bucket(found, buckets) for op, found in program.collectives.items()}
            buckets += any(named[op] is not found for op, found in program.collectives.items())
            collectives |= {prefix + op: found for op, found in named.items()}
            enclosing |= {prefix + op for op in program.enclosing}
            events += [event._replace(program=NAME, run=number, op=prefix + event.op) for event in run]
    sums = [program for program in trace.programs.values() if program.name == _SUM]
    whole = TracedProgram(
        name=NAME,
        collectives=collectives,
        enclosing=frozenset(enclosing),
        devices=max((program.devices for program in sums), default=0),
        axis_sizes=next((program.axis_sizes for program in sums if program.axis_sizes), {}),
    )
    others = {key: program for key, program in trace.programs.items() if program.name not in _OURS}
    events += [event for event in trace.events if event.program in others]
    return trace._replace(programs={**others, NAME: whole}, events=events)


def _steps(trace: Trace) -> Iterator[Sequence[Run]]:
    """For each step its runs, by their start; what follows the last update is left out."""
    of_run: defaultdict[tuple[str, int], Run] = defaultdict(list)
    for event in trace.events:
        if event.program in trace.programs and trace.programs[event.program].name in _OURS:
            of_run[event.program, event.run].append(event)
    step: list[Run] = []
    for run in sorted(of_run.values(), key=lambda run: min(event.start for event in run)):
        step.append(run)
        if trace.programs[run[0].program].name == _UPDATE:
            yield step
            step = []


def _in_bucket(found: FoundCollective, number: int) -> FoundCollective:
    """The scope 'bucket', which messages alike share, with the number of this one."""
    parts = found.op_name.split("/")
    if "bucket" not in parts:
        return found
    return replace(found, op_name="/".join(f"bucket_{number}" if part == "bucket" else part for part in parts))
