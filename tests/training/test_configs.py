"""The configs that come along: each loads from anywhere, and its parts fit, without the data and without an array."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.config.file import load_config
from jaxnet.config.fit import check_fit, check_model
from jaxnet.data import example_shapes
from jaxnet.models import Heads, abstract_variables
from jaxnet.optimizer import learning_rate
from jaxnet.training.network import as_model, model_inputs
from jaxnet.training.resolutions import check_resolutions, phases_of
from support.programs import ROOT

IMAGENET = sorted(path.stem for path in (ROOT / "configs").glob("imagenet_*.py"))
EXAMPLES = 1_281_167
# Learning rates at the start, at their peak and at the end.
RATES = {
    "imagenet_alexnet": (0.01, 0.01, 1e-6),
    "imagenet_googlenet": (0.01, 0.01, 6.45e-6),
    "imagenet_inception_v3": (0.045, 0.045, 0.045 * 0.94**49),
    "imagenet_resnet50": (0.0, 0.1, 1e-4),
    "imagenet_resnet50_batch8192": (0.1, 3.2, 3.2e-3),
    "imagenet_resnet50_fast": (0.0, 1.7, 3.88e-4),
    "imagenet_resnet50_lars32k": (0.0, 31.2, 0.0),
    "imagenet_vgg16": (0.01, 0.01, 1e-5),
}


@dataclasses.dataclass(frozen=True)
class Stand:
    """What the data would be, as far as configs are checked against it."""

    image_shape: tuple[int, int, int]
    num_classes: int = 1000
    num_examples: int = EXAMPLES


@pytest.fixture(params=IMAGENET)
def config(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return load_config(ROOT / f"configs/{request.param}.py")


def test_the_network_takes_the_images_and_gives_a_thousand_logits(config):
    mesh = comm.make_mesh(1, jax.devices()[:8])
    for size in {config.data.size, config.data.test_view.size}:
        source = Stand((size, size, 3))
        check_fit(config, mesh, source)
        model = as_model(config.model)
        inputs = model_inputs(config.task, example_shapes(source))
        check_model(config, model, abstract_variables(model, inputs), source, inputs)


def test_training_shapes_fit_every_size_and_heads_are_as_wide_as_logits(config):
    model, size = as_model(config.model), config.data.size
    images = jax.ShapeDtypeStruct((2, size, size, 3), "float32")
    variables = abstract_variables(model, images)
    check_resolutions(model, variables, phases_of(config.task.resolutions, 1000), images)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
    forward = lambda *given: model.apply(*given[:3], train=True, keys=given[3])[0]  # noqa: E731
    outputs = jax.eval_shape(forward, *variables, images, keys)
    heads = outputs if isinstance(outputs, Heads) else Heads(outputs)
    shapes = {heads.logits.shape} | {logits.shape for _, logits in heads.auxiliary}
    assert shapes == {(2, 1000)}


@pytest.mark.parametrize("name", IMAGENET)
def test_the_schedule_begins_peaks_and_ends_where_it_should(name):
    config = load_config(ROOT / f"configs/{name}.py")
    per_epoch = EXAMPLES / config.batch_size
    steps = round(config.epochs * per_epoch)
    rate = learning_rate(config.optimizer.for_run(config.batch_size, per_epoch), steps)
    got = [float(rate(step)) for step in np.linspace(0, steps - 1, 400).astype(int)]
    first, peak, last = RATES[name]
    np.testing.assert_allclose([got[0], max(got), got[-1]], [first, peak, last], rtol=0.02, atol=1e-5 * peak)


def test_a_config_says_where_it_comes_from_and_that_nothing_was_measured():
    assert set(IMAGENET) == set(RATES)
    for name in IMAGENET:
        lines = (ROOT / f"configs/{name}.py").read_text()
        assert f"--config configs/{name}.py" in lines
        for word in ("Source: ", "Command: python train.py", "Expected: ", "nothing was measured"):
            assert word in lines.split('"""')[1].replace("\n", " "), (name, word)
