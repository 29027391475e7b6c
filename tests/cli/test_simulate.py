"""`jaxnet simulate`: tables of a machine, and of papers."""

import json

import pytest

from jaxnet.cli.main import run
from jaxnet.errors import InputError

GIVEN = ["simulate", "--model", "alexnet", "--batch", "512", "--rate", "2987", "--on", "p100-dgx1:2x8"]


def printed(capsys, *arguments):
    assert run([*arguments]) == 0
    return capsys.readouterr().out


def test_a_line_for_each_number_of_devices(capsys):
    about, heads, *lines = printed(capsys, *GIVEN).splitlines()
    assert about.startswith("alexnet, batch 512 a device, hierarchical, on 8 P100")
    assert heads.split()[0] == "devices"
    assert [line.split()[0] for line in lines] == ["1", "2", "4", "8", "16"]
    assert lines[0].split()[-1] == "100.0%"


def test_json_has_the_numbers_of_the_table(capsys):
    found = json.loads(printed(capsys, *GIVEN, "--strategy", "ddp:4MiB", "--json"))
    assert (found["machine"], found["strategy"]) == ("p100-dgx1", "ddp:4MiB")
    assert found["rows"][0] == {
        "devices": 1,
        "seconds": 512 / 2987,
        "exposed": 0.0,
        "rate": pytest.approx(2987),
        "efficiency": pytest.approx(1),
    }


def test_hours_and_failures_are_columns(capsys):
    run_of = ["--examples", "115e6", "--failure-hours", "1000"]
    found = json.loads(printed(capsys, *GIVEN, *run_of, "--json"))["rows"]
    assert found[0]["device_hours"] == pytest.approx(115e6 / 2987 / 3600 / found[0]["goodput"])
    assert found[-1]["goodput"] < found[0]["goodput"] < 1
    _, heads, *lines = printed(capsys, *GIVEN, *run_of).splitlines()
    assert heads.split()[-3:] == ["goodput", "hours", "device-hours"]
    assert all(len(line) == len(heads) for line in lines)


def test_a_paper_stands_beside_the_simulation(capsys):
    lines = printed(capsys, "simulate", "--paper", "tf_dgx1_alexnet_b512").splitlines()
    assert lines[0].startswith("TensorFlow, DGX-1, alexnet, batch 512 (tensorflow/docs")
    assert [line.split()[:2] for line in lines[-3:]] == [["2", "94.7%"], ["4", "88.0%"], ["8", "74.6%"]]
    found = json.loads(printed(capsys, "simulate", "--paper", "tf_dgx1_alexnet_b512", "--json"))
    assert [row["devices"] for row in found[0]["rows"]] == [2, 4, 8]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "alexnet"], "give --batch, --rate, --on too"),
        (["--paper", "all", "--rate", "3"], "leave --rate out"),
        (["--paper", "caffe2_57"], "did you mean 'caffe2_57x'?"),
        ([*GIVEN[1:], "--rate", "0"], "must be a number above 0"),
        ([*GIVEN[1:], "--model", "alexnett"], "did you mean 'alexnet'?"),
        ([*GIVEN[1:], "--strategy", "zero"], "is not simulated"),
        ([*GIVEN[1:], "--strategy", "ddpp"], "did you mean 'ddp'?"),
        ([*GIVEN[1:], "--on", "h100"], "wanted MACHINE:HOSTSxDEVICES"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments, words):
    with pytest.raises(InputError) as caught:
        run(["simulate", *arguments])
    assert words in str(caught.value)
