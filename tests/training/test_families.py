"""The benchmark that trains every family: its recipes fit its images, its table, and runs that are made once."""

import argparse
import json

import pytest

from benchmarks import families as benchmark
from jaxnet.config.check import check_config
from jaxnet.config.fit import check_model
from jaxnet.data import Synthetic, example_shapes
from jaxnet.models import ZOO, abstract_variables
from jaxnet.training.network import as_model, model_inputs

SOURCE = Synthetic((28, 28, 1), num_classes=10, num_train=64, num_test=16)
ENDED = {"accuracy": 0.8, "loss": 0.5, "skipped_steps": 0, "rollbacks": 0}


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=[pytest.mark.slow] * (at % 3 > 0)) for at, name in enumerate(benchmark.RECIPES)],
)
def test_a_recipe_fits_its_network(model):
    config = benchmark.config_of(model, 64, 1.0)
    check_config(config)
    model, source = as_model(config.model), SOURCE.load("train")
    inputs = model_inputs(config.task, example_shapes(source))
    check_model(config, model, abstract_variables(model, inputs), source, inputs)


def test_every_kind_of_network_has_a_recipe():
    depths = {"vgg13", "vgg19", "vgg13_bn", "vgg19_bn", "resnet34", "resnet101", "resnet152", "vit_small"}
    depths |= {f"cifar_resnet{layers}" for layers in (32, 44, 56, 110)}
    assert set(ZOO) - set(benchmark.RECIPES) == depths  # the rest differ from one with a recipe in depth


def test_a_part_has_the_first_training_images_and_all_of_the_others():
    part = benchmark.Part(8, SOURCE)
    assert (part.load("train").num_examples, part.load("test").num_examples) == (8, 16)


def test_parameters_of_the_narrowed_network():
    assert benchmark.parameters(benchmark.config_of("lstm", 64, 1.0)) == 81_674


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "trains"),
        ({"accuracy": 0.59}, "does not learn"),
        ({"loss": float("nan")}, "diverged"),
        ({"skipped_steps": 1}, "diverged"),
        ({"rollbacks": 1}, "diverged"),
    ],
)
def test_verdicts(changed, verdict):
    assert benchmark.verdict(ENDED | changed) == verdict


def test_finished_runs_are_kept_and_not_made_again(tmp_path, monkeypatch):
    made = []

    def one_run(key):
        made.append(key["model"])
        return {"parameters": 1000, "steps": 5, "seconds": 1.5, **ENDED}

    monkeypatch.setattr(benchmark, "one_run", one_run)
    args = argparse.Namespace(model=["lstm"], examples=64, epochs=1.0, results=tmp_path / "runs.jsonl")
    first = list(benchmark.runs(args))
    assert first == [json.loads(line) for line in args.results.read_text().splitlines()]
    args.model = ["resnet18", "lstm"]
    assert [run["model"] for run in benchmark.runs(args)] == ["resnet18", "lstm"]
    assert made == ["lstm", "resnet18"]
    assert benchmark.text(first).splitlines()[1].split() == ["lstm", "1.0", "28", "1,000", "5", "2", "80.00%", "trains"]
