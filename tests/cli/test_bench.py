"""`jaxnet bench`: tables and JSON in one process and in two; mistakes are one line."""

import json
import sys

import pytest

from jaxnet.cli.main import run
from jaxnet.comm import KiB, named_strategy
from jaxnet.cost import collectives
from jaxnet.cost.shapes import SIZES, Sizes
from jaxnet.errors import InputError
from jaxnet.report import read_traces, timeline
from support.programs import ROOT, launch
from support.refusals import every, refused, says

COLLECTIVES = ["bench", "collectives", "--mesh", "2x4", "--bytes", "100,4KiB", "--iterations", "2"]
STEP = ["bench", "step", "--mesh", "2x4", "--model", "small", "--rounds", "2", "--steps-per-round", "1"]

WRONG = {
    "no kind": ("bench", "the following arguments are required: KIND (see jaxnet bench --help)"),
    "no strategy": ("bench step", "the following arguments are required: --strategy"),
    "near strategy": ("bench step --strategy dpd", "--strategy dpd: no strategy 'dpd'; did you mean 'ddp'?"),
    "size of a strategy": ("bench step --strategy ddp:4mb", "--strategy ddp:4mb: '4mb' must be a number of bytes"),
    "no buckets": ("bench step --strategy xla:1MiB", "strategy 'xla' has no bucket size to set"),
    "bucket size": ("bench step --strategy ddp --bucket-bytes 0", "--bucket-bytes: '0' must be a number of bytes"),
    "rounds of steps": ("bench step --strategy local_sgd", "--strategy local_sgd: its steps are not alike, parameters"),
    "workload": ("bench step --strategy ddp --model vgg16", "--model vgg16: there is dense, vgg,"),
    "rounds": ("bench step --strategy ddp --rounds 0", "--rounds: '0' must be a whole number of at least 1"),
    "batch": ("bench step --strategy ddp --mesh 2x4 --batch 6", "--batch 6: wanted a multiple of 4"),
    "picture": ("bench step --strategy ddp --svg a.png", "--svg: 'a.png' must end in .svg"),
    "picture nowhere": ("bench step --strategy ddp --png no/a.png", "--png: there is no directory no for 'no/a.png'"),
    "sizes": ("bench collectives --bytes 1KiB,1kb", "--bytes: '1kb' must be a number of bytes above 0"),
    "algorithm": ("bench collectives --algorithm nccl", "--algorithm nccl: there is all_reduce, "),
    "mesh": ("bench collectives --mesh 8", "--mesh 8: wanted HOSTSxDEVICES, such as 2x4"),
    "cut layers": (
        "bench step --strategy ddp --config configs/digits.py shard_dense=dense_0,dense_1",
        "shard_dense=dense_0,dense_1: strategies are timed as they send whole gradients",
    ),
    "axis": ("bench collectives --mesh 2x4 --axis hosts", "--axis hosts: there is host, device, host+device"),
    "unused axis": ("bench collectives --mesh 1x8 --axis host", "--axis host: there is device"),
    "option": ("bench step --strategy ddp --round 3", "unrecognized arguments: --round", "did you mean --rounds?"),
}


@pytest.fixture(autouse=True)
def small_probes(monkeypatch):
    monkeypatch.setattr(collectives.measure_collectives, "__defaults__", ([("all_reduce", 4 * KiB)],))
    monkeypatch.setattr(collectives.link_peak, "__defaults__", ([("all_reduce", 4 * KiB)],))


@pytest.fixture(autouse=True)
def few_layers(monkeypatch):
    """What is compiled here is not the point."""
    monkeypatch.setitem(SIZES, "small", Sizes(leaves=((16, 16),) * 4, example=(16,), batch=8))


def status_of(arguments):
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    return ended.value.code


@every(WRONG)
def test_a_mistake_is_one_line(given, words, capsys):
    says(refused(lambda: run(given.split()), capsys), words)


@pytest.mark.parametrize("kind", ["collectives", "step"])
def test_an_example_on_one_machine_names_its_devices(kind, capsys):
    assert status_of(["bench", kind, "--help"]) == 0
    examples = capsys.readouterr().out.split("\nexamples:\n")[1].splitlines()
    alone = [line for line in examples if f"  jaxnet bench {kind} " in line]
    assert len(alone) == 2
    assert all(" --mesh " in line or " --config " in line for line in alone)


def test_the_table_of_collectives(capsys):
    assert status_of([*COLLECTIVES, "--algorithm", "all_reduce", "--axis", "device"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("mesh 2x4; float32")
    assert lines[1].startswith("peak of device: ")
    columns = "algorithm axis n bytes elements min us p50 us p99 us algbw busbw %peak"
    assert lines[3].split() == columns.split()
    assert [line.split()[:5] for line in lines[4:]] == [
        ["all_reduce", "device", "4", "100", "25"],
        ["all_reduce", "device", "4", "4096", "1024"],
    ]


def test_collectives_as_json(capsys):
    assert status_of([*COLLECTIVES, "--algorithm", "permute", "--algorithm", "scattered", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh"] == {"host": 2, "device": 4}
    assert set(found["peaks"]) == {"host", "device", "host+device"}
    assert len(found["rows"]) == 3 * 2 * 2
    assert all(row["wrong"] == 0 for row in found["rows"])


def test_a_wrong_result_is_status_1(capsys, monkeypatch):
    from jaxnet.cost import collectives as transfers

    broken = transfers.Transfer("broken", "all-reduce", lambda message, axes: message)
    monkeypatch.setitem(transfers.TRANSFERS, "broken", broken)
    assert status_of([*COLLECTIVES, "--algorithm", "broken", "--axis", "host"]) == 1
    assert capsys.readouterr().out.count("WRONG") == 2


def test_the_table_of_steps_and_its_picture(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "steps.svg"
    asked = ["--strategy", "xla", "--strategy", "ddp", "--bucket-bytes", "4KiB", "--svg", str(picture)]
    assert status_of([*STEP, *asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].split()[:3] == ["strategy", "schedule", "step"]
    assert [line.split()[0] for line in lines[-2:]] == ["xla", "ddp"]
    assert "<svg" in picture.read_text()


def test_steps_as_json(capsys):
    assert status_of([*STEP, "--strategy", "flat", "--json"]) == 0
    [line] = json.loads(capsys.readouterr().out)["figures"]
    assert (line["label"], line["schedule"], line["ratio"], len(line["rounds_ms"])) == ("flat", "after", 1.0, 2)


def test_buckets_have_the_size_of_the_config_unless_another_is_given(monkeypatch):
    timed = {}

    def enough(workload, strategies, *_):
        timed.update(strategies)
        raise InputError("enough")

    monkeypatch.setattr("jaxnet.cost.step_bench.bench_steps", enough)
    asked = ["--config", str(ROOT / "configs/digits.py"), "--strategy", "ddp", "batch_size=8", "bucket_bytes=65536"]
    for more, size in (([], 64 * KiB), (["--bucket-bytes", "4KiB"], 4 * KiB)):
        assert status_of(["bench", "step", "--mesh", "2x4", *asked, *more]) == 2
        assert timed["ddp"].expression == named_strategy("ddp", size).expression


@pytest.mark.parametrize(
    ("asked", "more", "label"),
    [
        ("auto", [], "ddp:4MiB"),
        ("auto", ["--bucket-bytes", "4KiB"], "ddp:4096"),
        ("auto:8KiB", ["--bucket-bytes", "4KiB"], "ddp:8KiB"),
    ],
)
def test_auto_is_what_training_takes_on_these_devices(asked, more, label, monkeypatch):
    timed = {}

    def enough(workload, strategies, *_):
        timed.update(strategies)
        raise InputError("enough")

    monkeypatch.setattr("jaxnet.cost.step_bench.bench_steps", enough)
    assert status_of([*STEP, "--strategy", asked, "--strategy", "flat", *more]) == 2
    assert list(timed) == [label, "flat"]


JAXNET = [sys.executable, "-m", "jaxnet"]


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_trace_a_step_in_pieces_and_only_the_first_prints(tmp_path):
    options = ["--model", "small", "--rounds", "2", "--steps-per-round", "1", "--strategy", "flat+pieces", "--json"]
    with launch(*JAXNET, "bench", "step", *options, "--trace", str(tmp_path)) as job:
        assert job.finish() == 0, job.err
    said = [line for line in job.out if "Gloo" not in line]
    assert said
    assert all(line.startswith("[0] ") for line in said)
    found = json.loads("".join(line.removeprefix("[0] ") for line in said))
    assert found["mesh"] == {"host": 2, "device": 1}
    made = timeline(read_traces(tmp_path / "flat+pieces"))
    assert (made.program, len(made.steps)) == ("step in pieces", 3)
    # The gradients, and the message of the metrics.
    assert [(device.process, len(device.collectives)) for device in made.devices] == [(0, 2), (1, 2)]


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_of_one_host_take_a_step_in_pieces():
    options = ["--model", "small", "--rounds", "1", "--steps-per-round", "1", "--mesh", "1x2", "--json"]
    with launch(*JAXNET, "bench", "step", *options, "--strategy", "flat+pieces") as job:
        assert job.finish() == 0, job.err
    found = json.loads("".join(line.removeprefix("[0] ") for line in job.out if "Gloo" not in line))
    assert found["mesh"] == {"host": 1, "device": 2}
    assert [figures["label"] for figures in found["figures"]] == ["flat+pieces"]


@pytest.mark.slow  # tests/cost/test_collectives.py has two processes agree on every figure
@pytest.mark.processes
def test_two_processes_of_two_devices_time_collectives():
    options = ["--bytes", "1KiB", "--iterations", "2", "--algorithm", "all_reduce", "--mesh", "2x2"]
    with launch(*JAXNET, "bench", "collectives", *options, options=["--devices-per-process", "2"]) as job:
        assert job.finish() == 0, job.err
    axes = [line.split()[2] for line in job.out if line.startswith("[0] all_reduce")]
    assert axes == ["host", "device", "host+device"]


@pytest.mark.processes
def test_a_mesh_that_the_job_does_not_have():
    with launch(*JAXNET, "bench", "collectives", "--mesh", "2x4") as job:
        assert job.finish() == 2
    assert any("error: --mesh 2x4: the job has 2 devices" in line for line in job.err)
    assert "Traceback" not in "".join(job.err)


@pytest.mark.processes
@pytest.mark.parametrize("command", [["bench", "step", "--strategy", "ddp"], ["tune"]], ids=["bench", "tune"])
def test_one_device_has_nothing_to_measure(command):
    with launch(*JAXNET, *command, processes=1) as job:
        assert job.finish() == 2
    assert any("there is one device, so nothing travels: emulate some with --mesh 2x4" in line for line in job.err)
    named = " ".join(command[:2])
    assert any(line.endswith(f"jaxnet launch local --processes 2 -- jaxnet {named} ...") for line in job.err)
