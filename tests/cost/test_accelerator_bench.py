"""`python -m benchmarks.accelerator`, in a small size, where the accelerators are emulated CPUs."""

import json

import pytest

from benchmarks import accelerator
from jaxnet import comm

FEW = {name: comm.STRATEGIES[name] for name in ("hierarchical", "zero", "int8")}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    monkeypatch.setattr(accelerator, "STRATEGIES", FEW)


@pytest.mark.slow
def test_it_writes_what_it_found(quick, tmp_path, capsys):
    assert accelerator.main(["--small", "--out", str(tmp_path / "found")]) == 0
    found = json.loads((tmp_path / "found/accelerator.json").read_text())
    assert found["numerics"].keys() == FEW.keys()
    assert all(row["good"] for row in found["numerics"].values())
    assert found["networks"]["a small one"]["examples_per_second"] > 0
    assert found["overhead"]["call_milliseconds"] > 0
    assert found["overhead"]["step_milliseconds"] > 0
    page = (tmp_path / "found/accelerator.md").read_text()
    assert page == capsys.readouterr().out.removesuffix("\n")
    assert "wrong" not in page


def test_pytorch_that_is_not_there_is_told(quick, tmp_path):
    asked = accelerator.peers(str(tmp_path / "python"), small=True)
    [line] = accelerator._beside_peers(asked)
    assert line.startswith("- PyTorch could not be measured: error: no Python at ")


def test_peers_have_a_line_each():
    said = {"model": "resnet50", "dtype": "bfloat16", "batch": 256}
    rows = [
        {"variant": "jaxnet", "images_per_second": 3000.0},
        {"variant": "torch compile", "images_per_second": 2999.6},
    ]
    assert accelerator._beside_peers({**said, "rows": rows}) == [
        "- resnet50, bfloat16, batch 256, jaxnet: 3,000 images a second",
        "- resnet50, bfloat16, batch 256, torch compile: 3,000 images a second",
    ]
    assert accelerator._beside_peers({}) == []


def test_options_reach_the_compiler(quick, monkeypatch):
    monkeypatch.setattr(accelerator, "STRATEGIES", {name: FEW[name] for name in ("hierarchical", "zero")})
    rows = accelerator.numerics(comm.make_mesh(2), ["xla_no_such_option=1"])
    assert all("InputError: compiler_options: XLA: " in row["error"] for row in rows.values())


@pytest.mark.slow
def test_numbers_that_differ_and_strategies_that_fail_are_told(quick, tmp_path, monkeypatch):
    real = accelerator.params_after
    seen = []

    def other(config, mesh, steps):
        seen.append(config.strategy)
        params = real(config, mesh, steps)
        if config.strategy == "zero" and seen.count("zero") == 1:
            params[0] = params[0] + 0.01
        if config.strategy == "int8":
            raise RuntimeError("no such kernel")
        return params

    monkeypatch.setattr(accelerator, "params_after", other)
    rows = accelerator.numerics(comm.make_mesh(2), ())
    assert [name for name, row in rows.items() if not row["good"]] == ["zero", "int8"]
    assert rows["int8"]["error"] == "RuntimeError: no such kernel"
    assert rows["zero"]["difference"] > rows["zero"]["allowed"]
