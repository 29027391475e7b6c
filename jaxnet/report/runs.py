"""Finding the steps in a trace: which program is the step, which of its runs are whole, which number each has."""

from collections import defaultdict
from collections.abc import Sequence

from jaxnet.errors import InputError
from jaxnet.report.events import Event
from jaxnet.report.program import message_bytes
from jaxnet.report.trace import Trace

Runs = dict[int, list[Event]]  # the events of each whole step of a process, by the step's number


def step_program(trace: Trace) -> str:
    """Name of the program whose collectives carry the most bytes: the training step, if anything is trained."""
    if not trace.events:
        raise InputError(
            f"the trace of process {trace.process} holds no instructions of compiled programs with the number of "
            "their run; XLA's CPU backend writes those, and no other backend is understood"
        )
    sent = {
        name: sum(map(message_bytes, trace.programs[name].collectives.values()))
        for name in {event.program for event in trace.events}
        if name in trace.programs and trace.programs[name].collectives
    }
    if not sent:
        names = ", ".join(sorted({event.program.partition("(")[0] for event in trace.events}))
        raise InputError(f"no program in the trace of process {trace.process} holds a collective (it ran {names})")
    return max(sorted(sent), key=sent.__getitem__)


def runs_by_step(traces: Sequence[Trace], programs: Sequence[str]) -> list[Runs]:
    """For each process the events of every whole step, by its number.

    The last run is that of the last step; a run that had begun before the trace did lacks events.
    """
    runs = [_in_order(trace, program) for trace, program in zip(traces, programs, strict=True)]
    longest = max(map(len, runs))
    numbered = []
    for trace, of_process in zip(traces, runs, strict=True):
        last = trace.steps[-1] if trace.steps else longest - 1
        fullest = max(map(len, of_process))
        steps = range(last - len(of_process) + 1, last + 1)
        numbered.append({n: run for n, run in zip(steps, of_process, strict=True) if len(run) == fullest})
    return numbered


def _in_order(trace: Trace, program: str) -> list[list[Event]]:
    runs: defaultdict[int, list[Event]] = defaultdict(list)
    for event in trace.events:
        if event.program == program:
            runs[event.run].append(event)
    return [runs[number] for number in sorted(runs)]


def steps_of_all(runs: Sequence[Runs]) -> list[int]:
    """The steps that every process has, in order."""
    steps = sorted(set.intersection(*(set(of_process) for of_process in runs)))
    if not steps:
        raise InputError("no step is whole in the traces of all processes; trace more steps, over the same window")
    return steps


def typical(runs: Sequence[Runs], steps: Sequence[int]) -> int:
    """The step of median length."""
    return sorted(steps, key=lambda step: _length(runs, step))[len(steps) // 2]


def _length(runs: Sequence[Runs], step: int) -> int:
    events = [event for of_process in runs for event in of_process[step]]
    return max(event.end for event in events) - min(event.start for event in events)


def ranges(steps: Sequence[int]) -> str:
    """Numbers as a person writes them.

    >>> ranges([3, 4, 5, 9])
    '3 to 5, 9'
    """
    parts: list[list[int]] = []
    for step in steps:
        if parts and parts[-1][-1] == step - 1:
            parts[-1].append(step)
        else:
            parts.append([step])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
