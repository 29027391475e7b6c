"""Regression: errors in the units of the target, R2 as scikit-learn defines it, as good as the closed form."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.config.file import load_config
from jaxnet.config.run import Config
from jaxnet.data import Arrays, Diabetes
from jaxnet.errors import InputError
from jaxnet.tasks import Classification, Regression
from jaxnet.training.prepare import prepare
from jaxnet.training.trainer import train
from support.programs import ROOT

DRAW = np.random.RandomState(0)
TARGET, OUTPUT = DRAW.standard_normal((2, 20)).astype(np.float32)


def reported(task, target, outputs):
    means = {name: float(of.mean()) for name, of in task.measures(outputs, {"target": target}).items()}
    return task.reported(means)


def r2(target, prediction):
    """As scikit-learn's r2_score."""
    target, prediction = np.float64(target), np.float64(prediction)
    return 1 - ((target - prediction) ** 2).sum() / ((target - target.mean()) ** 2).sum()


def test_errors_are_in_units_of_the_target():
    task = Regression(mean=3.0, std=2.0)
    found = reported(task, 3 + 2 * TARGET, OUTPUT[:, None])
    difference = 2 * np.float64(OUTPUT - TARGET)
    assert found == pytest.approx(
        {
            "loss": (difference**2).mean() / 4,
            "mean_absolute_error": abs(difference).mean(),
            "root_mean_squared_error": (difference**2).mean() ** 0.5,
            "r2": r2(TARGET, OUTPUT),
        },
        rel=1e-5,
    )


def test_r2_of_a_target_far_from_zero():
    found = reported(Regression(mean=1000.0, std=1.0), 1000 + TARGET, OUTPUT)
    assert found["r2"] == pytest.approx(r2(TARGET, OUTPUT), rel=1e-3)
    column = reported(Regression(mean=1000.0, std=1.0), 1000 + TARGET[:, None], OUTPUT)
    assert column["r2"] == pytest.approx(found["r2"])


@pytest.mark.parametrize("value", [0.1, 2.0, 7.7, 1234.567])
def test_one_and_the_same_target_has_no_r2(value):
    assert reported(Regression(), np.full(2000, value, np.float32), np.zeros(2000, np.float32))["r2"] == 0.0


@pytest.mark.parametrize(("mean", "wanted"), [(10.0, False), (1e4, True), (-1e4, True)])
def test_targets_too_far_from_the_mean_are_told(mean, wanted):
    source = Arrays(train={"features": TARGET[:, None], "target": np.float32(mean + TARGET)}).load("train")
    said = list(Regression().warnings(source))
    assert len(said) == wanted
    assert not list(Regression(mean=mean).warnings(source))
    if wanted:
        assert f"set task.mean={np.float32(mean + TARGET).mean(dtype=np.float64):.4g} and task.std=" in said[0]


def test_several_numbers_an_example_have_no_r2():
    found = reported(Regression(), TARGET.reshape(10, 2), OUTPUT.reshape(10, 2))
    assert sorted(found) == ["loss", "mean_absolute_error", "root_mean_squared_error"]
    assert found["loss"] == pytest.approx(((TARGET - OUTPUT) ** 2).mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("error", "of"),
    [("absolute", abs), ("huber", lambda x: np.where(abs(x) < 1, x * x / 2, abs(x) - 0.5))],
)
def test_other_errors_are_minimized(error, of):
    found = reported(Regression(error=error), 3 * TARGET, OUTPUT)
    assert found["loss"] == pytest.approx(of(3 * TARGET - OUTPUT).mean(), rel=1e-5)


def test_the_table_is_predicted_as_well_as_by_ridge(tmp_path):
    """The config's weight decay is ridge's alpha = 3, whose solution has a closed form."""
    config = load_config(ROOT / "configs/diabetes.py", "log.tensorboard=false")
    run = train(config, tmp_path, quiet=True)
    train_, test = (Diabetes().load(split).rows(np.arange(size)) for split, size in (("train", 354), ("test", 88)))
    x, mean = np.float64(train_["features"]), train_["target"].mean(dtype=float)
    weights = np.linalg.solve(x.T @ x + 3 * np.eye(10), x.T @ (train_["target"] - mean))
    ridge = r2(test["target"], test["features"] @ weights + mean)
    assert ridge == pytest.approx(0.6045, abs=1e-4)
    assert run.summary["r2"] == pytest.approx(ridge, abs=0.01)


def test_the_features_are_those_that_their_page_names():
    import hashlib

    folder = ROOT / "jaxnet/data"
    with np.load(folder / "diabetes.npz") as file:
        content = b"".join(file[name].tobytes() for name in ("features", "target", "order"))
        assert sorted(file["order"]) == list(range(442))
    assert hashlib.sha256(content).hexdigest() in (folder / "diabetes.md").read_text()
    features = Diabetes().load("train").arrays["features"]
    np.testing.assert_allclose([features.mean(0), features.std(0)], [[0] * 10, [1] * 10], atol=1e-5)


def test_data_without_the_arrays_that_a_task_reads():
    config = load_config(ROOT / "configs/diabetes.py")
    data = Arrays(train={"x": TARGET[:, None], "y": TARGET})
    said = "the data set has x, y, but no features and no target, which task=Regression needs; rename its arrays"
    with pytest.raises(InputError, match=said):
        prepare(config.__class__(config.model, data, 1, 4, Regression()), comm.make_mesh(1, jax.devices()[:1]))


def test_a_table_in_classes(tmp_path):
    import flax.linen as nn

    from jaxnet.config.run import Config
    from jaxnet.optimizer import Optimizer

    features = DRAW.standard_normal((96, 2))
    label = (features.sum(1) > 0).astype(int)
    data = Arrays(
        train={"features": features[:64], "label": label[:64]}, test={"features": features[64:], "label": label[64:]}
    )
    config = Config(nn.Dense(2), data, 20, 16, Classification(), optimizer=Optimizer("adamw", 0.1))
    assert train(config, tmp_path, quiet=True).summary["accuracy"] > 0.9


@pytest.mark.parametrize(("width", "shape"), [(2, (8,)), (1, (8, 3))])
def test_another_number_of_numbers_than_the_target_has_is_refused(width, shape):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, features):
            return nn.Dense(width)(features)

    part = {"features": np.ones((8, 4), np.float32), "target": np.ones(shape, np.float32)}
    config = Config(Net(), Arrays(train=part, test=part), task=Regression(), epochs=1, batch_size=8)
    wanted = shape[1] if len(shape) > 1 else 1
    with pytest.raises(InputError, match=f"gives {width} numbers for an example, and a target has {wanted}: make"):
        prepare(config, comm.make_mesh(1, jax.devices()[:2]))
