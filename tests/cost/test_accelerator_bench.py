"""`python -m benchmarks.accelerator`, in a small size, where the accelerators are emulated CPUs."""

import json
import os

import numpy as np
import pytest

from benchmarks import accelerator
from jaxnet.errors import InputError

FEW = ("hierarchical", "zero", "int8")


@pytest.fixture
def eight_cpus(monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")


@pytest.mark.slow
def test_it_writes_what_it_found(eight_cpus, tmp_path, capsys):
    few = [word for name in FEW for word in ("--strategy", name)]
    assert accelerator.main(["--small", *few, "--out", str(tmp_path / "found")]) == 0
    found = json.loads((tmp_path / "found/accelerator.json").read_text())
    assert tuple(found["numerics"]) == FEW
    assert all(row["good"] for row in found["numerics"].values())
    assert found["networks"]["a small one"]["examples_per_second"] > 0
    assert found["overhead"]["call_milliseconds"] > 0
    assert found["overhead"]["step_milliseconds"] > 0
    page = (tmp_path / "found/accelerator.md").read_text()
    assert page == capsys.readouterr().out.removesuffix("\n")
    assert "wrong" not in page


def test_pytorch_that_is_not_there_is_told(tmp_path):
    asked = accelerator.peers(str(tmp_path / "python"), small=True)
    [line] = accelerator._beside_peers(asked)
    assert line.startswith("- PyTorch could not be measured: error: no Python at ")


def test_peers_have_a_line_each():
    said = {"model": "resnet50", "dtype": "bfloat16", "batch": 256}
    rows = [
        {"variant": "jaxnet", "examples_per_second": 3000.0},
        {"variant": "torch compile", "examples_per_second": 2999.6},
    ]
    assert accelerator._beside_peers({**said, "rows": rows}) == [
        "- resnet50, bfloat16, batch 256, jaxnet: 3,000 images a second",
        "- resnet50, bfloat16, batch 256, torch compile: 3,000 images a second",
    ]
    assert accelerator._beside_peers({}) == []


@pytest.mark.slow
def test_options_reach_the_compiler(eight_cpus):
    rows = accelerator.numerics(["xla_no_such_option=1"], FEW[:1])
    assert "InputError: compiler_options: XLA: " in rows["hierarchical"]["error"]


@pytest.mark.slow
def test_processes_that_share_a_device_sum_as_one_does(eight_cpus, tmp_path):
    """What is done where there is one GPU, on CPUs."""
    four = [{**environ, "JAX_NUM_CPU_DEVICES": "1"} for environ in accelerator.sharing()]
    one = [{**os.environ, "JAX_NUM_CPU_DEVICES": "4"}]
    here, there = (
        accelerator.steps_of(tmp_path / f"{len(places)}.npz", FEW[:1], ["--hosts", "2"], [], places)
        for places in (four, one)
    )
    assert accelerator.compared("hierarchical", here, there)["good"]


def test_numbers_that_differ_and_strategies_that_fail_are_told():
    there = {"zero/0": np.array([1.0, -2.0]), "zero/1": np.zeros(1), "int8/0": np.array([1.0])}
    here = {"zero/0": np.array([1.0, -2.02]), "zero/1": np.zeros(1), "int8/error": np.array("RuntimeError: no kernel")}
    row = accelerator.compared("zero", here, there)
    assert not row["good"]
    assert row["difference"] == pytest.approx(0.01)
    assert accelerator.compared("int8", here, there) == {"good": False, "error": "RuntimeError: no kernel"}
    assert not accelerator.compared("zero", {**there, "zero/1": np.array([np.nan])}, there)["good"]
    assert accelerator.compared("zero", there, there) == {"good": True, "difference": 0.0, "allowed": 1e-4}


def test_a_process_that_fails_is_quoted(tmp_path):
    """It ends the others at once, which wait for it."""
    alone = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_NUM_PROCESSES": "2"}
    places = [os.environ | alone | {"JAX_PROCESS_ID": index} for index in ("0", "one")]
    found = accelerator.steps_of(tmp_path / "here.npz", FEW, [], [], places)
    assert found.keys() == {f"{name}/error" for name in FEW}
    assert accelerator.compared("zero", found, {})["error"] == (
        "process 1 ended with status 2: error: JAX_PROCESS_ID is 'one'; it must be a whole number, 0 or more"
    )


def test_a_machine_without_devices_is_told(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "none_such")
    with pytest.raises(InputError, match="JAX has no devices here: "):
        accelerator.devices_here()
