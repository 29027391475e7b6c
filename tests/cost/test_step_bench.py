"""A line of the step table by hand, and a whole report on a small workload."""

import json

import jax
import pytest

from jaxnet import comm
from jaxnet.cost import step_bench
from jaxnet.cost.shapes import Sizes
from jaxnet.cost.step_bench import bench_steps, check_trace, labelled_strategy, make_figures, trace_directory
from jaxnet.cost.tables import draw_steps, step_text
from jaxnet.cost.workloads import LOSSES, synthetic
from jaxnet.errors import InputError
from jaxnet.report import read_traces, timeline

LABELS = ("xla", "flat", "ddp:4KiB", "zero")
SIZES = Sizes(leaves=((16, 16),) * 8, example=(16,), batch=8)


def test_a_line_by_hand():
    """Rounds of 400, 300 and 500 ms; 200 of compute; 400 of communication, of which 200 are exposed."""
    line = make_figures("ddp", "during", [0.4, 0.3, 0.5], compute=0.2, communication=0.4, bound=0.32, base=0.5)
    assert line.step_ms == pytest.approx(400)
    assert line.min_ms == pytest.approx(300)
    assert line.spread_percent == pytest.approx(50)
    assert line.exposed_ms == pytest.approx(200)
    assert line.overlap == pytest.approx(0.5)
    assert line.over_bound == pytest.approx(1.25)
    assert line.ratio == pytest.approx(0.8)
    assert line.rounds_ms == pytest.approx([400, 300, 500])


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def report(traces):
    patch = pytest.MonkeyPatch()
    patch.setattr(step_bench, "link_peak", lambda mesh, axes: 1e9)
    mesh = comm.make_mesh(2, jax.devices()[:8])
    try:
        workload = synthetic("small", LOSSES["small"], SIZES, mesh)
        return bench_steps(workload, {label: labelled_strategy(label) for label in LABELS}, 3, 1, traces)
    finally:
        patch.undo()


def test_a_report_has_a_line_a_strategy(report):
    assert [(line.label, line.schedule) for line in report.figures] == [
        ("xla", "xla"),
        ("flat", "after"),
        ("ddp:4KiB", "during"),
        ("zero", "deferred"),
    ]
    assert report.figures[0].ratio == 1
    assert all(len(line.rounds_ms) == 3 for line in report.figures)
    assert set(report.compute_ms) == {"forward", "gradients", "compute"}
    assert set(report.peaks) == {"host+device", "host", "device"}


def test_every_line_adds_up(report):
    for line in report.figures:
        assert line.exposed_ms == pytest.approx(line.step_ms - line.compute_ms)
        assert line.overlap == pytest.approx(1 - line.exposed_ms / line.communication_ms)
        assert line.over_bound == pytest.approx(line.step_ms / line.bound_ms)
        assert line.bound_ms > 0
    assert len({line.compute_ms for line in report.figures}) == 1


def test_schedule_after_is_bounded_by_compute_and_wire(report):
    """8 KiB over 8 devices at 1 GB/s: each sends 7/8 of it twice."""
    flat = report.figures[1]
    assert flat.bound_ms == pytest.approx(flat.compute_ms + 1.75 * 8192 / 1e6)


def test_as_json_and_as_text(report):
    read = json.loads(json.dumps(report.as_json()))
    assert read["figures"][2]["label"] == "ddp:4KiB"
    lines = step_text(report).splitlines()
    assert lines[0].startswith("small, 8 examples a host, mesh 2x4")
    assert [line.split()[0] for line in lines[-4:]] == ["xla", "flat", "ddp:4KiB", "zero"]


@pytest.mark.parametrize(
    ("label", "kinds"),
    [
        ("xla", {"all-reduce"}),
        pytest.param("flat", {"all-reduce"}, marks=pytest.mark.slow),
        pytest.param("ddp:4KiB", {"all-reduce"}, marks=pytest.mark.slow),
        # The last: metrics, and the guard of all shards.
        pytest.param("zero", {"reduce-scatter", "all-gather", "all-reduce"}, marks=pytest.mark.slow),
    ],
)
def test_each_strategy_leaves_a_trace_of_its_own_steps(report, traces, label, kinds):
    made = timeline(read_traces(trace_directory(traces, label)))
    assert len(made.steps) == 3
    assert len(made.devices) == 8
    for device in made.devices:
        assert {timed.kind for timed in device.collectives} == kinds


def test_a_directory_of_traces_is_made_before_anything_is_measured(tmp_path):
    check_trace(tmp_path / "new" / "traces")
    assert (tmp_path / "new" / "traces").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--trace .*file: cannot be made a directory: File exists"):
        check_trace(tmp_path / "file")


def test_it_is_drawn(report):
    pytest.importorskip("matplotlib")
    [axes] = draw_steps(report).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(LABELS[::-1])
    wide = [bar.get_width() for bar in axes.patches]
    line = report.figures[0]
    assert wide[len(LABELS) - 1] == line.compute_ms
    assert wide[-1] == max(line.exposed_ms, 0)


def test_labels():
    assert labelled_strategy("ddp:4MiB").name == "ddp"
    assert labelled_strategy("ddp:4MiB+pieces").name == "ddp"
    assert "25 * MiB" in labelled_strategy("zero", platform="gpu").expression
    assert labelled_strategy("auto", platform="tpu").name == "ddp"
    assert labelled_strategy("flat+pieces").schedule == "after"
    assert labelled_strategy("xla", 2**20).reducer is None  # it has no buckets, and needs no size
    with pytest.raises(InputError, match="--strategy ddp:4MB: '4MB' must be a number of bytes"):
        labelled_strategy("ddp:4MB")
    with pytest.raises(InputError, match=r"--strategy xla:4MiB: strategy 'xla' has no bucket size"):
        labelled_strategy("xla:4MiB")
    with pytest.raises(InputError, match=r"--strategy fla: .*did you mean 'flat'"):
        labelled_strategy("fla")
