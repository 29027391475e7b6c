"""`jaxnet import`: what it writes, what it reports, and that it writes nothing where names do not match."""

import hashlib
import json
import os
import pickle

import numpy as np
import pytest
import safetensors.numpy

from jaxnet.cli.main import run
from jaxnet.errors import InputError, exit_cleanly
from jaxnet.models.zoo import ZOO
from jaxnet.weights import read_variables, target_of
from jaxnet.weights.convert import torch_shape
from jaxnet.weights.names import tensor_name, variable_name
from support.refusals import says
from support.state_dicts import archive, state_dict

NAME = "cifar10_quick"


@pytest.fixture(scope="module")
def tensors():
    entry = ZOO[NAME]
    target = target_of(lambda classes: entry.build(num_classes=classes), entry.classes, entry.image)
    draw = np.random.default_rng(0)
    return {
        tensor_name(name): draw.normal(size=torch_shape(name, shape)).astype(np.float32)
        for name, shape in target.shapes.items()
    }


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.safetensors"


def saved(folder, tensors):
    path = folder / "weights.pth"
    path.write_bytes(state_dict(tensors))
    return path


def imported(path, out, *options, source="torchvision", model=NAME):
    return run(["import", "--from", source, str(path), "--model", model, "--out", str(out), *options])


def refused(capsys, path, out, *options, **choice):
    """The message; nothing may have been written."""

    before = sorted(path.parent.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        exit_cleanly(lambda: imported(path, out, *options, **choice))
    assert ended.value.code == 2
    assert sorted(path.parent.rglob("*")) == before
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("error: "), printed.out


def test_the_file_has_flat_names_and_says_what_it_is_of(tmp_path, tensors, out, capsys):
    path = saved(tmp_path, tensors)
    assert imported(path, out) == 0
    with safetensors.safe_open(out, "np") as file:
        names, metadata = set(file.keys()), file.metadata()
    assert {"params/conv1/kernel", "params/ip1/bias"} <= names
    about = json.loads(metadata["about"])
    assert about["model"] == NAME
    assert about["source"] == "torchvision"
    assert about["source_file"] == "weights.pth"
    assert about["source_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert about["left_out"] == []
    variables, _ = read_variables(out)
    np.testing.assert_array_equal(variables["params/conv1/kernel"], tensors["conv1.weight"].transpose(2, 3, 1, 0))
    assert f"{len(tensors)} variables converted" in capsys.readouterr().out


def test_formats_and_prefixes_make_no_difference(tmp_path, tensors, out):
    assert imported(saved(tmp_path, tensors), out) == 0
    for prefix in ("", "module.", "module._orig_mod.", "_orig_mod.module.", "_orig_mod.module._orig_mod."):
        path, other = tmp_path / "weights.safetensors", tmp_path / "other.safetensors"
        safetensors.numpy.save_file({prefix + name: tensor for name, tensor in tensors.items()}, path)
        assert imported(path, other, source="safetensors") == 0
        one, two = read_variables(out)[0], read_variables(other)[0]
        assert one.keys() == two.keys()
        assert all((one[name] == two[name]).all() for name in one)


def test_a_safetensors_file_may_begin_with_any_byte(tmp_path, tensors, out):
    path = tmp_path / "weights.safetensors"
    for padding in range(0, 256, 8):  # the file begins with the length of its header, a multiple of 8
        safetensors.numpy.save_file(tensors, path, {"padding": "-" * padding})
        if path.read_bytes()[:1] == b"\x80":  # as a pickle
            break
    assert path.read_bytes()[:1] == b"\x80"
    assert imported(path, out, source="safetensors") == 0
    assert read_variables(out)[0].keys() == {variable_name(name, tensor.ndim) for name, tensor in tensors.items()}


def test_nothing_is_written_where_names_do_not_match_unless_told(tmp_path, tensors, out, capsys):
    renamed = {"conv9.bias" if name == "conv1.bias" else name: tensor for name, tensor in tensors.items()}
    path = saved(tmp_path, renamed)
    message, report = refused(capsys, path, out)
    says(message, ["2 names", "nothing was written", "--allow-unmatched"])
    says(report, ["missing in the file: 1", "  conv1.bias", "without a place in the model: 1", "  conv9.bias"])
    assert imported(path, out, "--allow-unmatched") == 0
    variables, about = read_variables(out)
    assert about.left_out == ["params/conv1/bias"]
    assert "params/conv1/bias" not in variables


def test_another_number_of_classes(tmp_path, tensors, out, capsys):
    few = {**tensors, "ip2.weight": tensors["ip2.weight"][:4], "ip2.bias": tensors["ip2.bias"][:4]}
    path = saved(tmp_path, few)
    message, report = refused(capsys, path, out)
    says(message, ["has 4 classes", "--num-classes 4", "--new-head"])
    says(report, ["ip2.weight is [4, 64], wanted [10, 64]"])
    assert imported(path, out, "--num-classes", "4") == 0
    assert read_variables(out)[1].num_classes == 4
    assert imported(path, out, "--new-head") == 0
    assert read_variables(out)[1].left_out == ["params/ip2/bias", "params/ip2/kernel"]


def test_mean_and_std_are_kept_and_a_net_with_two_recipes_has_a_note(tmp_path, tensors, out, capsys, monkeypatch):
    path = saved(tmp_path, tensors)
    assert imported(path, out) == 0
    assert read_variables(out)[1][-2:] == (None, None)
    assert "note" not in capsys.readouterr().out
    assert imported(path, out, "--mean", "0.5", "--std", "0.2,0.3,0.4") == 0
    assert read_variables(out)[1][-2:] == ([0.5], [0.2, 0.3, 0.4])
    says(capsys.readouterr().out, ["note: predict and export", "task.pixels.mean=0.5 task.pixels.std=0.2,0.3,0.4"])
    monkeypatch.setitem(ZOO, "vit_tiny", ZOO[NAME])
    assert imported(path, out, source="timm", model="vit_tiny") == 0
    says(capsys.readouterr().out, ["note: predict and export", "ImageNet's", "DeiT", "augreg", "--mean 0.5 --std 0.5"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mean", "0.5"), ["--std is missing: wanted --mean and --std"]),
        (("--mean", "0.5", "--std", "half"), ["--std=half", "a number"]),
        (("--mean", "0.5", "--std", "0"), ["std is (0.0,): wanted one number above 0"]),
        (("--mean", "0.5,0.5", "--std", "0.5"), ["mean is (0.5, 0.5): wanted one number of 0 to 1, or one for"]),
        (("--mean", "127", "--std", "58"), ["mean is (127.0,): wanted one number of 0 to 1"]),
    ],
    ids=["alone", "text", "zero", "two", "of bytes"],
)
def test_a_mean_and_std_that_cannot_be(tmp_path, tensors, out, capsys, options, words):
    says(refused(capsys, saved(tmp_path, tensors), out, *options)[0], words)


class Attack:
    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return os.system, (f"touch '{self.flag}'",)


def test_a_file_that_would_run_a_command_is_refused(tmp_path, out, capsys):
    path, flag = tmp_path / "weights.pth", tmp_path / "executed"
    path.write_bytes(archive(pickle.dumps({"conv1.weight": Attack(flag)}, 2), {}))
    message, _ = refused(capsys, path, out)
    says(message, ["would call", "system", "nothing of it was executed"])
    assert not flag.exists()


def test_what_cannot_be_imported(tmp_path, tensors, out, capsys):
    path = saved(tmp_path, tensors)
    says(refused(capsys, path, out, model="cifar10_quik")[0], ["did you mean 'cifar10_quick'?"])
    says(refused(capsys, path, out, model="alexnet")[0], ["no tensor", "alexnet"])
    says(refused(capsys, path, out, source="safetensors")[0], ["is a file of PyTorch", "--from torchvision"])
    says(refused(capsys, path, out, source="caffe")[0], ["invalid choice"])
    says(refused(capsys, tmp_path / "absent.pth", out)[0], ["absent.pth", "No such file"])
    says(refused(capsys, tmp_path, out)[0], ["weights cannot be read", "directory"])
    says(refused(capsys, path, path)[0], ["is the file to read"])
    says(refused(capsys, path, tmp_path / "absent" / "out.safetensors")[0], ["there is no directory"])
    says(refused(capsys, path, tmp_path / "weights")[0], ["wanted a file name that ends in .safetensors"])
    (tmp_path / "text.safetensors").write_text("hello")
    says(refused(capsys, tmp_path / "text.safetensors", out)[0], ["text.safetensors", "neither"])


def test_names_that_would_change_a_terminal_are_refused(tmp_path, tensors, out, capsys):
    path = saved(tmp_path, {**tensors, "\x1b[2Jconv": tensors["conv1.bias"]})
    message, printed = refused(capsys, path, out)
    assert "\x1b" not in message + printed
    says(message, ["\\x1b[2Jconv", "printable"])


def test_a_file_that_import_did_not_write_is_no_file_of_variables(tmp_path, tensors):
    path = tmp_path / "weights.safetensors"
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(InputError, match="jaxnet import --from safetensors"):
        read_variables(path)
    for absent in (tmp_path / "absent", tmp_path):
        with pytest.raises(InputError, match=f"cannot be read from {absent}: .* directory.*; `jaxnet import`"):
            read_variables(absent)
