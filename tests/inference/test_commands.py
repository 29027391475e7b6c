"""`jaxnet predict` and `jaxnet export` as a user starts them: lines, JSON, statuses, mistakes."""

import io
import json
import os
import subprocess
import sys

import pytest

from jaxnet import inference
from jaxnet.cli.main import run as jaxnet
from jaxnet.data import Inputs
from jaxnet.inference.predictor import Predictor
from support.programs import clean_environment
from support.refusals import every, refused, says
from support.trained import TEST, write_digits


@pytest.fixture
def pictures(tmp_path):
    (tmp_path / "pictures" / "below").mkdir(parents=True)
    paths = write_digits(tmp_path / "pictures", 3)
    paths[2].rename(tmp_path / "pictures" / "below" / "2.PNG")
    return tmp_path / "pictures"


def objects(out):
    return [json.loads(line) for line in out.splitlines()]


def test_a_directory_as_json(workdir, pictures, capsys):
    assert jaxnet(["predict", str(workdir), str(pictures), "--json", "--top-k", "3"]) == 0
    made = objects(capsys.readouterr().out)
    assert [each["path"] for each in made] == [str(pictures / name) for name in ("0.png", "1.png", "below/2.PNG")]
    for each in made:
        assert len(each["labels"]) == len(each["probabilities"]) == 3
        assert set(each["labels"]) <= set("0123456789")
        assert each["probabilities"] == sorted(each["probabilities"], reverse=True)


def test_lines_for_people(workdir, pictures, capsys):
    assert jaxnet(["predict", str(workdir), str(pictures / "0.png"), "--top-k", "1"]) == 0
    path, label, percent = capsys.readouterr().out.split(" ")
    assert (path, label in "0123456789", percent[-2:]) == (f"{pictures / '0.png'}:", True, "%\n")


def test_a_damaged_file_is_an_object_and_status_1(workdir, pictures, capsys):
    (pictures / "0.png").write_bytes(b"")
    arguments = [str(workdir), str(pictures), str(pictures / "none.jpg")]
    assert jaxnet(["predict", *arguments, "--json"]) == 1
    made = objects(capsys.readouterr().out)
    assert [each.get("error") for each in made] == ["it is empty", None, None, "No such file or directory"]
    assert jaxnet(["predict", *arguments]) == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert printed.err.splitlines() == [
        f"error: {pictures / '0.png'}: it is empty",
        f"error: {pictures / 'none.jpg'}: No such file or directory",
    ]


def test_paths_from_stdin_whatever_their_bytes(workdir, pictures, capsys, monkeypatch):
    odd = os.fsencode(pictures) + b"/odd \xff\n.png".replace(b"\n", b"_")
    os.rename(pictures / "1.png", odd)  # noqa: PTH104
    given = io.TextIOWrapper(io.BytesIO(odd + b"\n" + os.fsencode(pictures / "0.png") + b"\n"))
    monkeypatch.setattr(sys, "stdin", given)
    assert jaxnet(["predict", str(workdir), "-", "--json"]) == 0
    assert os.fsencode(objects(capsys.readouterr().out)[0]["path"]) == odd
    assert jaxnet(["predict", str(workdir), os.fsdecode(odd)]) == 0
    assert "odd \\xff_.png: " in capsys.readouterr().out


@pytest.mark.parametrize("given", [b"a.png\0b.png\0", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0"])
def test_bytes_on_stdin_that_are_no_paths_are_refused(given, workdir, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    words = ["-: stdin holds other bytes than paths of images: wanted one path a line"]
    says(refused(lambda: jaxnet(["predict", str(workdir), "-"]), capsys), words)


def test_paths_from_where_one_stands(workdir, pictures, tmp_path, capsys, monkeypatch):
    """As in the README: `jaxnet predict runs/digits photos/`."""
    monkeypatch.chdir(workdir.parent)
    there = os.path.relpath(pictures)
    assert jaxnet(["predict", workdir.name, there, "--json"]) == 0
    assert jaxnet(["export", workdir.name, "--out", os.path.relpath(tmp_path / "net.stablehlo")]) == 0
    capsys.readouterr()
    assert jaxnet(["predict", os.path.relpath(tmp_path / "net.stablehlo"), there, "--json"]) == 0
    assert len(objects(capsys.readouterr().out)) == 3
    monkeypatch.chdir(workdir / "checkpoints")
    step = max(path.name for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())
    assert jaxnet(["predict", step, str(pictures)]) == 0
    assert jaxnet(["predict", ".", str(pictures)]) == 0


def test_names_of_ones_own(workdir, pictures, tmp_path, capsys):
    names = "\n".join(f"digit {label}" for label in range(10))
    (tmp_path / "names").write_text(names, encoding="utf-8-sig")  # as spreadsheets write it
    assert jaxnet(["predict", str(workdir), str(pictures), "--labels", str(tmp_path / "names"), "--json"]) == 0
    assert all(label.startswith("digit ") for each in objects(capsys.readouterr().out) for label in each["labels"])


def test_an_exported_network_says_the_same(workdir, pictures, tmp_path, capsys):
    assert jaxnet(["predict", str(workdir), str(pictures), "--json"]) == 0
    plain = objects(capsys.readouterr().out)
    out = str(tmp_path / "digits.stablehlo")
    assert jaxnet(["export", str(workdir), "--out", out, "--weights", "separate", "--platforms", "cpu"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        out,
        f"{out}.weights.safetensors",
        f"{out}.json",
    ]
    assert jaxnet(["predict", out, str(pictures), "--json"]) == 0
    for before, after in zip(plain, objects(capsys.readouterr().out), strict=True):
        assert before["labels"] == after["labels"]
        assert before["probabilities"] == pytest.approx(after["probabilities"], abs=1e-6)


def test_in_a_process_of_its_own_whose_reader_leaves(workdir, pictures):
    command = [sys.executable, "-m", "jaxnet", "predict", str(workdir), *[str(pictures)] * 40]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(os.fsencode(pictures))
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


WRONG = {
    "nothing": ("predict", "the following arguments are required: TRAINED, INPUT"),
    "no images": ("predict RUN", "the following arguments are required: INPUT"),
    "nowhere": ("predict nowhere a.png", "nowhere: no such file or directory; wanted the workdir of a run"),
    "empty directory": ("predict RUN EMPTY", "there is no JPEG or PNG file in "),
    "step": ("predict RUN a.png --step 3", "checkpoint step 3 is not in "),
    "both": ("predict RUN a.png --step 3 --best", "--best: not allowed with argument --step"),
    "labels": ("predict RUN a.png --labels nowhere", "--labels nowhere cannot be read"),
    "few labels": ("predict RUN a.png --labels FEW", "has 2 lines, and there are 10 classes"),
    "top": ("predict RUN a.png --top-k 0", "--top-k: '0' must be a whole number of at least 1"),
    "dtype": ("predict RUN a.png --dtype int8", "dtype int8: wanted one of float32"),
    "config": ("predict RUN a.png --config no.py", "no such file"),
    "of PyTorch": ("predict TORCH a.png", "Weights of PyTorch are taken by `jaxnet import --from torchvision "),
    "where to": ("export RUN", "the following arguments are required: --out"),
    "unwritable": ("export RUN --out no/where", "no/where cannot be written: No such file or directory"),
    "platform": ("export RUN --out a --platforms cpu,gpu", "--platforms: 'gpu' must be cpu, cuda or tpu"),
}


@every(WRONG)
def test_a_mistake_is_one_line(given, words, workdir, tmp_path, capsys):
    (tmp_path / "few").write_text("a\nb\n")
    (tmp_path / "empty").mkdir()
    places = {"RUN": str(workdir), "EMPTY": str(tmp_path / "empty"), "FEW": str(tmp_path / "few")}
    (tmp_path / "a.pth").write_bytes(b"PK")
    places["TORCH"] = str(tmp_path / "a.pth")
    says(refused(lambda: jaxnet([places.get(word, word) for word in given.split()]), capsys), words)


def test_images_of_other_channels_than_files_have_are_refused_before_any_is_read(workdir, monkeypatch, capsys):
    five = Predictor(None, Inputs((8, 8, 5), 10), (1,), "somewhere")
    monkeypatch.setattr(inference, "load", lambda *_, **__: five)
    message = refused(lambda: jaxnet(["predict", str(workdir), "a.png"]), capsys)
    says(message, ["takes images of 5 channels, and files give 1, 2, 3, 4"])


def test_it_is_as_accurate_as_the_run(workdir, tmp_path, capsys):
    paths = write_digits(tmp_path, 40)
    assert jaxnet(["predict", str(workdir), *map(str, paths), "--json", "--top-k", "1"]) == 0
    from jaxnet.inference import load

    expected = load(workdir)(TEST.image[:40]).argmax(1)
    assert [int(each["labels"][0]) for each in objects(capsys.readouterr().out)] == expected.tolist()
