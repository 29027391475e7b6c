"""A language model: each token counts once, wherever it lies, and a run is the same on every mesh."""

import json
import math
from dataclasses import replace

import flax.linen as nn
import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.config.run import Checkpoints, Config, Log
from jaxnet.data import Arrays, PythonTopics, TextSource
from jaxnet.errors import InputError
from jaxnet.models import TextLSTM, Transformer
from jaxnet.optimizer import Optimizer
from jaxnet.tasks import LanguageModel, SequenceClassification
from jaxnet.training.observer import Observer
from jaxnet.training.prepare import prepare
from jaxnet.training.trainer import train

LENGTH = 16
NET = Transformer(positions=LENGTH, dim=16, depth=1, heads=2, dropout=0.1)


class Passage:
    """The first sentences of a topic: 30 windows to learn from, and 13 of which the last is half empty."""

    def load(self, split):
        text = PythonTopics().load(split).text
        return TextSource(text[: LENGTH * 30 + 1] if split == "train" else text[: LENGTH * 12 + 6], LENGTH)


def config(**changes):
    given = Config(
        model=NET,
        data=Passage(),
        task=LanguageModel(bytes_per_token=1),
        epochs=1,
        batch_size=8,
        eval_batch_size=8,
        optimizer=Optimizer("adamw", learning_rate=0.01, clip_norm=1.0),
        checkpoints=Checkpoints(every_steps=100),
        log=Log(every_steps=1, tensorboard=False),
    )
    return replace(given, **changes)


def curve(config, shape, steps=4):
    """Losses of the first steps on a mesh of this shape, and an evaluation after them."""
    experiment = prepare(config, comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]]))
    state, batches, losses = experiment.init(), experiment.batches(), []
    for _ in range(steps):
        state, metrics = experiment.step(state, next(batches))
        losses.append(float(metrics["loss"]))
    batches.close()
    return losses, experiment.evaluate(state)


@pytest.fixture(scope="module")
def alone():
    return curve(config(), (1, 1))


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        pytest.param((1, 8), {}, marks=pytest.mark.slow),
        pytest.param((2, 4), {"strategy": "ddp"}, marks=pytest.mark.slow),
        ((2, 2), {"strategy": "zero", "microbatches": 2}),
        pytest.param((1, 2), {"strategy": "xla"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_curve_is_the_same_on_every_mesh(shape, changes, alone):
    losses, evaluation = curve(config(**changes), shape)
    np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
    assert evaluation == pytest.approx(alone[1], rel=1e-5)


def test_an_evaluation_counts_every_byte_once(alone):
    """Beside a loop over bytes, in float64."""
    experiment = prepare(config(), comm.make_mesh(1, jax.devices()[:1]))
    state = experiment.init()
    found = experiment.evaluate(state)
    text = Passage().load("test").text
    nll, right = [], []
    for start in range(0, len(text) - 1, LENGTH):
        window = text[start : start + LENGTH + 1].astype(np.int32)
        logits = np.float64(NET.apply({"params": state.params}, window[None, :-1], train=False)[0])
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for place, target in enumerate(window[1:]):
            nll.append(-log_probs[place, target])
            right.append(log_probs[place].argmax() == target)
    assert len(nll) == len(text) - 1
    loss = np.mean(nll)
    wanted = {
        "loss": loss,
        "accuracy": np.mean(right),
        "perplexity": math.exp(loss),
        "bits_per_byte": loss / math.log(2),
    }
    assert found == pytest.approx({**wanted, "examples": 13}, rel=1e-5)


class StopsAfter(Observer):
    def __init__(self, last):
        self.last = last

    def on_metrics(self, step, split, values):
        return step == self.last


def lines_of(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines if line["split"] == "train"}


@pytest.mark.slow
def test_a_run_says_tokens_and_bits_and_continues_within_an_epoch(tmp_path):
    """Stopped after 5 of 8 steps and continued on another mesh: the losses are those of a run that was not stopped."""
    given = config(epochs=2)
    whole = train(given, tmp_path / "whole", quiet=True)
    wanted = lines_of(tmp_path / "whole")
    assert wanted[1]["tokens_per_second"] == pytest.approx(LENGTH * wanted[1]["examples_per_second"])
    assert wanted[1]["bits_per_byte"] == pytest.approx(wanted[1]["loss"] / math.log(2))
    assert whole.summary["metrics"] == ["loss", "accuracy", "perplexity", "bits_per_byte"]
    stopped = train(given, tmp_path / "parts", observers=[StopsAfter(5)], quiet=True)
    assert 5 <= stopped.summary["steps"] < 8
    train(replace(given, hosts=2), tmp_path / "parts", quiet=True, allow_config_change=True)
    found = lines_of(tmp_path / "parts")
    assert [found[step]["loss"] for step in wanted] == pytest.approx([of["loss"] for of in wanted.values()], rel=1e-5)


def test_a_recurrent_network_learns_the_same_text():
    losses, evaluation = curve(config(model=TextLSTM(hidden=16), optimizer=Optimizer("adamw", 0.05)), (1, 2), steps=8)
    assert losses[-1] < losses[0] - 0.2
    assert evaluation["perplexity"] < 256


# ---- What counts --------------------------------------------------------------------------------------------


def test_padding_is_not_predicted():
    task = LanguageModel(pad=9)
    batch = {"tokens": np.array([[1, 2, 3, 9], [4, 9, 9, 9], [9, 9, 9, 9]], np.int32)}
    logits = jax.random.normal(jax.random.key(0), (3, 3, 10))
    log_probs = jax.nn.log_softmax(logits)
    found = task.measures(logits, batch)
    assert task.weights(batch).tolist() == [2, 0, 0]
    assert found["loss"].tolist() == pytest.approx([-float(log_probs[0, 0, 2] + log_probs[0, 1, 3]) / 2, 0, 0])


def test_a_loss_without_bound_has_a_perplexity():
    assert LanguageModel().reported({"loss": 1e4})["perplexity"] > 1e300


class Reads(nn.Module):
    """Classifies by the mean over what is there, and is called by names."""

    classes: int = 2

    @nn.compact
    def __call__(self, tokens, mask):
        x = nn.Embed(10, 8)(tokens) * mask[..., None]
        return nn.Dense(self.classes)(x.sum(1) / mask.sum(1, keepdims=True))


class Shortens(nn.Module):
    """Gives no logits for the last place."""

    @nn.compact
    def __call__(self, tokens):
        return nn.Embed(256, 256)(tokens[:, :-1])


def sequences():
    """Whether a sequence of 1 to 5 tokens holds a 7."""
    draw = np.random.RandomState(0)
    tokens = draw.randint(1, 10, (128, 5))
    tokens[np.arange(5) >= draw.randint(1, 6, 128)[:, None]] = 0
    return Arrays(
        train={"tokens": tokens[:96], "label": (tokens[:96] == 7).any(1).astype(int)},
        test={"tokens": tokens[96:], "label": (tokens[96:] == 7).any(1).astype(int)},
    )


def test_sequences_are_classified_by_what_is_not_padding(tmp_path):
    task = SequenceClassification(pad=0)
    given = config(model=Reads(), data=sequences(), task=task, epochs=12, optimizer=Optimizer("adamw", 0.05))
    run = train(given, tmp_path, quiet=True)
    assert run.summary["accuracy"] > 0.9
    assert run.experiment.units == {"tokens": 5}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": TextLSTM(100)}, r"logits for 100 tokens, and the data set has 256; set model.vocabulary=256"),
        ({"model": Shortens()}, r"LanguageModel.measures of float32\[8, 15, 256\] and of .* failed: ValueError"),
        (
            {"model": Reads(), "data": sequences(), "task": SequenceClassification()},
            r"the model Reads has __call__\(tokens, mask\), and is called with \(array\)",
        ),
        ({"task": SequenceClassification()}, r"the data set has tokens, but no label, which task=SequenceClass"),
        (
            {"model": TextLSTM(), "data": sequences(), "task": SequenceClassification()},
            r"the model gives \(1, 5, 256\) for one example; wanted logits, \[1, classes\]",
        ),
        (
            {"model": Reads(1), "data": sequences(), "task": SequenceClassification(0)},
            r"logits for one example have the shape \(1, 1\), but the data set has 2 classes; make the width",
        ),
    ],
)
def test_what_does_not_go_together(changes, said):
    with pytest.raises(InputError, match=said):
        prepare(config(**changes), comm.make_mesh(1, jax.devices()[:1]))
