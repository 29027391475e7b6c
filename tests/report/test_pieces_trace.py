"""The timeline of a step in pieces, from a real trace of the installed JAX."""

from itertools import pairwise

import jax
import pytest

from jaxnet import comm
from jaxnet.report import read_traces, timeline
from support import tiny
from support.ranks import Ranks

STEPS = 4
BUCKET = 1024


def record(rank, directory):
    """Trace steps of a small network in pieces; the bytes of each bucket."""
    setup = tiny.setup(tiny.cnn(), "ddp", (2, 1), bucket_bytes=BUCKET, mode="pieces")
    step = setup.step.lower(setup.state, tiny.batch(0)).compile()
    batch = jax.device_put(tiny.batch(0), comm.split_by_example(setup.mesh))
    state, _ = step(setup.state, batch)
    with jax.profiler.trace(f"{directory}/process_{rank}"):
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
    reducer = comm.scheduled(comm.named_strategy("ddp", BUCKET))
    return [c.bytes for c in reducer.plan(setup.state.params, setup.mesh.shape).collectives]


@pytest.mark.processes
def test_its_programs_are_shown_as_one_step(tmp_path):
    with Ranks(record, 2, str(tmp_path), devices=1) as ranks:
        planned = ranks.results()[0]
    assert len(planned) > 2
    made = timeline(read_traces(tmp_path), axis_sizes={"host": 2, "device": 1})
    assert made.program == "step in pieces"
    assert made.steps[-3:] == tuple(range(STEPS))[-3:]
    assert [device.process for device in made.devices] == [0, 1]
    for device in made.devices:
        metrics, *buckets = device.collectives
        assert (metrics.scope, metrics.bucket) == ("metrics", None)
        assert [timed.bucket for timed in buckets] == list(range(len(planned)))
        assert sorted(timed.bytes for timed in buckets) == sorted(planned)
        assert all(timed.axes == ("host",) for timed in buckets)
        assert all(before.span.start < after.span.start for before, after in pairwise(buckets))
        assert 0 < device.compute_seconds < device.span.length
    assert made.notes == ()
