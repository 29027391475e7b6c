"""Synchronous data-parallel training of Flax models, in which how gradients travel is a part that you can swap.

    import jaxnet
    from jaxnet import comm

    run = jaxnet.train(jaxnet.load_config("configs/digits.py", "strategy=ddp"), workdir="runs/a")
    run.metrics, run.summary, run.plan
    jaxnet.compare({"xla": "runs/b", "ddp": run})

    config = jaxnet.Config(model=MyNet(), data=my_data, epochs=1, batch_size=64, strategy=comm.Strategy(my_reducer))

train           trains a Config in a directory, and continues what was begun there
prepare         for a loop of your own: experiment.init(), .batches(), .step(state, batch), .evaluate(state)
load_config     the Config of a Python file, with key=value changes
compare         several runs beside each other: a table and curves
load            what was trained, as a function: from images to probabilities, or as its task says
Config          what a run is; Optimizer, Augmentation, ... are its parts
Task            what is learned; ImageClassification, LanguageModel, Regression, ... are tasks
Observer        sees every step and every line of metrics, and may stop a run
comm            how gradients travel: reducers, strategies, plans; needs JAX alone
data, models    data sets and networks
notebook        a function on several real processes, from a notebook

The command `jaxnet` does the same from a shell: `jaxnet train --config FILE`, `jaxnet --help`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxnet import comm as comm
    from jaxnet import data as data
    from jaxnet import models as models
    from jaxnet import notebook as notebook
    from jaxnet.config.file import load_config as load_config
    from jaxnet.config.run import Checkpoints as Checkpoints
    from jaxnet.config.run import Config as Config
    from jaxnet.config.run import EarlyStopping as EarlyStopping
    from jaxnet.config.run import Guard as Guard
    from jaxnet.config.run import Log as Log
    from jaxnet.config.run import Profile as Profile
    from jaxnet.config.run import WatchdogLimits as WatchdogLimits
    from jaxnet.ensembles import Ensemble as Ensemble
    from jaxnet.errors import InputError as InputError
    from jaxnet.inference import load as load
    from jaxnet.optimizer import Optimizer as Optimizer
    from jaxnet.tasks.augmentation import Augmentation as Augmentation
    from jaxnet.tasks.classification import Classification as Classification
    from jaxnet.tasks.classification import ImageClassification as ImageClassification
    from jaxnet.tasks.classification import Pixels as Pixels
    from jaxnet.tasks.mixing import Mixing as Mixing
    from jaxnet.tasks.regression import Regression as Regression
    from jaxnet.tasks.task import Task as Task
    from jaxnet.tasks.text import LanguageModel as LanguageModel
    from jaxnet.tasks.text import SequenceClassification as SequenceClassification
    from jaxnet.training.experiment import Experiment as Experiment
    from jaxnet.training.observer import Observer as Observer
    from jaxnet.training.prepare import prepare as prepare
    from jaxnet.training.results import Run as Run
    from jaxnet.training.results import compare as compare
    from jaxnet.training.trainer import train as train

# Imported when first used: `import jaxnet` alone imports neither JAX nor Flax.
_HOMES = {
    "load_config": "jaxnet.config.file",
    **dict.fromkeys(
        ("Config", "Checkpoints", "EarlyStopping", "Guard", "Log", "Profile", "WatchdogLimits"), "jaxnet.config.run"
    ),
    "Optimizer": "jaxnet.optimizer",
    "Augmentation": "jaxnet.tasks.augmentation",
    "Mixing": "jaxnet.tasks.mixing",
    **dict.fromkeys(("Classification", "ImageClassification", "Pixels"), "jaxnet.tasks.classification"),
    "Regression": "jaxnet.tasks.regression",
    **dict.fromkeys(("LanguageModel", "SequenceClassification"), "jaxnet.tasks.text"),
    "Task": "jaxnet.tasks.task",
    "Ensemble": "jaxnet.ensembles",
    "InputError": "jaxnet.errors",
    "load": "jaxnet.inference",
    "train": "jaxnet.training.trainer",
    "prepare": "jaxnet.training.prepare",
    "Experiment": "jaxnet.training.experiment",
    **dict.fromkeys(("compare", "Run"), "jaxnet.training.results"),
    "Observer": "jaxnet.training.observer",
}
_PACKAGES = ("comm", "data", "models", "notebook")

__all__ = [
    *("train", "prepare", "load_config", "compare", "load"),
    *("Config", "Optimizer", "Ensemble"),
    *("Task", "ImageClassification", "Pixels", "Augmentation", "Mixing"),
    *("Classification", "Regression", "SequenceClassification", "LanguageModel"),
    *("Checkpoints", "EarlyStopping", "Log", "Profile", "Guard", "WatchdogLimits"),
    *("Run", "Experiment", "Observer", "InputError"),
    *("comm", "data", "models", "notebook"),
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"jaxnet.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'jaxnet' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
