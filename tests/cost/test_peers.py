"""The peer benchmark: its table by hand, its place in the world, and a whole run where PyTorch is installed."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks.peers.compare import table
from benchmarks.peers.place import interface_towards, torch_place
from benchmarks.peers.rounds import in_turn
from support.programs import ROOT, launch

PLACE = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:5000", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
EXPORTED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "GLOO_SOCKET_IFNAME")


def torch_python():
    """An interpreter that has PyTorch: this one, that of the documented environment, or one that is named."""
    if importlib.util.find_spec("torch"):
        return sys.executable
    places = [os.environ.get("JAXNET_TORCH_PYTHON"), ROOT / ".venv-torch/bin/python"]
    return next((str(place) for place in places if place and Path(place).is_file()), None)


needs_torch = pytest.mark.skipif(torch_python() is None, reason="PyTorch is not installed")


def test_ratios_of_medians_by_hand():
    times = {
        "xla": [400.0, 500.0, 600.0],
        "ours": [200.0, 250.0, 210.0],
        "ddp-1MiB": [500.0, 420.0, 400.0],
        "ddp-4MiB": [315.0, 500.0, 300.0],
        "ddp-fp16": [100.0, 100.0, 100.0],
    }
    spent = {name: [[1.0, 2.0, 3.0, 4.0], [5.0, 2.0, 3.0, 4.0], [3.0, 2.0, 3.0, 4.0]] for name in times}
    rows = {line.split()[0]: line.split() for line in table(times, spent).splitlines()[1:]}
    assert rows["ours"][:6] == ["ours", "210.00", "200.00", "24%", "1.50", "2.38"]  # 315 / 210, 500 / 210
    assert rows["ours"][6:] == ["3", "2", "3", "4"]
    assert "idle" not in table(times, {name: [[]] for name in times})
    assert rows["ddp-4MiB"][4] == "1.00"  # the best at full precision
    assert rows["ddp-fp16"][4] == "3.15"


def test_rounds_turn():
    assert [variant for _, variant in in_turn("abc", 3)] == list("abccbaabc")


def test_variables_of_pytorch_from_those_of_jax():
    place = torch_place(PLACE)
    assert place == dict(zip(EXPORTED, ["127.0.0.1", "5001", "2", "1", "lo"], strict=True))


def test_an_interface_and_a_port_can_be_given():
    given = {"GLOO_SOCKET_IFNAME": "eth7", "MASTER_PORT": "6000", "RANK": "9"}
    assert torch_place(PLACE | given) == torch_place(PLACE) | {"GLOO_SOCKET_IFNAME": "eth7", "MASTER_PORT": "6000"}
    assert torch_place(PLACE | {"JAXNET_NETWORK_INTERFACE": "eth8"})["GLOO_SOCKET_IFNAME"] == "eth8"


def test_without_a_place():
    with pytest.raises(SystemExit, match="error: no place among processes"):
        torch_place({})


def test_loopback_is_reached_through_loopback():
    assert interface_towards("127.0.0.1") == "lo"


@needs_torch
@pytest.mark.processes
def test_ddp_by_itself_prints_a_line_a_round_and_variant():
    options = ["--model", "small", "--rounds", "2", "--steps-per-round", "1", "--threads", "1"]
    chosen = ["--variant", "ddp-4MiB", "--variant", "ddp-fp16"]
    with launch(torch_python(), "benchmarks/peers/ddp.py", *options, *chosen) as job:
        assert job.finish() == 0, job.err
    said = [json.loads(line.removeprefix("[0] ")) for line in job.out if line.startswith("[0] {")]
    assert [(line["round"], line["variant"]) for line in said] == [
        (0, "ddp-4MiB"),
        (0, "ddp-fp16"),
        (1, "ddp-fp16"),
        (1, "ddp-4MiB"),
    ]
    assert not [line for line in job.out if line.startswith("[1] {")]


@needs_torch
@pytest.mark.processes
def test_both_frameworks_in_one_run():
    options = ["--model", "small", "--rounds", "2", "--steps-per-round", "1", "--threads", "1"]
    chosen = ["--strategy", "xla", "--strategy", "ddp:4MiB", "--peer", "ddp-4MiB", "--torch-python", torch_python()]
    with launch("benchmarks/peers/compare.py", *options, *chosen) as job:
        assert job.finish() == 0, job.err
    names = [line.split()[1] for line in job.out if line.startswith("[0] ") and "%" in line]
    assert names == ["jaxnet-compute", "xla", "ddp:4MiB", "torch-compute", "ddp-4MiB"]


def test_a_missing_environment_is_one_line():
    with launch("benchmarks/peers/compare.py", "--torch-python", "/nowhere/python") as job:
        assert job.finish() == 2
    assert any("error: no Python at /nowhere/python: make it with" in line for line in job.err)
    assert "Traceback" not in "".join(job.err)
