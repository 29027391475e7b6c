"""Find the steps in a trace: which program is the step, which of its runs are whole, and the number of each.

A step in pieces is several programs: the pieces of the backward pass, the sums of buckets, and at the end the update.
`join_pieces` puts them together first, as if they were one.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jaxnet.comm import PIECE, SUM, UPDATE, FoundCollective
from jaxnet.errors import InputError
from jaxnet.report.programs import TracedProgram, message_bytes
from jaxnet.report.trace import Event, Trace

# ---- Whole steps ---------------------------------------------------------------------------------------

EventsByStep = dict[int, list[Event]]  # the events of each whole step of a process, by the step's number


def step_program(trace: Trace) -> str:
    """Return the program whose collectives carry the most bytes, which is the training step in a training run."""
    if not trace.events:
        raise InputError(
            f"the trace of process {trace.process} holds no instructions of compiled programs with the number of "
            "their run; XLA's backends for CPUs and GPUs write those, and no other backend is understood"
        )
    sent = {
        name: sum(map(message_bytes, trace.programs[name].collectives.values()))
        for name in {event.program for event in trace.events}
        if name in trace.programs and trace.programs[name].collectives
    }
    if not sent:
        names = ", ".join(sorted({event.program.partition("(")[0] for event in trace.events}))
        raise InputError(
            f"no program in the trace of process {trace.process} holds a collective (it ran {names}); on one device "
            "nothing travels: train with JAX_NUM_CPU_DEVICES=8, or with jaxnet launch local --processes 2"
        )
    return max(sorted(sent), key=sent.__getitem__)


def runs_by_step(traces: Sequence[Trace], programs: Sequence[str]) -> list[EventsByStep]:
    """Return for each process the events of every whole step, by its number.

    Steps are counted back from the last run, which belongs to the last step: the host runs ahead, so a trace begins
    with steps in flight. A run that began before the trace has fewer events than the fullest one, and is left out.
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


def steps_of_all(runs: Sequence[EventsByStep]) -> list[int]:
    """Return the steps that every process has, in order."""
    steps = sorted(set.intersection(*(set(of_process) for of_process in runs)))
    if not steps:
        raise InputError("no step is whole in the traces of all processes; trace more steps, over the same window")
    return steps


def median_step(runs: Sequence[EventsByStep], steps: Sequence[int]) -> int:
    """Return the step of median length."""
    return sorted(steps, key=lambda step: _length(runs, step))[len(steps) // 2]


def _length(runs: Sequence[EventsByStep], step: int) -> int:
    events = [event for of_process in runs for event in of_process[step]]
    return max(event.end for event in events) - min(event.start for event in events)


def step_ranges(steps: Sequence[int]) -> str:
    """Write step numbers with ranges.

    >>> step_ranges([3, 4, 5, 9])
    '3 to 5, 9'
    """
    parts: list[list[int]] = []
    for step in steps:
        if parts and parts[-1][-1] == step - 1:
            parts[-1].append(step)
        else:
            parts.append([step])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


# ---- A step in pieces ----------------------------------------------------------------------------------
#
# A step lasts from its first piece to that of the next step. If it ends with its own sums, it runs its pieces, its sums
# and its update before that; where messages cross the end of a step, the window has sums and updates of two. Sums run
# in the order in which they were launched.

NAME = "step in pieces"
_PIECE, _SUM, _UPDATE = f"jit_{PIECE}", f"jit_{SUM}", f"jit_{UPDATE}"
_OURS = (_PIECE, _SUM, _UPDATE)

Run = list[Event]  # the events of one execution of a program


def join_pieces(trace: Trace) -> Trace:
    """Return the trace with one program in place of those of a step in pieces; unchanged if there are none.

    An instruction in the n-th run of its program in a step is called `PROGRAM.n:NAME`. Equal messages share a program,
    so a bucket gets the number that its sum has in the order of the step's sums.
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
    """Yield the runs of each step, ordered by start, without those before the first step and after the last update."""
    of_run: defaultdict[tuple[str, int], Run] = defaultdict(list)
    for event in trace.events:
        if event.program in trace.programs and trace.programs[event.program].name in _OURS:
            of_run[event.program, event.run].append(event)
    runs = sorted(of_run.values(), key=lambda run: min(event.start for event in run))
    names = [trace.programs[run[0].program].name for run in runs]
    if _UPDATE not in names:
        return
    last = len(names) - names[::-1].index(_UPDATE)  # behind it
    # Programs have numbers in the order in which they were compiled.
    pieces = {run[0].program for run, name in zip(runs, names, strict=True) if name == _PIECE}
    first = min(pieces, key=lambda key: int(key.rpartition("(")[2].rstrip(")")))
    starts = [place for place, run in enumerate(runs[:last]) if run[0].program == first]
    crosses = len({run[0].program for run, name in zip(runs, names, strict=True) if name == _UPDATE}) > 1
    # Of the last step, sums that cross its end are in no window.
    for begin, end in itertools.pairwise(starts if crosses else [*starts, last]):
        yield runs[begin:end]


def _in_bucket(found: FoundCollective, number: int) -> FoundCollective:
    """Give the scope 'bucket', which equal messages share, the number of this bucket."""
    parts = found.op_name.split("/")
    if "bucket" not in parts:
        return found
    return replace(found, op_name="/".join(f"bucket_{number}" if part == "bucket" else part for part in parts))
