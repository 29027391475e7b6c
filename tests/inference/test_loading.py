"""Loading gives the network that the run evaluates; damaged or foreign files are refused, and nothing in them runs."""

import json
import logging
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxnet.checkpoints import manifest
from jaxnet.errors import InputError
from jaxnet.inference import load
from jaxnet.inference.loading import load_network
from support.checkpointing import flip_a_bit, largest_file
from support.odd_files import DEEP, a_socket, loop, pipe
from support.trained import TEST, config, plain_probabilities


@pytest.fixture
def copy(workdir, tmp_path):
    return shutil.copytree(workdir, tmp_path / "copy")


def steps(workdir):
    return sorted(path.name for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())


def rewrite(workdir, change, which=-1):
    """Change what a manifest says, the newest by default, and seal it as its writer would."""
    step = workdir / "checkpoints" / steps(workdir)[which]
    about = manifest.check(step).about
    change(about)
    (step / manifest.NAME).unlink()
    manifest.write(step, about)


@pytest.mark.parametrize("make", [pipe, loop, a_socket])
def test_what_is_neither_a_file_nor_a_directory(make, tmp_path):
    make(tmp_path / "run")
    with pytest.raises(InputError, match=r"run: (not a directory|too many levels of symbolic links); wanted the workd"):
        load(tmp_path / "run")


@pytest.mark.parametrize("make", [pipe, loop])
def test_weights_that_are_no_file_are_not_waited_for(make, tmp_path):
    make(tmp_path / "net.safetensors")
    with pytest.raises(
        InputError, match=r"weights cannot be read from .*net\.safetensors: (it is a pipe|Too many lev)"
    ):
        load(tmp_path / "net.safetensors")


def test_checkpoints_that_cannot_be_listed(copy):
    shutil.rmtree(copy / "checkpoints")
    loop(copy / "checkpoints")
    with pytest.raises(InputError, match=f"there is no checkpoint in {copy}: wanted the workdir of a run"):
        load(copy)


@pytest.mark.parametrize(
    "about", [DEEP, "[]", '{"model": 3, "num_classes": 10, "source": "", "source_file": "", "source_sha256": ""}']
)
def test_metadata_that_import_did_not_write(about, tmp_path):
    save_file({"a": np.zeros(1)}, tmp_path / "net.safetensors", {"about": about})
    with pytest.raises(InputError, match="does not hold variables of jaxnet"):
        load(tmp_path / "net.safetensors")


def test_probabilities_are_those_of_the_evaluated_state(workdir):
    predictor = load(workdir, batch=64)
    np.testing.assert_allclose(predictor(TEST.image), plain_probabilities(config(), workdir), rtol=0, atol=1e-6)
    assert predictor.inputs.class_names == tuple("0123456789")
    accuracy = (predictor(TEST.image).argmax(1) == TEST.label).mean()
    assert accuracy == pytest.approx(json.loads((workdir / "summary.json").read_text())["accuracy"])


def test_averaged_parameters_are_those_that_are_used(workdir):
    averaged, averages = load_network(workdir).weights, read_raw(workdir)
    assert averaged.keys() == averages.keys()
    for name, leaf in averaged.items():
        np.testing.assert_array_equal(leaf, averages[name])


def read_raw(workdir):
    """By the names of a state, every leaf restored."""
    from support.training_runs import arrays

    state = arrays(workdir, int(steps(workdir)[-1]))
    flat = {"params": state["average"], "batch_stats": state["stats"]["batch_stats"]}
    return {"/".join(entry.key for entry in path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(flat)[0]}


def test_a_workdir_its_checkpoints_one_of_them_and_a_step(workdir):
    newest = int(steps(workdir)[-1])
    places = [workdir, workdir / "checkpoints", workdir / "checkpoints" / steps(workdir)[-1]]
    assert {load_network(place).where for place in places} == {str(places[-1])}
    assert load_network(workdir, step=newest).where == str(places[-1])
    assert load_network(workdir, step=int(steps(workdir)[0])).where.endswith(steps(workdir)[0])


def test_the_most_accurate_one(copy):
    rewrite(copy, lambda about: about.update(best=int(steps(copy)[0])), -1)
    assert load_network(copy, best=True).where.endswith(steps(copy)[0])


def test_a_flipped_bit_in_the_newest_is_named_and_the_one_before_is_used(copy, caplog):
    older, newest = steps(copy)
    flip_a_bit(largest_file(copy / "checkpoints" / newest))
    with caplog.at_level(logging.WARNING, "jaxnet"):
        assert load_network(copy).where.endswith(older)
    assert "is not as it was written" in caplog.text
    assert steps(copy) == [older, newest]  # nothing was moved
    with pytest.raises(InputError, match=rf"step {int(newest)}: state/.* is not as it was written.*steps there: "):
        load(copy, step=int(newest))
    flip_a_bit(largest_file(copy / "checkpoints" / older))
    with pytest.raises(InputError, match=r"no checkpoint in .* can be used: "):
        load(copy)


def test_a_directory_that_cannot_be_written_to_is_read(copy):
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted((path, path.stat().st_mtime_ns) for path in copy.rglob("*"))
    load(copy)
    assert sorted((path, path.stat().st_mtime_ns) for path in copy.rglob("*")) == before
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "jaxnet.errors.exit_cleanly", "config_x.Net", 7])
def test_a_class_that_is_not_a_model_of_ours_is_not_even_imported(copy, name, monkeypatch):
    def named(about):
        about["extra"]["config"] |= {"model": name, "model.command": "touch /nowhere"}

    rewrite(copy, named)
    monkeypatch.setattr("importlib.import_module", lambda *_: pytest.fail("imported"))
    with pytest.raises(InputError, match=r"its model is .* not of jaxnet and is not loaded; .*--config FILE"):
        load(copy)


def test_the_config_beside_the_checkpoints_is_not_believed(copy):
    (copy / "config.json").write_text(json.dumps({"model": "os.system"}))
    load(copy)  # what counts is sealed with the checkpoint


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "model.hidden",
            17,
            r"holds other parameters than this model: .*dense_0/bias is float32\[16\], not float32\[17",
        ),
        ("model.hidden", "many", "its model, jaxnet.models.cnn.CNN, cannot be made again"),
        ("model.smooth", "yes", "model.smooth is 'yes', wanted true or false"),
        ("model.nothing", 1, "cannot be made again: .*nothing"),
        ("model.widths", [4] * 9, "the network cannot be built: images of 8x8 are too small"),
        ("model.convs", 10**7, "cannot be made again: convs must be 1 to 1000 layers in all, because each is traced"),
        ("task.pixels.size", 10**6, "task.pixels.size is 1000000, wanted 1 to 65535, the longest side of a JPEG file"),
        ("task.pixels", "os.environ", "its task.pixels is 'os.environ', which is not of jaxnet"),
    ],
)
def test_settings_that_are_wrong_are_one_message(copy, key, value, words):
    rewrite(copy, lambda about: about["extra"]["config"].update({key: value}))
    with pytest.raises(InputError, match=words):
        load(copy)


def test_a_run_that_saved_no_inputs_asks_its_data_set(copy):
    rewrite(copy, lambda about: about["extra"].pop("inputs"))
    assert load(copy).inputs.image_shape == (8, 8, 1)


def test_a_checkpoint_of_another_program(copy):
    rewrite(copy, lambda about: about["extra"].clear())
    with pytest.raises(InputError, match=r"holds no checkpoint of train.py: KeyError"):
        load(copy)


@pytest.mark.parametrize(
    "wrong",
    [
        {"image_shape": [8, "8"]},
        {"image_shape": [0, 8, 1]},
        {"image_shape": [8, 8, 0]},
        {"image_shape": [8, 10**9, 1]},
        {"num_classes": -3},
        {"num_classes": 10**18},
    ],
    ids=str,
)
def test_inputs_that_are_none(copy, wrong):
    rewrite(copy, lambda about: about["extra"]["inputs"].update(wrong))
    with pytest.raises(InputError, match=r"wanted \(height, width, channels\)"):
        load(copy)


def test_a_run_from_before_there_were_tasks(copy, workdir):
    def as_then(about):
        settings = about["extra"]["config"]
        del settings["task"]
        for key in [key for key in settings if key.startswith("task.")]:
            settings[key.removeprefix("task.")] = settings.pop(key)

    rewrite(copy, as_then)
    np.testing.assert_array_equal(load(copy)(TEST.image[:5]), load(workdir)(TEST.image[:5]))


OWN = """
from dataclasses import replace

from jaxnet.models import CNN
from support.trained import config

class Net(CNN):
    pass

def get_config():
    return replace(config(), model=Net(10, widths=(4, 8), hidden=16, norm=True))
"""


def test_a_model_of_ones_own_is_loaded_by_its_config(copy, workdir, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    rewrite(copy, lambda about: about["extra"]["config"].update(model="config_own.Net"))
    with pytest.raises(InputError, match="--config FILE"):
        load(copy)
    given = load(copy, config=tmp_path / "own.py")
    np.testing.assert_array_equal(given(TEST.image[:5]), load(workdir)(TEST.image[:5]))


def test_a_config_that_is_no_file_is_not_taken_for_a_fault_of_the_checkpoint(workdir):
    with pytest.raises(InputError, match=r"^config Config\(.*: wanted the name of a Python file"):
        load(workdir, config=config())


def test_a_config_gives_classes_and_the_run_its_values(copy, workdir, tmp_path):
    """What an override of the command line changed is in the checkpoint, and not in the file."""
    other = OWN.replace("hidden=16", "hidden=3").replace(
        "config(),", "config(), task=ImageClassification(Pixels((0.9,), (0.1,))),"
    )
    (tmp_path / "own.py").write_text("from jaxnet import ImageClassification, Pixels\n" + other)
    rewrite(copy, lambda about: about["extra"]["config"].update(model="config_own.Net"))
    given = load(copy, config=tmp_path / "own.py")
    np.testing.assert_array_equal(given(TEST.image[:5]), load(workdir)(TEST.image[:5]))


def test_a_dtype_of_choice(workdir):
    exact, network = load(workdir)(TEST.image), load_network(workdir, dtype="bfloat16")
    assert {leaf.dtype.name for name, leaf in network.weights.items() if name.startswith("params/")} == {"bfloat16"}
    coarse = load(workdir, dtype="bfloat16")(TEST.image)
    assert coarse.dtype == np.float32
    assert 0 < np.abs(coarse - exact).max() < 0.05
    with pytest.raises(InputError, match="dtype int8: wanted one of float32"):
        load(workdir, dtype="int8")


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("nowhere", {}, "nowhere: no such file or directory; wanted the workdir of a run"),
        (".", {}, "there is no checkpoint in .*: wanted the workdir"),
        ("run", {"step": 7}, "checkpoint step 7 is not in .*; steps there: [0-9]+, [0-9]+"),
        ("run", {"step": 7, "best": True}, "step 7 and the best: wanted one of them"),
        ("run", {"model": "alexnet"}, "model alexnet: a run says itself what it trained"),
        ("text", {}, "text.json, which `jaxnet export` writes beside a program, cannot be read"),
        ("no.safetensors", {}, "no.safetensors"),
    ],
)
def test_what_cannot_be_found_is_one_message(workdir, tmp_path, path, options, words):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match=words):
        load(workdir if path == "run" else tmp_path / path, **options)
