"""An exported network gives what the predictor gives, and JAX alone runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jax import export as jax_export

from jaxnet.cli.main import run
from jaxnet.data import Inputs
from jaxnet.errors import InputError
from jaxnet.inference import load
from jaxnet.inference.export import description_path, export, weights_path
from jaxnet.inference.loading import load_network
from jaxnet.inference.network import Architecture
from jaxnet.models.zoo import ZOO
from jaxnet.tasks import ImageClassification
from jaxnet.weights import Target, convert, file_digest, read_tensors, target_of
from jaxnet.weights.files import read_safetensors
from support.checkpointing import flip_a_bit
from support.disks import files_no_longer_than
from support.odd_files import DEEP, ODD, directory, loop, pipe, to_a_device
from support.programs import clean_environment
from support.refusals import refused, says
from support.trained import TEST

IMAGES = TEST.image[:11]

ALONE = """
import pathlib, sys
import jax, numpy as np
from jax import export
program, images, out, *weights = sys.argv[1:]
arguments = [np.load(images)]
if weights:
    import safetensors.numpy
    arguments.insert(0, safetensors.numpy.load_file(weights[0]))
call = export.deserialize(bytearray(pathlib.Path(program).read_bytes())).call
np.save(out, call(*arguments))
assert not [name for name in sys.modules if name.split('.')[0] in ('flax', 'jaxnet')]
"""


@pytest.fixture(scope="module")
def network(workdir):
    return load_network(workdir)


@pytest.fixture(scope="module")
def expected(workdir):
    return load(workdir)(IMAGES)


@pytest.mark.parametrize("separate", [False, True], ids=["inside", "separate"])
def test_jax_alone_runs_it(network, expected, tmp_path, separate):
    out = tmp_path / "net.stablehlo"
    written = export(network, out, separate_weights=separate)
    assert sorted(tmp_path.iterdir()) == sorted(written)
    np.save(tmp_path / "images.npy", IMAGES)
    command = [sys.executable, "-c", ALONE, out, tmp_path / "images.npy", tmp_path / "out.npy"]
    done = subprocess.run(
        [*command, *([weights_path(out)] * separate)],
        env=clean_environment(PYTHONPATH=""),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("separate", [False, True], ids=["inside", "separate"])
def test_the_predictor_runs_it(network, expected, tmp_path, batch, separate):
    out = tmp_path / "net"
    export(network, out, batch=batch, separate_weights=separate, platforms=("cpu",))
    predictor = load(out, batch=16)
    assert predictor.inputs == network.architecture.inputs
    assert predictor.sizes == ((4,) if batch else (1, 2, 4, 8, 16))
    np.testing.assert_allclose(predictor(IMAGES), expected, rtol=0, atol=1e-6)


def test_in_bfloat16(workdir, tmp_path):
    export(load_network(workdir, dtype="bfloat16"), tmp_path / "net", separate_weights=True, platforms=("cpu",))
    np.testing.assert_allclose(load(tmp_path / "net")(IMAGES), load(workdir, dtype="bfloat16")(IMAGES), atol=1e-2)


@pytest.fixture
def exported(network, tmp_path):
    out = tmp_path / "net"
    export(network, out, separate_weights=True, platforms=("cpu",))
    return out


def test_a_flipped_bit_is_refused(exported):
    for path in (exported, weights_path(exported)):
        whole = path.read_bytes()
        flip_a_bit(path)
        with pytest.raises(InputError, match=f"{path} is not as it was written"):
            load(exported)
        path.write_bytes(whole)
    load(exported)


def test_a_file_without_an_end_is_refused_before_it_is_read(exported, monkeypatch):
    os.truncate(weights_path(exported), 1 << 40)
    monkeypatch.setattr("jaxnet.inference.export.file_digest", lambda path: {exported: file_digest(exported)}[path])
    with pytest.raises(InputError, match="it has 1,099,511,627,776 bytes, its description says "):
        load(exported)


def test_a_description_from_before_sizes_were_said(exported):
    about = json.loads(description_path(exported).read_text())
    description_path(exported).write_text(json.dumps({key: about[key] for key in about if "bytes" not in key}))
    load(exported)


def test_what_is_missing_is_named(exported):
    weights_path(exported).unlink()
    with pytest.raises(InputError, match=r"net.weights.safetensors cannot be read: No such file"):
        load(exported)


@pytest.mark.parametrize("text", ["[]", "{", '{"format": "other"}', "\udcff", DEEP])
def test_a_description_that_is_none(exported, text):
    description_path(exported).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"net.json (is damaged|does not describe)"):
        load(exported)


def test_another_platform(network, tmp_path):
    export(network, tmp_path / "net", platforms=("tpu",))
    with pytest.raises(InputError, match="is for tpu; JAX has cpu here"):
        load(tmp_path / "net")


def test_a_program_of_a_newer_jax_is_one_message(exported, monkeypatch):
    def fail(_):
        raise RuntimeError("INVALID_ARGUMENT: Failed to deserialize StableHLO")

    monkeypatch.setattr(jax_export.Exported, "mlir_module", fail)
    with pytest.raises(InputError, match=r"was written with JAX [\d.]+, and JAX [\d.]+ cannot read it"):
        load(exported)


def test_choices_are_for_checkpoints(exported):
    with pytest.raises(InputError, match="is a program: leave out step"):
        load(exported, dtype="bfloat16")


def test_where_nothing_can_be_written(network, tmp_path):
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        export(network, tmp_path / "no" / "net")


@pytest.mark.parametrize("make", [pipe, directory, loop, to_a_device])
@pytest.mark.parametrize("place", [Path, weights_path, description_path], ids=["program", "weights", "description"])
def test_nothing_but_a_file_is_replaced(network, exported, place, make):
    """Before anything is computed or deleted."""
    odd = place(exported)
    odd.unlink()
    make(odd)
    before = {path: path.lstat() for path in exported.parent.iterdir()}
    with pytest.raises(InputError, match=f"^{odd} cannot be written: it is .*, wanted a file or nothing there; give"):
        export(network, exported, separate_weights=True, platforms=("cpu",))
    assert {path: path.lstat() for path in exported.parent.iterdir()} == before


@pytest.mark.parametrize("name", ["net", "net.json"])
def test_a_link_beside_the_program_leads_nowhere(network, tmp_path, name):
    """What was written first had a name that could be foreseen."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / f"{name}.tmp").symlink_to("victim")
    export(network, tmp_path / "net", separate_weights=True, platforms=("cpu",))
    assert (tmp_path / "victim").read_text() == "precious"


def test_of_a_full_disk_nothing_is_left(network, tmp_path):
    with files_no_longer_than(1000), pytest.raises(InputError, match="net cannot be written: File too large"):
        export(network, tmp_path / "net", platforms=("cpu",))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changed",
    [
        *({"batch": "4"}, {"batch": 0}, {"jax": None}, {"sha256": 3}, {"weights_sha256": []}, {"inputs": 3}),
        *(
            {"inputs": {}},
            {"inputs": {"image_shape": 3, "class_names": []}},
            {"inputs": None, "example": {"a": "x[y]"}},
        ),
    ],
)
def test_a_description_of_other_types(exported, changed):
    about = json.loads(description_path(exported).read_text())
    description_path(exported).write_text(json.dumps({**about, **changed}))
    with pytest.raises(InputError):
        load(exported)


@pytest.mark.parametrize("make", ODD)
def test_what_stands_for_a_description(exported, make):
    description_path(exported).unlink()
    make(description_path(exported))
    with pytest.raises(InputError, match=r"net\.json, which .* cannot be read: ."):
        load(exported)


def test_what_stands_for_the_weights_is_not_waited_for(exported):
    weights_path(exported).unlink()
    pipe(weights_path(exported))
    with pytest.raises(InputError, match=r"net\.weights\.safetensors cannot be read: it is a pipe, wanted a file"):
        load(exported)


def test_a_program_that_is_none(exported):
    exported.write_bytes(b"rubbish")
    about = json.loads(description_path(exported).read_text())
    description_path(exported).write_text(json.dumps({**about, "sha256": file_digest(exported), "bytes": 7}))
    with pytest.raises(InputError, match="cannot read it: export it"):
        load(exported)


def test_an_old_description_never_stands_beside_a_new_program(network, exported, monkeypatch):
    monkeypatch.setattr("jaxnet.inference.export.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(InputError, match="disk full"):
        export(network, exported, platforms=("cpu",))
    assert not description_path(exported).exists()
    with pytest.raises(InputError, match=r"net\.json"):
        load(exported)


def test_the_description_says_what_it_takes(exported):
    about = json.loads(description_path(exported).read_text())
    assert about["inputs"]["image_shape"] == [8, 8, 1]
    assert (about["batch"], about["platforms"]) == (None, ["cpu"])


def test_weights_alone_as_pytorch_has_them(network, workdir, tmp_path, capsys):
    out = tmp_path / "net.safetensors"
    assert run(["export", str(workdir), "--out", str(out)]) == 0
    tensors, metadata = read_safetensors(out)
    assert metadata == {"format": "pt"}
    assert capsys.readouterr().out == f"{out}  {len(tensors)} tensors, {out.stat().st_size:,} bytes\n"
    assert len(tensors) == len(network.weights)
    target = Target(
        {name: leaf.shape for name, leaf in network.weights.items()}, frozenset(), network.architecture.maps
    )
    assert target.maps
    again, report = convert(read_tensors(out, "safetensors"), target)
    assert report.unmatched == 0
    for name, leaf in network.weights.items():
        np.testing.assert_array_equal(again[name], leaf)


def test_what_is_for_programs_is_not_for_weights(workdir, tmp_path, capsys):
    asked = ["export", str(workdir), "--out", f"{tmp_path}/a.safetensors", "--platforms", "cpu"]
    says(refused(lambda: run(asked), capsys), ["--platforms is for a program", "a.safetensors gets weights alone"])


@pytest.mark.parametrize("name", ["vgg11_bn", "googlenet_bn"])
def test_the_maps_that_a_network_flattens_are_those_of_an_import(name):
    entry = ZOO[name]
    build = lambda classes: entry.build(num_classes=classes, width=0.0625)  # noqa: E731
    architecture = Architecture(build(10), ImageClassification(), Inputs(entry.image, 10))
    assert architecture.maps == target_of(build, 10, entry.image).maps != {}
