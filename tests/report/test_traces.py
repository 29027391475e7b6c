"""Timelines of real traces, written by the profiler of the installed JAX."""

import shutil

import jax
import pytest

from jaxnet import comm
from jaxnet.errors import InputError
from jaxnet.figures import write_figure
from jaxnet.report import draw, read_traces, timeline, timeline_text
from support.ranks import Ranks
from support.traces import LAYER_BYTES, LAYERS, STEPS, record

NUMBERS = tuple(range(100, 100 + STEPS))


@pytest.fixture(scope="module", params=[pytest.param("ddp", marks=pytest.mark.slow), "hierarchical"])
def recorded(request, tmp_path_factory):
    """(strategy, a timeline of it) on a mesh of two hosts of four devices."""
    directory = tmp_path_factory.mktemp(request.param)
    mesh = comm.make_mesh(2)
    record(directory, mesh, request.param)
    return request.param, timeline(read_traces(directory), axis_sizes=mesh.shape)


def test_every_device_shows_every_bucket(recorded):
    strategy, made = recorded
    kinds = {
        "ddp": {("all-reduce", ("host", "device"))},
        "hierarchical": {
            ("reduce-scatter", ("device",)),
            ("all-reduce", ("host",)),
            ("all-gather", ("device",)),
        },
    }[strategy]
    assert made.program == "jit_step"
    assert made.steps[-STEPS:] == NUMBERS
    assert [device.device for device in made.devices] == list(range(8))
    for device in made.devices:
        sent = {(timed.bucket, timed.kind, timed.axes) for timed in device.collectives}
        assert sent == {(bucket, *kind) for bucket in range(LAYERS) for kind in kinds}
        assert len(device.collectives) == len(sent)


def test_the_bytes_are_those_of_the_plan(recorded):
    strategy, made = recorded
    shapes = [jax.ShapeDtypeStruct((LAYER_BYTES // 4,), "float32")] * LAYERS
    plan = comm.named_strategy(strategy, LAYER_BYTES).reducer.plan(shapes, {"host": 2, "device": 4})
    planned = sorted((c.kind, c.axes, c.bytes) for c in plan.collectives)
    for device in made.devices:
        assert sorted((timed.kind, timed.axes, timed.bytes) for timed in device.collectives) == planned


def test_the_figures_are_consistent(recorded):
    _, made = recorded
    assert made.notes == ()
    assert min(device.span.start for device in made.devices) == 0
    for device in made.devices:
        assert 0 < device.compute_seconds < device.span.length
        assert 0 <= device.exposed_seconds <= device.communication_seconds < device.span.length
        assert 0 <= device.overlap <= 1
        assert all(device.span.start <= timed.span.start < timed.span.end for timed in device.collectives)
        assert all(0 <= timed.hidden <= timed.span.length + 1e-9 for timed in device.collectives)


def test_it_is_drawn(recorded, tmp_path):
    write_figure(draw(recorded[1]), [tmp_path / "step.png", tmp_path / "step.svg"])
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "step.svg").read_text()


@pytest.mark.slow
def test_steps_without_numbers_are_counted(tmp_path):
    record(tmp_path, comm.make_mesh(1, jax.devices()[:2]), annotated=False)
    made = timeline(read_traces(tmp_path))
    assert made.steps == tuple(range(STEPS))
    assert "of 2 devices" not in timeline_text(made)


def test_one_device_has_no_collectives(tmp_path):
    record(tmp_path, comm.make_mesh(1, jax.devices()[:1]))
    with pytest.raises(InputError, match=r"holds a collective \(it ran jit_step\)"):
        timeline(read_traces(tmp_path))


def recording(rank, directory):
    record(f"{directory}/process_{rank}", comm.make_mesh())
    return rank


@pytest.mark.processes
def test_processes_are_put_together(tmp_path):
    with Ranks(recording, 2, str(tmp_path), devices=1) as ranks:
        assert ranks.results() == [0, 1]
    made = timeline(read_traces(tmp_path))
    assert [device.process for device in made.devices] == [0, 1]
    assert made.steps[-STEPS:] == NUMBERS
    assert made.notes == ()  # the processes share a clock
    for device in made.devices:
        assert sorted(timed.bucket for timed in device.collectives) == list(range(LAYERS))
    shutil.rmtree(tmp_path / "process_1")
    [note] = timeline(read_traces(tmp_path)).notes
    assert "the trace holds 1 of 2 devices" in note
