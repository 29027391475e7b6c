"""The programs of a step in pieces, put together as if they were one.

Each process runs the pieces, the sums and at the end the update of one step before anything of the next, which needs
what the update gives. Sums run in the order in which they were launched.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jaxnet.comm.compiled.hlo import Found
from jaxnet.comm.pieces.launch import PIECE, SUM, UPDATE
from jaxnet.report.events import Event
from jaxnet.report.program import Program
from jaxnet.report.trace import Trace

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
    events, collectives, enclosing = [], dict[str, Found](), set[str]()
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
    whole = Program(
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


def _in_bucket(found: Found, number: int) -> Found:
    """The scope 'bucket', which messages alike share, with the number of this one."""
    parts = found.op_name.split("/")
    if "bucket" not in parts:
        return found
    return replace(found, op_name="/".join(f"bucket_{number}" if part == "bucket" else part for part in parts))
