"""Validation examples choose the best state and end a run that gets no better; the test examples choose nothing."""

import json
from dataclasses import replace

import flax.linen as nn
import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.checkpoints import find_checkpoint
from jaxnet.config.run import Checkpoints, Config, EarlyStopping, Log
from jaxnet.data import Arrays, Digits, Shard, eval_batches, hold_out, train_batches
from jaxnet.errors import InputError
from jaxnet.inference.loading import load
from jaxnet.models import CNN
from jaxnet.optimizer import Optimizer
from jaxnet.tasks import Classification, ImageClassification, Regression
from jaxnet.training.best import BestEvaluation
from jaxnet.training.prepare import prepare
from jaxnet.training.trainer import train
from support.runs import sharing


class Noisy:
    """Random numbers, and labels that have nothing to do with them: a network learns them by heart, and no more."""

    def load(self, split):
        draw = np.random.RandomState({"train": 0, "dev": 1, "test": 2}[split])
        size = 30 if split == "dev" else 64
        features = draw.standard_normal((size, 16))
        made = Arrays(**{split: {"features": features, "label": draw.randint(0, 2, size)}})
        return made.load(split)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(64)(x)))


CONFIG = sharing(
    Config(
        model=Net(),
        data=Noisy(),
        task=Classification(),
        validation="dev",
        epochs=10,
        batch_size=16,
        eval_batch_size=7,
        optimizer=Optimizer("adamw", learning_rate=0.01, schedule="constant"),
        checkpoints=Checkpoints(every_steps=1000, keep=1),
        log=Log(every_steps=100, tensorboard=False),
    )
)


def lines_of(workdir, split):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["accuracy"] for line in lines if line["split"] == split}


def kept(workdir):
    return {int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    return train(CONFIG, workdir, quiet=True), workdir


def best_of(curve):
    """The first step with the largest value."""
    return max(curve, key=lambda step: (curve[step], -step))


def test_the_best_is_chosen_by_validation_and_only_reported_on_the_test(whole):
    run, workdir = whole
    curve, tested = lines_of(workdir, "validation"), lines_of(workdir, "test")
    assert curve.keys() == tested.keys()
    best = run.summary["best"]
    assert (best["step"], best["metric"], best["validation"]) == (best_of(curve), "accuracy", max(curve.values()))
    assert best["test"]["accuracy"] == tested[best["step"]]
    assert run.summary["accuracy"] == tested[40]
    assert best["step"] in kept(workdir)
    assert find_checkpoint(workdir / "checkpoints", best=True).step == best["step"]
    assert 40 in kept(workdir)


def test_without_validation_nothing_is_chosen(tmp_path):
    run = train(replace(CONFIG, validation=None, epochs=4), tmp_path, quiet=True)
    assert run.summary["best"] is None
    assert kept(tmp_path) == {16}
    assert not lines_of(tmp_path, "validation")
    with pytest.raises(InputError, match=r"is known as the best, which .* decide; train"):
        load(tmp_path, best=True)


# ---- Held back ----------------------------------------------------------------------------------------------


def test_a_share_is_held_back_from_training(tmp_path):
    experiment = prepare(replace(CONFIG, validation=0.25), comm.make_mesh(1, jax.devices()[:1]))
    assert (experiment.source.num_examples, experiment.validation.num_examples) == (48, 16)
    assert (experiment.total_steps, experiment.steps_per_epoch) == (30, 3.0)
    everything = Noisy().load("train").rows(np.arange(64))["features"]
    held = experiment.validation.rows(np.arange(16))["features"]
    batches = train_batches(experiment.source, batch_size=16, seed=5, shard=Shard(0, 1))
    seen = np.concatenate([next(batches)["features"] for _ in range(3)])
    both = np.concatenate([held, seen])
    np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(everything, axis=0))


def test_examples_keep_their_rows_where_some_are_held_back():
    """Their random numbers come from these, and an error names them."""
    number = np.arange(20, dtype=np.float32)
    train, held = hold_out(Arrays(train={"x": number}).load("train"), 0.25)
    for source in (train, held):
        batches = [next(train_batches(source, batch_size=5, seed=0, shard=Shard(0, 1)))]
        for batch in [*batches, *eval_batches(source, batch_size=8, shard=Shard(0, 1))]:
            np.testing.assert_array_equal(batch["id"], batch["x"])
            assert batch["id"].dtype == np.int32


class Random:
    """A source with random examples, in another size if asked."""

    num_examples, image_shape, num_classes, size = 8, (1, 1, 1), 8, 1

    def rows(self, indices):
        return {"image": indices * self.size, "label": indices}

    def random_rows(self, indices, draws):
        return {"image": indices * self.size + (draws % 2).astype(int) * 100, "id": indices}

    def at_size(self, size):
        other = Random()
        other.size = size
        return other


def test_a_random_source_stays_one_at_any_size():
    train, held = hold_out(Random(), 0.25)
    assert (train.num_examples, held.num_examples, train.num_classes) == (6, 2, 8)
    assert not hasattr(held, "random_rows")
    draws = np.zeros(6, np.uint64)
    rows = train.at_size(10).random_rows(np.arange(6), draws)
    np.testing.assert_array_equal(rows["image"], rows["id"] * 10)
    chosen = [*train.rows(np.arange(6))["label"], *held.rows(np.arange(2))["label"]]
    assert sorted(chosen) == list(range(8))


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_nothing_is_left(share):
    with pytest.raises(InputError, match=rf"validation={share}: holds \d+ of 8 training examples back; wanted some"):
        hold_out(Random(), share)


# ---- Early stopping -----------------------------------------------------------------------------------------


def test_a_run_that_gets_no_better_ends_and_stays_ended(whole, tmp_path, capsys):
    _, workdir = whole
    curve = lines_of(workdir, "validation")
    steps, values = list(curve), list(curve.values())  # what has to happen, from the curve of a run that did not end
    last = next(at for at in range(3, 11) if max(values[at - 2 : at]) <= max(values[: at - 2]))
    step, best = steps[last - 1], max(values[:last])
    assert step < 40, curve
    config = replace(CONFIG, early_stopping=EarlyStopping(patience=2))
    run = train(config, tmp_path)
    assert (run.summary["steps"], run.summary["finished"], run.summary["ended_early"]) == (step, True, True)
    assert run.summary["best"]["validation"] == best
    printed = capsys.readouterr().out
    assert f"ended early after step {step}: no better accuracy on the validation examples than" in printed
    assert f"{step}, ended early;" in printed

    again = train(config, tmp_path)
    assert again.summary == run.summary
    assert "nothing to train, the run has ended early: no better accuracy" in capsys.readouterr().out
    (tmp_path / "summary.json").unlink()
    anew = train(config, tmp_path, quiet=True)
    assert (anew.summary["steps"], anew.summary["best"]) == (step, run.summary["best"])

    more = train(replace(config, early_stopping=EarlyStopping()), tmp_path, quiet=True, allow_config_change=True)
    assert (more.summary["steps"], more.summary["ended_early"]) == (40, False)
    assert lines_of(tmp_path, "validation") == pytest.approx(curve)


def test_the_count_goes_on_where_a_run_was_interrupted(whole, tmp_path):
    """The best evaluation of a run in two parts is that of a run in one."""
    config = replace(CONFIG, epochs=3)
    train(config, tmp_path, quiet=True)
    run = train(CONFIG, tmp_path, quiet=True, allow_config_change=True)
    assert run.summary["best"] == whole[0].summary["best"]


def test_the_best_is_chosen_anew_by_another_metric_and_on_other_examples(tmp_path, caplog):
    """A loss is no bound for an accuracy, nor is what was reached on examples that were easier."""

    class ByLoss(Classification):
        best, best_mode = "loss", "min"

    def best_of_more(epochs, **changes):
        caplog.clear()
        run = train(replace(CONFIG, epochs=epochs, **changes), tmp_path, quiet=True, allow_config_change=True)
        return run.summary["best"], "; ".join(message for message in caplog.messages if "best" in message)

    best_of_more(1)
    best, said = best_of_more(2, task=ByLoss())
    assert (best["step"], best["metric"]) == (8, "loss")
    assert said == (
        "from here on the best state is chosen by the least loss on validation=dev; until step 4 it was by the largest "
        "accuracy on validation=dev"
    )
    best, said = best_of_more(4, task=ByLoss(), validation=0.25)
    assert best["step"] > 8
    assert "on validation=0.25 of 64 examples; until step 8 it was" in said
    assert said.endswith("the run may have been trained on what is held back now")
    assert best_of_more(5, task=ByLoss(), validation=0.25)[1] == ""
    best, said = best_of_more(7, task=ByLoss(), validation=None)
    assert (best["step"] <= 15, said) == (True, "")


def evaluated(watch, *values):
    return [bool(watch.on_metrics(step, "validation", {"loss": value})) for step, value in enumerate(values, 1)]


def test_less_is_better_where_the_task_says_so():
    watch = BestEvaluation(Regression(), EarlyStopping(patience=2, min_delta=0.1), None)
    assert evaluated(watch, 1.0, 0.95, 0.8, 0.75, 0.71) == [False, False, False, False, True]
    assert watch.summary()["step"] == 3


def test_what_is_not_a_number_is_no_improvement():
    watch = BestEvaluation(Regression(), EarlyStopping(patience=3), None)
    assert evaluated(watch, float("nan"), 1.0, float("nan"), 2.0, float("inf")) == [False] * 4 + [True]
    assert watch.summary()["validation"] == 1.0
    hopeless = BestEvaluation(Regression(), EarlyStopping(patience=1), None)
    assert evaluated(hopeless, float("nan")) == [True]
    assert hopeless.reason == "no loss on the validation examples in 1 evaluation"
    assert hopeless.summary() is None


def test_steps_that_are_done_again_are_forgotten():
    watch = BestEvaluation(Regression(), EarlyStopping(patience=2), None)
    evaluated(watch, 3.0, 2.0, 2.5)
    watch.on_rewind(2)
    assert watch.to_save() == {"step": 2, "value": 2.0, "test": {}, "since": 0, "at": 2}
    continued = BestEvaluation(Regression(), EarlyStopping(patience=2), watch.to_save())
    assert continued.to_save() == watch.to_save()
    watch.on_rewind(0)
    assert watch.summary() is None


# ---- What is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"validation": "test"}, "validation=test: wanted examples that are neither trained on nor tested with"),
        ({"validation": 1.0}, "validation=1.0: wanted a part of the training examples, above 0 and below 1"),
        ({"validation": None, "early_stopping": EarlyStopping(3)}, "early_stopping.patience=3 needs examples to judge"),
        (
            {"validation": "held", "data": Digits(), "task": ImageClassification(), "model": CNN(10, hidden=8)},
            r"^validation=held: split 'held' does not exist.*, or a part of the training examples such as 0\.1",
        ),
    ],
)
def test_validation_that_cannot_be(changes, said, tmp_path):
    with pytest.raises(InputError, match=said):
        train(replace(CONFIG, **changes), tmp_path, quiet=True)


@pytest.mark.parametrize("size", [1, 7, 30, 1000])
def test_an_evaluation_is_the_same_in_batches_of_any_size(size):
    """30 examples on 8 devices."""
    experiment = prepare(replace(CONFIG, eval_batch_size=size), comm.make_mesh(2, jax.devices()[:8]))
    alone = prepare(CONFIG, comm.make_mesh(1, jax.devices()[:1]))
    found, wanted = (each.evaluate(each.init(), "validation") for each in (experiment, alone))
    assert found == pytest.approx(wanted, rel=1e-5)
    assert found["examples"] == 30


def test_an_evaluation_that_a_run_has_not():
    experiment = prepare(replace(CONFIG, validation=None), comm.make_mesh(1, jax.devices()[:1]))
    with pytest.raises(InputError, match="split 'validation': this run is evaluated on test"):
        experiment.evaluate(experiment.init(), "validation")
