"""Which instruction of which program ran on which device, from when to when, as XLA's CPU backend records it.

Every instruction is an event on the thread that started it. One that is shared among threads, such as a large matrix
product, may leave that thread before it is done; a mark `end: NAME` with the same flow number then follows its end.
But the thread that finishes it resumes the program first and leaves the mark when it comes back from there, many
instructions later: the true end is the moment of resumption.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.profiler import ProfileData

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
