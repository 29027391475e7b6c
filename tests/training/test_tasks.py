"""A task of one's own: any arrays, any metrics, weights; the same on every mesh and under every form of the step."""

import json
import math
from contextlib import closing
from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.comm.strategies import post_local_sgd
from jaxnet.config.run import Checkpoints, Config, Ensemble, Guard, Log
from jaxnet.data import Arrays, Items, Synthetic
from jaxnet.errors import InputError
from jaxnet.models import CNN, Heads, Model, from_linen
from jaxnet.optimizer import Optimizer
from jaxnet.tasks import (
    Classification,
    ImageClassification,
    LanguageModel,
    Pixels,
    Regression,
    Task,
    classification_loss,
)
from jaxnet.training.prepare import prepare
from jaxnet.training.trainer import train

LENGTH, WORDS = 6, 5


class Texts:
    """Sequences of different lengths, filled up with 0; the first 3 of 4 are short."""

    def __init__(self, num_examples, seed):
        draw = np.random.RandomState(seed)
        self.num_examples = num_examples
        self._words = draw.randint(1, WORDS, (num_examples, LENGTH)).astype(np.int32)
        self._words[np.arange(LENGTH) >= np.where(np.arange(num_examples) % 4, 2, LENGTH)[:, None]] = 0
        self._about = {"score": self._words.sum(1).astype(np.float32), "day": np.arange(num_examples, dtype=np.int16)}

    def rows(self, indices):
        return {"words": self._words[indices], "about": {name: of[indices] for name, of in self._about.items()}}


@dataclass(frozen=True)
class Letters:
    def load(self, split):
        return Texts(*((96, 0) if split == "train" else (21, 1)))


class Net(nn.Module):
    """As its author wrote it: two inputs, dropout, and nothing of jaxnet."""

    @nn.compact
    def __call__(self, words, day, train):
        x = nn.Embed(WORDS, 8)(words) + nn.Dense(8)(day[:, None, None] / 100)
        x = nn.Dropout(0.2, deterministic=not train)(nn.tanh(x))
        return nn.Dense(WORDS)(x), nn.Dense(1)(x.mean(1))[:, 0]


@dataclass(frozen=True)
class TwoLosses(Task):
    """Each word from its embedding, every word counting alike, and the score of the sequence beside."""

    share: float = 0.1

    def inputs(self, batch):
        return batch["words"], batch["about"]["day"].astype(jnp.float32)

    def measures(self, outputs, batch):
        logits, score = outputs
        known = (batch["words"] > 0).astype(jnp.float32)
        log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["words"][..., None], -1)[..., 0]
        words = -(log_probs * known).sum(1) / known.sum(1)
        score = (score - batch["about"]["score"]) ** 2
        return {"loss": words + self.share * score, "words": words, "score": score}

    def weights(self, batch):
        return (batch["words"] > 0).sum(1)

    def reported(self, means):
        return {**means, "perplexity": math.exp(means["words"])}

    def units(self, shapes):
        return {"words": shapes["words"].shape[0]}


def config(**changes):
    return Config(
        model=Net(),
        data=Letters(),
        task=TwoLosses(),
        epochs=1,
        batch_size=16,
        eval_batch_size=16,
        optimizer=Optimizer("sgd", learning_rate=0.05),
        checkpoints=Checkpoints(every_steps=100),
        log=Log(every_steps=1, tensorboard=False),
        **changes,
    )


def losses(config, shape):
    """The metrics of the first steps on a mesh of this shape, and of an evaluation after them."""
    mesh = comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])
    experiment = prepare(config, mesh)
    state, batches, curve = experiment.init(), experiment.batches(), []
    for _ in range(4):
        state, metrics = experiment.step(state, next(batches))
        curve.append([float(metrics[name]) for name in ("loss", "words", "score")])
    batches.close()
    return np.array(curve), experiment.evaluate(state)


@pytest.fixture(scope="module")
def alone():
    return losses(config(), (1, 1))


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        pytest.param((1, 8), {}, marks=pytest.mark.slow),
        ((2, 4), {"strategy": "ddp"}),
        ((2, 2), {"strategy": "zero", "microbatches": 2}),
        ((2, 2), {"strategy": "xla", "microbatches": 2}),
        ((1, 4), {"strategy": "flat", "mode": "pmap"}),
        ((1, 1), {"microbatches": 4}),
        ((2, 2), {"strategy": post_local_sgd(4, synchronous_steps=8)}),
    ],
    ids=str,
)
def test_every_word_counts_alike_wherever_it_lies(shape, changes, alone):
    """Short sequences lie three to one beside long ones, so a mean over means would be another number."""
    curve, evaluation = losses(config(**changes), shape)
    np.testing.assert_allclose(curve, alone[0], rtol=1e-5)
    assert evaluation == pytest.approx(alone[1], rel=1e-5)


@pytest.mark.parametrize("strategy", ["flat", "xla", "zero", "post_local_sgd"])
@pytest.mark.parametrize("skip", [True, False])
def test_parameters_of_16_bits_stay_so_beside_weights(strategy, skip):
    net = from_linen(Net())
    half = net._replace(init=lambda *given: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), net.init(*given)))
    changed = replace(config(strategy=strategy, guard=Guard(skip=skip)), model=half, optimizer=Optimizer("adamw"))
    experiment = prepare(changed, comm.make_mesh(2, jax.devices()[:4]))
    state, batches = experiment.init(), experiment.batches()
    kinds = [leaf.dtype for leaf in jax.tree.leaves(state)]
    assert jnp.bfloat16 in kinds
    state, _ = experiment.step(state, next(batches))
    batches.close()
    assert [leaf.dtype for leaf in jax.tree.leaves(state)] == kinds


def test_metrics_are_those_of_a_plain_loop():
    experiment = prepare(config(), comm.make_mesh(1, jax.devices()[:2]))
    state = experiment.init()
    found = experiment.evaluate(state)
    rows = Letters().load("test").rows(np.arange(21))
    task, params = TwoLosses(), jax.device_get(state.params)
    outputs = Net().apply({"params": params}, *task.inputs(rows), train=False)
    values = {name: np.asarray(of, np.float64) for name, of in task.measures(outputs, rows).items()}
    weights = np.asarray(task.weights(rows), np.float64)
    means = {name: (of * weights).sum() / weights.sum() for name, of in values.items()}
    assert found == pytest.approx({**means, "perplexity": math.exp(means["words"]), "examples": 21}, rel=1e-5)


@pytest.mark.parametrize("strategy", ["flat", post_local_sgd(4, synchronous_steps=8)], ids=str)
def test_the_plan_holds_the_metrics_and_the_weight(strategy):
    experiment = prepare(config(strategy=strategy), comm.make_mesh(2, jax.devices()))
    assert experiment.plan.verified().check.ok
    assert experiment.plan.verified().check.extra == ()


def test_a_run_reports_what_the_task_says(tmp_path, capsys):
    run = train(config(), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["split"] == "train")
    assert first["perplexity"] == pytest.approx(math.exp(first["words"]))
    assert first["words_per_second"] == pytest.approx(LENGTH * first["examples_per_second"])
    assert "weight" not in first
    assert run.summary["metrics"] == ["loss", "score", "words", "perplexity"]
    printed = capsys.readouterr().out
    assert "about/day int16[]" in printed
    assert "perplexity" in printed


def test_metrics_with_a_slash_in_their_names_and_numbers_of_jax_are_reported(tmp_path):
    class Named(TwoLosses):
        best = "error/words"

        def reported(self, means):
            words = jnp.float32(means["words"])
            return {"loss": np.float32(means["loss"]), "error/words": words, "perplexity": jnp.exp(words[None])}

    run = train(replace(config(validation=0.25), task=Named()), tmp_path, quiet=True)
    assert run.summary["metrics"] == ["loss", "error/words", "perplexity"]
    assert run.summary["best"]["test"].keys() == {"loss", "error/words", "perplexity"}
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["perplexity"] == pytest.approx(math.exp(line["error/words"]))
    assert run.summary["perplexity"] == pytest.approx(math.exp(run.summary["error/words"]))


def test_the_best_state_is_chosen_by_the_tasks_metric(tmp_path):
    """Less loss is better, where accuracy is better if there is more of it."""
    every = Checkpoints(every_steps=100, keep=1)
    overshooting = Optimizer("adamw", learning_rate=1.0, schedule="constant")
    given = replace(config(), epochs=8, checkpoints=every, optimizer=overshooting, validation=0.25)
    train(given, tmp_path, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    tested = {line["step"]: line["loss"] for line in lines if line["split"] == "validation"}
    kept = {int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdecimal()}
    best = min(tested, key=tested.__getitem__)
    assert best < max(tested), tested
    assert kept == {best, max(tested)}


# ---- What cannot be is refused before the first step -------------------------------------------------------


class Bad(Texts):
    given: object = None

    def rows(self, indices):
        return self.given


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([1, 2], "rows gave a list: wanted a dict of arrays by name"),
        ({"id": np.zeros((1, 2))}, "rows gave id, a name of jaxnet's own"),
        ({"x": np.zeros((2, 3), np.float32)}, r"gave float32\[2, 3\] as x of one example"),
        ({"x": {"y": np.zeros((1, 3))}}, r"gave float64\[1, 3\] as x/y of one example: .* at most 32 bits"),
        ({"x": 3}, "gave a int as x of one example"),
    ],
)
def test_rows_that_are_no_examples(rows, said):
    source = Bad(4, 0)
    source.given = rows
    with pytest.raises(InputError, match=said):
        prepare(config(), comm.make_mesh(1, jax.devices()[:1]), source=source)


def test_pictures_are_asked_for_where_there_are_none():
    with pytest.raises(
        InputError, match=r"holds .*, and the task, ImageClassification\(\), takes image uint8.*set task=another"
    ):
        prepare(Config(Net(), Letters(), 1, 16), comm.make_mesh(1, jax.devices()[:1]))


def test_a_task_that_asks_for_what_the_data_has_not():
    @dataclass(frozen=True)
    class Asks(TwoLosses):
        def inputs(self, batch):
            return batch["letters"]

    with pytest.raises(InputError, match=r"task: Asks.inputs of about/day .* failed in line .*: KeyError: 'letters'"):
        prepare(replace(config(), task=Asks()), comm.make_mesh(1, jax.devices()[:1]))


@pytest.mark.parametrize(
    ("measures", "said"),
    [
        (lambda outputs, batch: {"error": outputs[1]}, "gave no 'loss': wanted a dict with 'loss'"),
        (
            lambda outputs, batch: {"loss": outputs[1].mean()},
            r"gave loss of the shape \[\]: wanted one value",
        ),
        (lambda outputs, batch: {"loss": outputs[1], "all": outputs[0]}, r"gave all of the shape \[16, 6, 5\]: wanted"),
        (
            lambda outputs, batch: {"loss": outputs[1], "epoch": outputs[1]},
            "has metrics named epoch, as the trainer",
        ),
        (
            lambda outputs, batch: {"loss": outputs[1], **dict.fromkeys(("best", "seconds", "member_0"), outputs[1])},
            "has metrics named best, member_0, seconds, as the trainer",
        ),
        (
            lambda outputs, batch: {"loss": outputs[1], "weight": outputs[1]},
            "gave 'weight', the name of the examples' weights: give it another name",
        ),
    ],
)
def test_measures_that_are_not_one_value_an_example(measures, said):
    class Measures(TwoLosses):
        def measures(self, outputs, batch):
            return measures(outputs, batch)

    with pytest.raises(InputError, match=f"task: Measures.*{said}"):
        prepare(replace(config(), task=Measures()), comm.make_mesh(1, jax.devices()[:1]))


@pytest.mark.parametrize("members", [1, 2])
def test_metrics_of_an_evaluation_alone_have_no_names_of_the_trainer(members):
    class Timed(ImageClassification):
        def measures(self, outputs, batch):
            found = super().measures(outputs, batch)
            return {**found, "seconds": found["loss"]}

    model, data = CNN(2, widths=(2,), hidden=4), Synthetic((8, 8, 1), 2, 32, 16)
    experiment = prepare(Config(model, data, 1, 16, task=Timed(), ensemble=Ensemble(members)))
    with pytest.raises(InputError, match="task: Timed has metrics named seconds, as the trainer"):
        experiment.check_programs()


@pytest.mark.parametrize(
    ("task", "test", "said"),
    [
        (Classification(), {"label": -1}, "the label of test example 2 is -1: wanted 0 to 1, as the model"),
        (Classification(), {"label": 2}, "the label of test example 2 is 2: wanted 0 to 1"),
        (LanguageModel(pad=-3), {"tokens": [0, 1, 2]}, "a token of test example 2 is 2: wanted 0 to 1"),
        (LanguageModel(pad=-3), {"tokens": [7, -3, -1]}, "a token of test example 2 is -1: wanted 0 to 1"),
    ],
)
def test_what_the_model_has_no_logit_for_is_refused_with_its_row(task, test, said):
    good = {"features": [0.0, 1.0], "label": 1, "tokens": [0, 1, -3]}
    items = [{name: np.asarray(good[name]) for name in task.needs}] * 4
    bad = {**items[0], **{name: np.asarray(value) for name, value in test.items()}}
    model = nn.Dense(2) if "label" in test else nn.Embed(2, 2)
    data = Items(train=items, test=[*items[:2], bad])
    experiment = prepare(Config(model, data, 1, 4, task), comm.make_mesh(1, jax.devices()[:1]))
    with closing(experiment.batches()) as batches:
        next(batches)
    with pytest.raises(InputError, match=f"data: {said}"):
        experiment.evaluate(experiment.init())


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (np.zeros(4), r"float32\[\]; Classification takes its class, .* as label.reshape\(-1\).astype\(int\)"),
        (np.zeros(4, bool), r"bool\[\]; Classification takes its class"),
        (np.zeros((4, 1), int), r"int32\[1\]; Classification takes its class, .* as label.reshape\(-1\)"),
        (np.eye(4)[:, :2], r"float32\[2\]; Classification takes its class, .* as label.argmax\(1\)"),
    ],
)
def test_labels_that_are_no_classes_are_refused_with_the_cure(label, said):
    arrays = {"features": np.zeros((4, 2)), "label": label}
    config = Config(nn.Dense(2), Arrays(train=arrays, test=arrays), 1, 4, Classification())
    with pytest.raises(InputError, match=f"data: the label of an example is {said}"):
        prepare(config, comm.make_mesh(1, jax.devices()[:1]))


def test_a_task_with_measures_of_its_own_may_have_other_labels():
    class Signs(Classification):
        def measures(self, outputs, batch):
            return {"loss": (outputs[:, 0] - batch["label"]) ** 2, "accuracy": outputs[:, 0] * batch["label"] > 0}

    items = [{"features": np.float32([1.0]), "label": np.int32(sign)} for sign in (-1, 1)]
    config = Config(nn.Dense(1), Items(train=items, test=items), 1, 2, Signs())
    experiment = prepare(config, comm.make_mesh(1, jax.devices()[:1]))
    assert experiment.evaluate(experiment.init())["examples"] == 2


def test_a_task_that_is_none():
    with pytest.raises(InputError, match=r"task is of type str: wanted a jaxnet.Task"):
        prepare(replace(config(), task="classify"), comm.make_mesh(1, jax.devices()[:1]))


HALF = jnp.asarray(np.random.RandomState(0).standard_normal((4, 3, 5)) * 3, jnp.bfloat16)


@pytest.mark.parametrize(
    ("task", "outputs", "batch"),
    [
        (Classification(), HALF[:, 0], {"label": jnp.arange(4)}),
        (LanguageModel(), HALF, {"tokens": jnp.ones((4, 4), jnp.int32)}),
        (Regression(mean=100.0), HALF[:, 0, :1], {"target": jnp.full(4, 101.0)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_loss_of_half_precision_outputs_is_computed_in_float32(task, outputs, batch):
    """Steps of bfloat16 around 4 are 1/32, larger than what training changes in an epoch."""
    both = [task.measures(given, batch)["loss"] for given in (outputs, outputs.astype(jnp.float32))]
    said = [task.predicted(given) for given in (outputs, outputs.astype(jnp.float32))]
    members = [task.combined(jnp.stack([given, -given])) for given in (outputs, outputs.astype(jnp.float32))]
    for half, full in (both, said, members):
        assert half.dtype == jnp.float32
        np.testing.assert_array_equal(half, full)


def test_the_loss_of_half_precision_images_is_computed_in_float32():
    def loss(outputs):
        model = Model(lambda key, inputs: None, lambda params, stats, inputs, *, train, keys: (outputs, stats))
        batch = {"image": jnp.zeros((4, 2, 2, 1), jnp.uint8), "label": jnp.arange(4)}
        keys = jax.random.split(jax.random.key(0), 4)
        return classification_loss(model, Pixels())(None, None, batch, keys)[0]

    for heads in (lambda logits: logits, lambda logits: Heads(logits, ((0.3, logits),))):
        half, full = loss(heads(HALF[:, 0])), loss(heads(HALF[:, 0].astype(jnp.float32)))
        assert (half.dtype, float(half)) == (jnp.float32, float(full))


@pytest.mark.parametrize("strategy", ["hierarchical", "zero", "xla"])
def test_what_is_traced_before_the_run_is_not_traced_again(strategy):
    traced = []

    class Counts(ImageClassification):
        def inputs(self, batch):
            traced.append(batch)
            return super().inputs(batch)

        def loss(self, model):
            return Task.loss(self, model)

    config = Config(
        CNN(2, widths=(2,), hidden=4), Synthetic((8, 8, 1), 2, 32, 16), 1, 16, task=Counts(), strategy=strategy
    )
    experiment = prepare(config)
    experiment.check_tests()
    experiment.check_programs()
    state, before = experiment.init(), len(traced)
    experiment.step.lower(state, experiment.batch_shapes)
    experiment.evaluate(state)
    assert len(traced) == before


def test_a_batch_for_evaluation_is_no_larger_than_the_data():
    config = Config(CNN(2, widths=(2,), hidden=4), Synthetic((8, 8, 1), 2, 32, 16), 1, 16, eval_batch_size=10**9)
    experiment = prepare(config)
    assert experiment.evaluate(experiment.init())["examples"] == 16
