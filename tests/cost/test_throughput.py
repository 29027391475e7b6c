"""The throughput benchmark: its table and FLOPs by hand, and both frameworks where PyTorch is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxnet
from benchmarks import throughput as benchmark
from benchmarks.peers.networks import MATMUL, NETWORKS, TEXT, Text
from benchmarks.throughput import Turn
from jaxnet.models import ZOO
from support.programs import ROOT, clean_environment


def run(*arguments):
    command = [sys.executable, str(ROOT / "benchmarks/throughput.py"), *arguments]
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True, cwd=ROOT)


def test_a_table_by_hand():
    times = {
        Turn("jax", "jaxnet", huge_pages=True): [100.0, 400.0, 200.0],
        Turn("torch", "torch eager"): [400.0, 500.0, 300.0],
        Turn("jax", MATMUL, huge_pages=True): [4.0, 2.0],  # 2 * 1000**3 operations in 2 ms: 1e12 a second
        Turn("torch", MATMUL): [8.0, 4.0],
    }
    ours, theirs = benchmark.rows(times, batch=10, flops=10**11, side=1000)
    assert ours == ("jaxnet", 200, 100, 400, 50, 500, pytest.approx(50), 1)
    assert theirs == ("torch eager", 400, 300, 500, 25, 250, pytest.approx(50), 0.5)
    assert benchmark.text([ours, theirs]).splitlines()[2].split()[:3] == ["torch", "eager", "400.00"]


def test_the_flops_of_a_step_are_three_forward_passes():
    assert benchmark.step_flops("alexnet", batch=2) == 2 * 3 * 2 * 714_188_480  # multiplications of torchvision's

    # A token: in each block 12 * 128**2 multiplications by kernels and 2 * 128 * 128 by scores; 128 * 256 in the head.
    multiplications = 128 * (3 * (12 * 128**2 + 2 * 128 * 128) + 128 * 256)
    assert benchmark.step_flops(TEXT, batch=2) == pytest.approx(2 * 3 * 2 * multiplications, rel=0.01)


def test_text_is_that_of_the_config():
    model = jaxnet.load_config("configs/text_transformer.py").model
    assert {key: getattr(model, key) for key in Text._fields} == Text()._asdict()


def test_networks_are_of_the_zoo():
    assert {network.zoo for network in NETWORKS.values()} <= set(ZOO)


def test_a_missing_environment_is_one_line():
    done = run("--torch-python", "/nowhere/python")
    assert done.returncode == 2
    assert "error: no Python at /nowhere/python: make it with" in done.stderr
    assert "Traceback" not in done.stderr


def torch_python():
    """An interpreter that has PyTorch, if there is one."""
    if importlib.util.find_spec("torch"):
        return sys.executable
    places = [os.environ.get("JAXNET_TORCH_PYTHON"), ROOT / ".venv-torch/bin/python"]
    return next((str(place) for place in places if place and Path(place).is_file()), None)


@pytest.mark.skipif(torch_python() is None, reason="PyTorch is not installed")
@pytest.mark.processes
@pytest.mark.parametrize("model", ["alexnet", TEXT])
def test_both_frameworks_in_one_run(model):
    variants = ["jaxnet", "jax by hand", "torch eager"]
    chosen = [word for variant in variants for word in ("--variant", variant)]
    size = ["--batch", "2", "--rounds", "1", "--steps-per-round", "1", "--side", "64"]
    done = run("--model", model, *size, *chosen, "--torch-python", torch_python())
    assert done.returncode == 0, done.stderr
    assert [line.rsplit(maxsplit=7)[0] for line in done.stdout.splitlines()[2:]] == variants
