"""Converted networks against PyTorch, on the same images: needs an interpreter that has it, as the peers do."""

import os
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from jaxnet.models.zoo import ZOO
from jaxnet.weights import convert, read_tensors, target_of, to_tensors
from support.programs import ROOT

# name: width, image, classes
NETS = {
    "alexnet": (0.125, 64, 10),
    "vgg11_bn": (0.125, 32, 10),
    "resnet18": (0.125, 64, 10),
    "googlenet_bn": (0.125, 64, 10),
    "inception_v3": (0.02, 299, 10),
}


def torch_python():
    given = os.environ.get("JAXNET_TORCH_PYTHON")
    return Path(given) if given else ROOT / ".venv-torch/bin/python"


pytestmark = pytest.mark.skipif(
    not torch_python().exists(), reason="no PyTorch: sh benchmarks/peers/environment.sh, or set JAXNET_TORCH_PYTHON"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What PyTorch wrote: state dicts, images and logits."""
    directory = tmp_path_factory.mktemp("torch")
    wanted = [f"{name}:{width}:{image}:{classes}" for name, (width, image, classes) in NETS.items()]
    script = ROOT / "tests/support/torch_nets.py"
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run([torch_python(), script, directory, *wanted], check=True, env=environment)
    return directory


@pytest.mark.parametrize("name", NETS)
def test_logits_agree(folder, name):
    width, image, classes = NETS[name]
    build = lambda classes: ZOO[name].build(num_classes=classes, width=width)  # noqa: E731
    target = target_of(build, classes, (image, image, 3))
    variables, report = convert(read_tensors(folder / f"{name}.pth", "torchvision"), target)
    assert not report.unmatched, "\n".join(report.lines())
    back, given = to_tensors(variables, target.maps), read_tensors(folder / f"{name}.pth", "torchvision")
    for tensor in given.keys() - {name for name in given if name.endswith("num_batches_tracked")}:
        np.testing.assert_array_equal(back[tensor], given[tensor])
    twice, _ = convert(read_tensors(folder / f"{name}.safetensors", "safetensors"), target)
    jax.tree.map(np.testing.assert_array_equal, variables, twice)
    given = np.load(folder / f"{name}.npz")
    forward = jax.jit(lambda variables, images: build(classes).apply(variables, images, train=False))
    logits = forward(unflatten_dict(variables, sep="/"), given["x"].transpose(0, 2, 3, 1))
    scale = abs(given["y"]).max()
    np.testing.assert_allclose(logits / scale, given["y"] / scale, atol=1e-4, rtol=0)
