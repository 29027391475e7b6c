"""`jaxnet simulate`: tables of a machine, and of papers."""

import json
import math
import shlex

import pytest

from jaxnet.cli.main import run
from jaxnet.cost.simulation import upkeep
from jaxnet.errors import InputError
from support.programs import ROOT

GIVEN = ["simulate", "--model", "alexnet", "--batch", "512", "--rate", "2987", "--on", "p100-dgx1:2x8"]

CONFIG = ["simulate", "--config", str(ROOT / "configs/digits.py"), "--on", "h100:4x8", "--rate", "1e5"]


def printed(capsys, *arguments):
    assert run([*arguments]) == 0
    return capsys.readouterr().out


def test_a_line_for_each_number_of_devices(capsys):
    about, rate, strategy, heads, *lines, known = printed(capsys, *GIVEN).splitlines()
    assert about.startswith("alexnet, batch 512 a device, on 8 P100")
    assert (rate, strategy) == ("one device 2,987.0 examples/s, as given", "strategy hierarchical")
    assert heads.split()[0] == "devices"
    assert known.startswith("how far off: ")
    assert [line.split()[0] for line in lines] == ["1", "2", "4", "8", "16"]
    assert lines[0].split()[-1] == "100.0%"


def test_json_has_the_numbers_of_the_table(capsys):
    found = json.loads(printed(capsys, *GIVEN, "--strategy", "ddp:4MiB", "--json"))
    assert (found["machine"], found["rate"]) == ("p100-dgx1", 2987)
    assert found["rows"][0] == {
        "strategy": "ddp:4MiB",
        "devices": 1,
        "seconds": 512 / 2987,
        "exposed": 0.0,
        "rate": pytest.approx(2987),
        "efficiency": pytest.approx(1),
        "unhidden": pytest.approx(1),
        "limit": 1,
    }


def test_hours_and_failures_are_columns(capsys):
    run_of = ["--examples", "115e6", "--failure-hours", "1000"]
    found = json.loads(printed(capsys, *GIVEN, *run_of, "--json"))["rows"]
    assert found[0]["device_hours"] == pytest.approx(115e6 / 2987 / 3600 / found[0]["goodput"])
    assert found[-1]["goodput"] < found[0]["goodput"] < 1
    *_, heads, one, two, four, eight, sixteen, _ = printed(capsys, *GIVEN, *run_of).splitlines()
    assert heads.split()[-3:] == ["goodput", "hours", "device-hours"]
    assert all(len(line) == len(heads) for line in (one, two, four, eight, sixteen))


def test_a_tpu_slice_fails_as_often_as_its_hosts_of_four_chips_do(capsys):
    given = ["--model", "alexnet", "--batch", "64", "--rate", "1e3", "--failure-hours", "1000", "--on", "v5e:4x4/2"]
    rows = json.loads(printed(capsys, "simulate", *given, "--json"))["rows"]
    computers = {1: 1, 2: 1, 4: 1, 8: 2, 16: 4, 32: 8}
    for row in rows:
        assert row["save_every_seconds"] == upkeep(computers[row["devices"]], 3.6e6, 10.0, 120.0).interval
    assert [row["devices"] for row in rows] == list(computers)


def test_a_config_names_its_network_batch_and_strategy(capsys):
    about, _, strategy, *_ = printed(capsys, *CONFIG, "batch_size=1024").splitlines()
    assert about.startswith("digits, batch 32 a device, on 8 NVIDIA H100")
    assert strategy == "strategy auto (hierarchical)"
    found = json.loads(printed(capsys, *CONFIG, "batch_size=1024", "strategy=ddp", "--json"))
    assert (found["network"], found["batch"], found["gradient_bytes"]) == ("digits", 32, 99_370 * 4)
    assert {row["strategy"] for row in found["rows"]} == {"ddp"}


def test_the_examples_of_the_help_at_a_given_rate_run(capsys, tmp_path, monkeypatch):
    with pytest.raises(SystemExit):
        run(["simulate", "--help"])
    _, examples = capsys.readouterr().out.replace("\\\n", "").split("\nexamples:\n")
    given = [shlex.split(line)[1:] for line in examples.splitlines() if "--rate" in line]
    assert len(given) == 4
    monkeypatch.chdir(tmp_path)  # where pictures go
    for arguments in given:
        placed = [str(ROOT / each) if each.startswith("configs/") else each for each in arguments]
        assert "strategy " in printed(capsys, *placed)


def test_several_strategies_and_the_best_of_them(capsys, tmp_path):
    several = ["--strategy", "flat", "--strategy", "ddp:64KiB", "--batch", "64", "--png", f"{tmp_path}/scaling.png"]
    lines = printed(capsys, *CONFIG, *several).splitlines()
    assert [line for line in lines if line.startswith("strategy ")] == ["strategy flat", "strategy ddp:64KiB"]
    assert lines[-2].startswith("best on 32 devices: ")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_batch_on_more_devices_leaves_each_less(capsys):
    rows = {
        growth: json.loads(printed(capsys, *CONFIG, "--batch", "64", "--json", *growth))["rows"]
        for growth in ((), ("--strong",))
    }
    strong, weak = rows["--strong",], rows[()]
    assert strong[0]["seconds"] == pytest.approx(32 * weak[0]["seconds"])
    assert strong[-1] == weak[-1]


def test_slices_of_tpus(capsys):
    given = ["--on", "v5e:4x4/2", "--rate", "1e5", "--batch", "64"]
    lines = printed(capsys, *CONFIG[:3], *given).splitlines()
    assert lines[0].endswith("on slices of 4x4 TPU v5e: jax-ml/scaling-book")
    assert lines[2] == "strategy auto (ddp)"
    assert [line.split()[0] for line in lines[4:-1]] == ["1", "2", "4", "8", "16", "32"]


def test_auto_of_a_network_of_the_zoo_is_that_of_the_machine(capsys):
    def strategy_on(machine):
        given = ["--model", "alexnet", "--batch", "64", "--rate", "1e3", "--strategy", "auto", "--on", machine]
        return printed(capsys, "simulate", *given).splitlines()[2]

    assert strategy_on("v5e:4x4/2") == "strategy auto (ddp)"
    assert strategy_on("h100:2x8") == "strategy auto (hierarchical)"


def test_a_paper_is_drawn_beside_what_was_measured(capsys, tmp_path):
    printed(capsys, "simulate", "--paper", "goyal_256", "--png", f"{tmp_path}/paper.png")
    assert (tmp_path / "paper.png").read_bytes().startswith(b"\x89PNG")


def test_several_papers_are_drawn_beside_each_other(capsys, tmp_path):
    named = ("goyal_256", "caffe2_57x", "ddl_256", "goyal_256", "mxnet_16_fp32")
    given = [part for name in named for part in ("--paper", name)]
    lines = printed(capsys, "simulate", *given, "--svg", f"{tmp_path}/papers.svg").splitlines()
    assert sum(line.startswith("machine ") for line in lines) == 4  # each once
    drawn = (tmp_path / "papers.svg").read_text()
    assert all(f"<!-- {name} -->" in drawn for name in named)


def test_a_paper_stands_beside_the_simulation(capsys):
    lines = printed(capsys, "simulate", "--paper", "tf_dgx1_alexnet_b512").splitlines()
    assert lines[0].startswith("TensorFlow, DGX-1, alexnet, batch 512 (tensorflow/docs")
    assert [line.split()[:2] for line in lines[-3:]] == [["2", "94.7%"], ["4", "88.0%"], ["8", "74.6%"]]
    found = json.loads(printed(capsys, "simulate", "--paper", "tf_dgx1_alexnet_b512", "--json"))
    assert [row["devices"] for row in found[0]["rows"]] == [2, 4, 8]


@pytest.mark.parametrize(("small", "large"), [("1e-9", "1e18"), ("1e18", "1e-9")])
def test_the_furthest_numbers_give_numbers(small, large, capsys):
    given = [*GIVEN, "--rate", small, "--examples", large, "--failure-hours", small, "--save-seconds", large, "--json"]
    rows = json.loads(printed(capsys, *given, "--restart-seconds", large))["rows"]
    assert all(math.isfinite(value) for row in rows for value in row.values() if not isinstance(value, str))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "alexnet"], "give --batch, --rate, --on too"),
        (["--config", "digits.py"], "give --on too"),
        ([*CONFIG[1:], "--model", "alexnet"], "give one of the two"),
        ([*GIVEN[1:], "strategy=ddp"], "strategy=ddp: give --config FILE too"),
        ([*CONFIG[1:], "batch_size=31"], "32 devices cannot share it"),
        ([*CONFIG[1:], "shard_dense=dense_0,dense_1"], "shard_dense=dense_0,dense_1 is not simulated"),
        ([*CONFIG[1:3], "--on", "v100-edr:4x8"], "no compiler here knows a v100-edr; give --rate R"),
        (["--paper", "goyal_256", "--paper", "s_caffe_reduction"], "s_caffe_reduction: it has sizes of messages"),
        (["--paper", "all", "--rate", "3"], "leave --rate out"),
        (["--paper", "caffe2_57"], "did you mean 'caffe2_57x'?"),
        ([*GIVEN[1:], "--rate", "0"], "'0' must be a number from 1e-9 to 1e18"),
        ([*GIVEN[1:], "--rate", "1e-300"], "'1e-300' must be a number from 1e-9 to 1e18"),
        ([*GIVEN[1:], "--examples", "2e18"], "'2e18' must be a number from 1e-9 to 1e18"),
        ([*GIVEN[1:], "--failure-hours", "nan"], "'nan' must be a number from 1e-9 to 1e18"),
        ([*GIVEN[1:], "--model", "alexnett"], "did you mean 'alexnet'?"),
        ([*GIVEN[1:], "--strategy", "zero"], "is not simulated"),
        ([*GIVEN[1:], "--strategy", "ddpp"], "did you mean 'ddp'?"),
        ([*GIVEN[1:], "--on", "h100"], "wanted MACHINE:HOSTSxDEVICES"),
        (["--paper", "caffe2_57x", "--strong", "--dtype", "float16"], "leave --dtype and --strong out"),
        (["--paper", "s_caffe_reduction", "epochs=3"], "leave epochs=3 out"),
        ([*GIVEN[1:], "--strategy", "ddp+pieces"], "leave +pieces out"),
        ([*GIVEN[1:], "--save-seconds", "5"], "give --failure-hours H too"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments, words):
    with pytest.raises(InputError) as caught:
        run(["simulate", *arguments])
    assert words in str(caught.value)


def test_gradients_travel_in_the_dtype_of_the_parameters(tmp_path, capsys):
    (tmp_path / "half.py").write_text(HALF)
    given = ["simulate", "--config", str(tmp_path / "half.py"), "--on", "h100:2x8", "--rate", "1e5", "--json"]
    assert json.loads(printed(capsys, *given))["gradient_bytes"] == 2 * 650
    assert json.loads(printed(capsys, *given, "--dtype", "float32"))["gradient_bytes"] == 4 * 650


HALF = """
import flax.linen as nn
from jaxnet import Config
from jaxnet.data import Digits

class Half(nn.Module):
    @nn.compact
    def __call__(self, images, train=False):
        return nn.Dense(10, param_dtype="bfloat16")(images.reshape(len(images), -1))

def get_config():
    return Config(model=Half(), data=Digits(), batch_size=64, epochs=1)
"""
