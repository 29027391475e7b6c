"""Read the traces that the JAX profiler wrote, one for each process: which instruction ran where, and when.

XLA's GPU backend records every kernel as an event of its device, with the instruction that it belongs to. It does not
say which execution of the program: that is the one that the thread was at which launched the kernel (`correlation_id`).

XLA's CPU backend records every instruction as an event on the thread that started it. An instruction that is shared
among threads, such as a large matrix product, may leave that thread before it is done. Its end is then found so:

1. A mark `end: NAME` with the instruction's flow number follows its end.
2. But the thread that finishes the instruction first resumes the program, and leaves the mark only when it comes back,
   many instructions later. So the true end is the moment of that resumption, if both lie in the same task of the
   thread and the resumption is not before the instruction's start.
"""

import re
import warnings
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jax.profiler import ProfileData

from jaxnet.errors import InputError
from jaxnet.files import read_bounded
from jaxnet.report.programs import TracedProgram, read_program
from jaxnet.report.xspace import read_programs, read_start

_HOW = "make one with profile.steps=3 of jaxnet train, or with jax.profiler.trace(DIRECTORY)"
_SUFFIX = ".xplane.pb"
_MOST_BYTES = 2**31  # of a trace: a message of protocol buffers is no larger
_RESUMED = "ThunkExecutor::Execute"
_TASK = "ThreadpoolListener::StartRegion"
_GPU = re.compile(r"/device:GPU:(\d+)")


class Event(NamedTuple):
    """One execution of an instruction.

    Attributes:
        program: `name(program id)`.
        run: number of the program's execution, growing within a process.
        device: where it ran.
        op: the instruction's name. Of GPUs, that of a command buffer stands for all kernels in it.
        start: in nanoseconds of the host's clock.
        end: in nanoseconds of the host's clock.
    """

    program: str
    run: int
    device: int
    op: str
    start: int
    end: int


class Trace(NamedTuple):
    """The trace of one process.

    Attributes:
        process: its number.
        programs: those of the events, by `name(program id)`.
        events: the executed instructions of all programs.
        steps: numbers given by `jax.profiler.StepTraceAnnotation`, in order of time; empty if it was not used.
    """

    process: int
    programs: dict[str, TracedProgram]
    events: list[Event]
    steps: list[int]


# ---- Files ---------------------------------------------------------------------------------------------


def read_traces(path: Path) -> list[Trace]:
    """Read the newest trace of each process.

    Args:
        path: a run's workdir, a directory given to `jax.profiler.trace`, or one `.xplane.pb` file.

    Raises:
        InputError: there is no trace, or it is unreadable.
    """
    return [_read(file, process) for process, file in sorted(_files(path).items())]


def _files(path: Path) -> dict[int, Path]:
    """Return the newest trace of each process, by its number."""
    if not path.exists():
        raise InputError(f"{path}: no such file or directory; wanted a workdir, a profile directory or a *{_SUFFIX}")
    if path.is_file():
        if not path.name.endswith(_SUFFIX):
            raise InputError(f"{path}: wanted a trace of the JAX profiler, a file named *{_SUFFIX}")
        return {_process(path, 0): path}
    newest: dict[Path, Path] = {}  # the last session of each directory that was given to the profiler
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
    """Return the process whose directory this is, `process_3`, as train.py names them."""
    numbers = [match[1] for part in file.parts if (match := re.fullmatch(r"process_(\d+)", part))]
    return int(numbers[-1]) if numbers else default


def _read(file: Path, process: int) -> Trace:
    try:
        content = read_bounded(file, _MOST_BYTES)
        with warnings.catch_warnings():
            # jaxlib's types lack a module name; where warnings are errors, that would abort Python 3.12.
            warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
            events, steps = read_events(ProfileData.from_serialized_xspace(content), read_start(content))
        kept = read_programs(content, {event.program for event in events})
        programs = {name: read_program(program.text) for name, program in kept.items()}
        starts = {(name, op): start for name, program in kept.items() for op, start in program.starts.items()}
        events = [event._replace(op=starts.get((event.program, event.op), event.op)) for event in events]
    except OSError as error:
        raise InputError(f"{file} cannot be read as a trace of the JAX profiler: {error.strerror}") from error
    except (ValueError, RuntimeError, LookupError, TypeError, ArithmeticError) as error:
        raise InputError(f"{file} cannot be read as a trace of the JAX profiler: {error}") from error
    return Trace(process, programs, events, steps)


# ---- Events --------------------------------------------------------------------------------------------


@dataclass
class Thread:
    """The events of one thread that tell when shared instructions ended; times are in nanoseconds.

    Attributes:
        marks: (flow, time) of each `end: NAME`.
        resumed: (end, start) of each resumption of a program.
        tasks: when the thread took a task from its pool.
    """

    marks: list[tuple[int, int]] = field(default_factory=list)
    resumed: list[tuple[int, int]] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)

    def ends(self, starts: dict[int, int]) -> Iterator[tuple[int, int]]:
        """Yield (flow, end) of each instruction that this thread marked; `starts` has their starts by flow."""
        self.resumed.sort()
        self.tasks.sort()
        for flow, mark in self.marks:
            # The last resumption that was over before the mark.
            latest = bisect_right(self.resumed, (mark, mark)) - 1
            left, resumed = self.resumed[latest] if latest >= 0 else (0, 0)
            same_task = bisect_left(self.tasks, left) == bisect_left(self.tasks, mark)
            yield flow, resumed if resumed >= starts.get(flow, mark) and same_task else mark


def read_events(data: ProfileData, origin: int) -> tuple[list[Event], list[int]]:
    """Return all executions of instructions, and the numbers of annotated steps in order of time.

    Args:
        data: the trace of one process.
        origin: when it began, in nanoseconds.
    """
    events: dict[int, Event] = {}
    steps: list[tuple[int, int]] = []
    threads: list[Thread] = []
    kernels = Kernels()
    lines = ((plane.name, line) for plane in data.planes for line in plane.lines)
    for number, (name, line) in enumerate(lines):
        threads.append(Thread())
        gpu = _GPU.fullmatch(name)
        for item in line.events:
            stats: dict[str, Any] = dict(item.stats)
            start = origin + round(item.start_ns)
            end = start + round(item.duration_ns)
            if gpu:
                kernels.add(stats, int(gpu[1]), start, end)
            elif "hlo_op" in stats and "run_id" in stats:
                events[stats.get("_p", -1 - len(events))] = _event(stats, stats["run_id"], start, end)
            elif "step_num" in stats:
                steps.append((start, stats["step_num"]))
            elif item.name == _RESUMED:
                threads[-1].resumed.append((end, start))
            elif item.name == _TASK:
                threads[-1].tasks.append(start)
            elif item.name.startswith("end: ") and "_c" in stats:
                threads[-1].marks.append((stats["_c"], start))
            else:
                kernels.note(stats, number, start)
    starts = {flow: event.start for flow, event in events.items()}
    ends = dict(pair for thread in threads for pair in thread.ends(starts))
    finished = [event._replace(end=max(event.end, ends.get(flow, 0))) for flow, event in events.items()]
    return [*finished, *kernels.events()], [number for _, number in sorted(steps)]


def _event(stats: dict[str, Any], run: int, start: int, end: int) -> Event:
    program = f"{stats['hlo_module']}({stats.get('program_id')})"
    return Event(program, run, stats.get("device_ordinal", 0), stats["hlo_op"], start, end)


@dataclass
class Kernels:
    """Kernels of GPUs, and what the host did when it launched them; times are in nanoseconds.

    Attributes:
        ran: of each kernel, what is said of it, its device, start and end.
        launched: (thread, time) at which the host launched it, by its correlation id.
        executing: for each thread, (time, run id) of what it did in an execution of a program.
    """

    ran: list[tuple[dict[str, Any], int, int, int]] = field(default_factory=list)
    launched: dict[int, tuple[int, int]] = field(default_factory=dict)
    executing: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, stats: dict[str, Any], device: int, start: int, end: int) -> None:
        """Keep a kernel, if it belongs to an instruction; copies to and from the host do not."""
        if "hlo_op" in stats and "hlo_module" in stats and "correlation_id" in stats:
            self.ran.append((stats, device, start, end))

    def note(self, stats: dict[str, Any], thread: int, start: int) -> None:
        """Keep what a thread of the host did."""
        if "run_id" in stats:
            self.executing[thread].append((start, stats["run_id"]))
        if "correlation_id" in stats:
            self.launched[stats["correlation_id"]] = thread, start

    def events(self) -> Iterator[Event]:
        """Yield each kernel as an event; those that were launched before the trace began are left out."""
        order: dict[int, int] = {}  # run ids are arbitrary and wrap around; their order in time does not
        for _, run in sorted(entry for entries in self.executing.values() for entry in entries):
            order.setdefault(run, len(order))
        for entries in self.executing.values():
            entries.sort()
        for stats, device, start, end in self.ran:
            thread, launch = self.launched.get(stats["correlation_id"], (-1, 0))
            entries = self.executing.get(thread, [])
            place = bisect_right(entries, launch, key=lambda entry: entry[0]) - 1
            if place >= 0:
                yield _event({**stats, "device_ordinal": device}, order[entries[place][1]], start, end)
