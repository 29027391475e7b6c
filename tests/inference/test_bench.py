"""`jaxnet bench inference`: a table, JSON, a picture, and mistakes in one line."""

import json

import pytest

from jaxnet.cli.main import run
from jaxnet.inference.network import DTYPES
from jaxnet.models.zoo import ZOO
from support.refusals import every, refused, says

TINY = ["bench", "inference", "--model", "cifar10_quick", "--width", "0.125", "--iterations", "3"]

WRONG = {
    "no model": ("bench inference", "the following arguments are required: --model"),
    "model": (
        "bench inference --model alexnett",
        "--model alexnett: there is no such network; did you mean 'alexnet'?",
    ),
    "batch": ("bench inference --model lstm --batch 1,x", "--batch: 'x' must be a whole number of at least 1"),
    "dtype": ("bench inference --model lstm --dtype int8", f"dtype int8: wanted one of {', '.join(DTYPES)}"),
    "width": ("bench inference --model lstm --width 0", "--width: '0' must be a number above 0, up to 16"),
    "image": ("bench inference --model alexnet --image 9", "--model alexnet --image 9: the network cannot be built"),
    "picture": ("bench inference --model lstm --png a.svg", "--png: 'a.svg' must end in .png"),
}


@every(WRONG)
def test_a_mistake_is_one_line(given, words, capsys):
    says(refused(lambda: run(given.split()), capsys), words)


def test_a_table_and_a_picture(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    assert run([*TINY, "--batch", "4,1,4", "--png", str(tmp_path / "a.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cifar10_quick on cpu, 32x32x3 images, float32, width 0.125; 3 calls of each size")
    assert [line.split()[0] for line in lines[2:]] == ["batch", "1", "4"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_json_counts_parameters_in_their_dtype(capsys):
    assert run([*TINY, "--batch", "2", "--image", "16", "--dtype", "bfloat16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["image_shape"] == [16, 16, 3]
    assert found["parameter_bytes"] == 2 * found["parameters"] < 2 * ZOO["cifar10_quick"].parameters
    [row] = found["rows"]
    assert row["batch"] == 2
    assert 0 < row["min_ms"] <= row["p50_ms"] <= row["p99_ms"]
    assert row["images_per_second"] == pytest.approx(2000 / row["p50_ms"], rel=10)
    assert row["compile_seconds"] > 0
