"""Runs that begin with weights from a file."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxnet import comm
from jaxnet.config.run import Config, Log
from jaxnet.data import Synthetic
from jaxnet.errors import InputError
from jaxnet.models import CNN, from_linen
from jaxnet.optimizer import Optimizer
from jaxnet.training.initial import initial_values, weights_digest
from jaxnet.training.prepare import prepare
from jaxnet.training.trainer import train as front_door
from jaxnet.weights import WeightsMetadata, write_variables
from support.refusals import says
from support.runs import train

DATA = Synthetic((8, 8, 1), num_classes=2, num_train=32, num_test=16)
MODEL = CNN(2, widths=(4,), hidden=8, norm=True)
CONFIG = Config(
    model=MODEL,
    data=DATA,
    epochs=1,
    batch_size=16,
    eval_batch_size=16,
    optimizer=Optimizer(learning_rate=0.01),
    log=Log(tensorboard=False),
)
HEAD = ("params/dense_1/bias", "params/dense_1/kernel")


def variables_of(model, image=(8, 8, 1), seed=7):
    """Values that no layer starts from."""
    shapes = jax.eval_shape(from_linen(model).init, jax.random.key(0), jax.ShapeDtypeStruct((1, *image), "float32"))
    draw = np.random.default_rng(seed)
    tree = {"params": shapes.params, **shapes.stats}
    return {
        name: draw.uniform(0.1, 0.9, leaf.shape).astype(np.float32)
        for name, leaf in flatten_dict(tree, sep="/").items()
    }


def written(path, values, left_out=()):
    write_variables(path, values, WeightsMetadata("cnn", 2, "torchvision", "cnn.pth", "0" * 64, left_out))
    return str(path)


def evaluated(config, mesh_shape=(2, 4)):
    """By name, what the state before the first step is evaluated by."""
    experiment = prepare(config, comm.make_mesh(mesh_shape[0]), source=DATA.load("train"))
    params, stats = experiment.layout.evaluated(experiment.init())
    return {name: np.asarray(leaf) for name, leaf in flatten_dict({"params": params, **stats}, sep="/").items()}


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


@pytest.mark.parametrize("strategy", ["hierarchical", "xla", "s_caffe_obr", "local_sgd"])
@pytest.mark.parametrize("average", [None, 0.9])
def test_the_first_state_is_the_file(tmp_path, strategy, average):
    values = variables_of(MODEL)
    path = written(tmp_path / "weights.safetensors", values)
    assert_same(evaluated(replace(CONFIG, initial_weights=path, strategy=strategy, average_decay=average)), values)


def test_what_was_left_out_starts_as_it_would_without_the_file(tmp_path):
    values = variables_of(MODEL)
    body = {name: value for name, value in values.items() if name not in HEAD}
    path = written(tmp_path / "weights.safetensors", body, HEAD)
    fresh = evaluated(CONFIG)
    assert_same(evaluated(replace(CONFIG, initial_weights=path)), {**body, **{name: fresh[name] for name in HEAD}})


def test_a_run_says_what_it_begins_with(tmp_path, capsys):
    values = variables_of(MODEL)
    body = {name: value for name, value in values.items() if name not in HEAD}
    path = written(tmp_path / "weights.safetensors", body, HEAD)
    train(replace(CONFIG, initial_weights=path, epochs=0.5), tmp_path / "run")
    line = (
        f"{len(body)} variables begin as those of cnn in {path} (from cnn.pth); at random, because the import left "
        "them out: params/dense_1/bias, params/dense_1/kernel"
    )
    assert line in capsys.readouterr().out.splitlines()
    train(replace(CONFIG, initial_weights=path, epochs=1), tmp_path / "run", allow_config_change=True)
    assert "begin as those of" not in capsys.readouterr().out


def test_colours_are_summed_for_grey_images(tmp_path):
    colour = variables_of(MODEL, image=(8, 8, 3))
    path = written(tmp_path / "weights.safetensors", colour)
    found = evaluated(replace(CONFIG, initial_weights=path))
    kernel = "params/conv_0/kernel"
    np.testing.assert_array_equal(found[kernel], colour[kernel].sum(2, keepdims=True))
    model = from_linen(MODEL)
    grey = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32)
    one, three = (logits_of(model, values, images) for values, images in ((found, grey), (colour, grey.repeat(3, -1))))
    np.testing.assert_allclose(one, three, rtol=1e-5)


def logits_of(model, values, images):
    tree = unflatten_dict(values, sep="/")
    return model.apply(tree.pop("params"), tree, images, train=False, keys=None)[0]


def test_a_run_trains_on_from_the_file_and_a_checkpoint_needs_it_no_more(tmp_path):
    path = tmp_path / "weights.safetensors"
    values = variables_of(MODEL)
    config = replace(CONFIG, initial_weights=written(path, values), optimizer=Optimizer(groups=(("conv_*", 0.0),)))
    half = train(replace(config, epochs=0.5), tmp_path / "run", quiet=True)
    assert half["steps"] == 1
    path.unlink()
    assert train(config, tmp_path / "run", allow_config_change=True, quiet=True)["steps"] == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda values: values.pop("params/conv_0/kernel"), ["params/conv_0/kernel is not in the file"]),
        (lambda values: values.update(extra=np.zeros(1, np.float32)), ["extra is not in the model"]),
        (
            lambda values: values.update({"params/dense_1/bias": np.zeros(5, np.float32)}),
            ["params/dense_1/bias is [5], and [2] in the model", "--new-head"],
        ),
    ],
)
def test_weights_of_another_network_are_refused(tmp_path, change, words):
    values = variables_of(MODEL)
    change(values)
    path = written(tmp_path / "weights.safetensors", values)
    shapes = jax.eval_shape(from_linen(MODEL).init, jax.random.key(0), jax.ShapeDtypeStruct((1, 8, 8, 1), "float32"))
    with pytest.raises(InputError) as refused:
        initial_values(Path(path), shapes)
    says(str(refused.value), [f"initial_weights={path}", *words])


def test_a_state_dict_of_pytorch_is_pointed_to_the_import(tmp_path):
    path = tmp_path / "resnet18.pth"
    path.write_bytes(b"PK\x03\x04" + bytes(40))
    with pytest.raises(InputError, match=rf"{path} is a file of PyTorch; convert it: jaxnet import --from torchvision"):
        evaluated(replace(CONFIG, initial_weights=str(path)))


# ---- From a run ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, and what its last state is evaluated by."""
    workdir = tmp_path_factory.mktemp("trained")
    run = front_door(replace(CONFIG, average_decay=0.5, epochs=2, hosts=2), workdir, quiet=True)
    params, stats = run.experiment.layout.evaluated(run.state)
    return workdir, flatten_dict(jax.device_get({"params": params, **stats}), sep="/")


@pytest.mark.parametrize("strategy", ["hierarchical", "zero"])
def test_a_run_begins_where_another_one_ended(trained, strategy):
    workdir, values = trained
    config = replace(CONFIG, strategy=strategy, seed=5)
    assert_same(evaluated(replace(config, initial_weights=str(workdir))), values)
    assert_same(evaluated(replace(config, initial_weights=str(workdir / "checkpoints/000004"))), values)


def test_a_run_says_which_one_it_goes_on_from(trained, tmp_path, capsys):
    workdir, values = trained
    train(replace(CONFIG, initial_weights=str(workdir)), tmp_path)
    line = f"{len(values)} variables begin as those of {workdir}/checkpoints/000004"
    assert line in capsys.readouterr().out.splitlines()


def test_runs_that_cannot_be_gone_on_from(trained, tmp_path):
    workdir, _ = trained
    with pytest.raises(InputError, match=r"there is no checkpoint in .*: wanted the workdir of a run"):
        evaluated(replace(CONFIG, initial_weights=str(tmp_path)))
    wider = replace(CONFIG, model=MODEL.clone(hidden=16), initial_weights=str(workdir))
    with pytest.raises(InputError, match=r"initial_weights=.*holds other parameters than this model: .*dense_0"):
        evaluated(wider)
    assert weights_digest(str(workdir)) == weights_digest(str(workdir / "checkpoints/000004"))
    assert weights_digest(str(tmp_path)).startswith("there is no checkpoint in")


def test_processes_compare_what_they_read(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    written(one, variables_of(MODEL))
    written(two, variables_of(MODEL, seed=8))
    assert weights_digest(str(one)) != weights_digest(str(two))
    assert weights_digest(str(tmp_path / "absent")) == "No such file or directory"
