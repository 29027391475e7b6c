"""Timelines of traces from GPUs: two of four processes that shared an H200, joined by NCCL, as JAX 0.11.2 wrote them.

Each had one device of a mesh of two hosts of two. `strategy=hierarchical bucket_bytes=262144`, three steps.
"""

import gzip
from pathlib import Path

import pytest

from jaxnet import comm
from jaxnet.report import read_traces, timeline
from jaxnet.report.trace import Kernels, Trace

KEPT = Path(__file__).parent / "traces"
STAGES = [("reduce-scatter", ("device",)), ("all-reduce", ("host",)), ("all-gather", ("device",))]


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> list[Trace]:
    directory = tmp_path_factory.mktemp("run")
    for process in range(2):
        session = directory / f"profile/process_{process}/plugins/profile/2026"
        session.mkdir(parents=True)
        kept = gzip.decompress((KEPT / f"h200_hierarchical_{process}.xplane.pb.gz").read_bytes())
        (session / "gpu.xplane.pb").write_bytes(kept)
    return read_traces(directory)


def test_every_bucket_has_its_three_stages_on_each_device(traces):
    made = timeline(traces)
    assert (made.program, made.steps, len(made.devices)) == ("jit_on_device", (0, 1, 2), 2)
    for device in made.devices:
        of_bucket = {}
        for timed in device.collectives[:-1]:
            of_bucket.setdefault(timed.bucket, []).append((timed.kind, timed.axes))
        assert of_bucket == dict.fromkeys(range(6), STAGES)
        assert device.collectives[-1].scope == "metrics/bucket_0"


def test_the_bytes_are_those_of_the_program(traces):
    program = traces[0].programs["jit_on_device(25149)"]
    planned = {name: comm_bytes(found) for name, found in program.collectives.items()}
    for device in timeline(traces).devices:
        assert {timed.name: timed.bytes for timed in device.collectives} == planned


def comm_bytes(found: comm.FoundCollective) -> int:
    return sum(4 * elements for _, elements in found.arrays)  # all are float32


def test_each_step_is_one_execution_on_its_device(traces):
    for trace in traces:
        assert trace.steps == [0, 1, 2]
        runs = {run: [event for event in trace.events if event.run == run] for run in range(3)}
        assert sum(map(len, runs.values())) == len(trace.events)
        [count] = {len(events) for events in runs.values()}
        assert count == 97
        for before, after in ((0, 1), (1, 2)):
            assert max(event.end for event in runs[before]) <= min(event.start for event in runs[after])


KERNEL = {"hlo_op": "fusion", "hlo_module": "jit_step", "program_id": 1}


def runs_of(kernels):
    return [(event.run, event.start) for event in kernels.events()]


def test_kernels_take_the_run_during_which_they_were_launched_whatever_its_number():
    kernels = Kernels()
    for launch, run in ((10, 2**31 - 1), (30, -(2**31))):  # run ids wrap around
        kernels.note({"run_id": run}, 0, launch)
        kernels.note({"correlation_id": launch + 1}, 0, launch + 1)
    kernels.note({"correlation_id": 5}, 0, 5)
    for correlation in (31, 11, 5, 4):  # the last two were launched before the first run, and before the trace
        kernels.add({**KERNEL, "correlation_id": correlation}, 3, 100 + correlation, 101 + correlation)
    kernels.add({"correlation_id": 11}, 3, 0, 1)  # a copy from the host
    assert runs_of(kernels) == [(1, 131), (0, 111)]


def test_what_other_threads_launch_meanwhile_is_of_their_own_runs():
    kernels = Kernels()
    kernels.note({"run_id": 7}, 0, 10)
    kernels.note({"run_id": 8}, 1, 11)
    for thread, time in ((0, 12), (1, 13), (0, 14)):
        kernels.note({"correlation_id": time}, thread, time)
        kernels.add({**KERNEL, "correlation_id": time}, thread, time, time + 1)
    assert runs_of(kernels) == [(0, 12), (1, 13), (0, 14)]
