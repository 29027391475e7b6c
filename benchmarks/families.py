"""Whether every family of the zoo trains: each at reduced width, a few passes over part of Fashion-MNIST.

    python benchmarks/families.py --results families.jsonl
    python benchmarks/families.py --model resnet18 --model lstm --examples 60000 --epochs 2 --json

Trains through train.py with the recipe of the table below and prints the accuracy on the 10,000 test images. With
--results, finished runs are kept, one JSON object a line, and not made again: the same command continues after an
interruption. Such a file is for one version of the code. Nothing here is tuned for accuracy; a network passes if it is
right far more often than by chance.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jaxnet.config.run import Checkpoints, Config, Log
from jaxnet.data import FashionMNIST, Source
from jaxnet.data.source import ArraySource, Dataset
from jaxnet.models.zoo import ZOO
from jaxnet.optimizer import Optimizer
from jaxnet.tasks.classification import ImageClassification, Pixels
from jaxnet.training.trainer import train

PASSES = 0.6  # accuracy on the test split, where chance is 0.1

Run = dict[str, Any]


class Recipe(NamedTuple):
    """How a family is trained.

    Attributes:
        width: of the network.
        size: height and width to which the images are resized; None: 28, as they are.
        name: of the optimizer.
        rate: its learning rate.
        decay: its weight decay.
        scale: of the pixels, as a multiple of unit variance; 60 is that of images from 0 to 255 less their mean.
        fields: other fields of the network.
    """

    width: float
    size: int | None
    name: Literal["sgd", "adamw"]
    rate: float
    decay: float = 5e-4
    scale: float = 1.0
    fields: tuple[tuple[str, Any], ...] = ()


_NORMALIZED = Recipe(0.25, 64, "sgd", 0.05)
_VGG = Recipe(0.25, 32, "adamw", 1e-3)
_ALEXNET = Recipe(0.25, 64, "adamw", 1e-3)
_CIFAR = Recipe(1.0, None, "sgd", 1e-3, 4e-3, scale=60)
RECIPES = {
    "alexnet": _ALEXNET,
    "alexnet_2012": _ALEXNET._replace(scale=60),
    "caffenet": _ALEXNET._replace(scale=60),
    "nin": Recipe(0.5, 64, "adamw", 1e-3, scale=60),
    "cifar10_quick": _CIFAR,
    "cifar10_full": _CIFAR,
    "vgg11": _VGG,
    "vgg11_bn": _VGG,
    "vgg16": _VGG,
    "vgg16_bn": _VGG,
    "googlenet": Recipe(0.25, 64, "adamw", 1e-3),
    "googlenet_bn": _NORMALIZED,
    "inception_v3": _NORMALIZED._replace(size=96),
    "resnet18": _NORMALIZED,
    "resnet50": _NORMALIZED,
    "resnet50_v1": _NORMALIZED,
    "resnet50_d": _NORMALIZED,
    "cifar_resnet20": Recipe(1.0, None, "sgd", 0.05),
    "lstm": Recipe(1.0, None, "adamw", 5e-3),
    "vit_tiny": Recipe(0.25, None, "adamw", 2e-3, 0.05, fields=(("patch", 4),)),
}


@dataclass(frozen=True)
class Part:
    """The first training images of a data set, and all of its test images."""

    examples: int
    whole: Dataset = field(default_factory=FashionMNIST)

    def load(self, split: str) -> Source:
        """Open one split."""
        source: Any = self.whole.load(split)
        if split == "test":
            return source
        rows = source.rows(np.arange(min(self.examples, source.num_examples)))
        return ArraySource(rows["image"], rows["label"], source.num_classes)


def config_of(model: str, examples: int, epochs: float) -> Config:
    """The run that shows whether a network trains."""
    recipe = RECIPES[model]
    return Config(
        model=ZOO[model].build(num_classes=10, width=recipe.width, **dict(recipe.fields)),
        data=Part(examples),
        task=ImageClassification(pixels=Pixels(mean=(0.286,), std=(0.353 / recipe.scale,), size=recipe.size)),
        epochs=epochs,
        batch_size=64,
        eval_batch_size=500,
        eval_every_epochs=epochs,
        optimizer=Optimizer(
            recipe.name, recipe.rate, nesterov=True, warmup_epochs=epochs / 8, weight_decay=recipe.decay
        ),
        strategy="xla",
        checkpoints=Checkpoints(every_steps=10**9, keep=1),
        log=Log(tensorboard=False),
    )


def one_run(key: Run) -> Run:
    """Train; what there is to know of it."""
    config = config_of(**key)
    with tempfile.TemporaryDirectory() as workdir:
        summary = train(config, Path(workdir), quiet=True).summary
    if not summary["finished"]:
        sys.exit(f"stopped at step {summary['steps']}; the same command starts this run again")
    wanted = ("accuracy", "loss", "steps", "skipped_steps", "rollbacks", "seconds")
    return {"parameters": parameters(config), **{name: summary[name] for name in wanted}}


def parameters(config: Config) -> int:
    """Of the network at this width, its auxiliary classifiers among them."""
    image = jax.eval_shape(config.task.inputs, {"image": jax.ShapeDtypeStruct((1, 28, 28, 1), "uint8")})
    variables = jax.eval_shape(
        lambda key, images: config.model.init(key, images, train=False), jax.eval_shape(jax.random.key, 0), image
    )
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(variables["params"]))


def runs(args: argparse.Namespace) -> Iterator[Run]:
    """Every run; those that the results file lacks are made and added to it."""
    args.results.touch()
    done = [json.loads(line) for line in args.results.read_text().splitlines()]
    for number, model in enumerate(args.model, 1):
        key = {"model": model, "examples": args.examples, "epochs": args.epochs}
        run = next((run for run in done if key.items() <= run.items()), None)
        if run is None:
            print(f"{number} of {len(args.model)}: {model}", file=sys.stderr)
            run = {**key, **one_run(key)}
            with args.results.open("a") as file:
                file.write(json.dumps(run) + "\n")
        yield run


def verdict(run: Run) -> str:
    """What became of a run."""
    if run["skipped_steps"] or run["rollbacks"] or not math.isfinite(run["loss"]):
        return "diverged"
    return "trains" if run["accuracy"] >= PASSES else "does not learn"


def text(finished: list[Run]) -> str:
    """The table as a person reads it."""
    lines = [f"{'network':14} {'width':>5} {'pixels':>6} {'parameters':>11} {'steps':>6} {'seconds':>8} {'test':>8}"]
    for run in finished:
        recipe = RECIPES[run["model"]]
        network = f"{run['model']:14} {recipe.width:5} {recipe.size or 28:6} {run['parameters']:11,}"
        lines += [f"{network} {run['steps']:6} {run['seconds']:8.0f} {100 * run['accuracy']:7.2f}%  {verdict(run)}"]
    return "\n".join(lines)


def main() -> None:
    """Make the runs that are not there yet, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=sorted(RECIPES), help="again for each; default all")
    parser.add_argument("--examples", type=int, default=6000, help="training images, from the first; default 6000")
    parser.add_argument("--epochs", type=float, default=3.0, help="passes over them; default 3")
    parser.add_argument("--results", type=Path, default=Path(os.devnull), help="file of finished runs; default none")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    args.model = args.model or list(RECIPES)
    finished = list(runs(args))
    rows = [{**run, "verdict": verdict(run)} for run in finished]
    print(json.dumps({"passes": PASSES, "runs": rows}) if args.json else text(finished))
    sys.exit(any(row["verdict"] != "trains" for row in rows))


if __name__ == "__main__":
    main()
