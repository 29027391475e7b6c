"""`jaxnet new` writes a config to begin with."""

import argparse
from pathlib import Path

from jaxnet.command_line import Commands, given_path
from jaxnet.errors import InputError, printable

_DESCRIPTION = """\
Write a config to begin with: a small network of your own on the handwritten digits that come with jaxnet. It is a
Python file; change the model, the data and the rest in it. An existing file is left alone."""

_EXAMPLES = """\
examples:
  jaxnet new my_config.py && jaxnet train --config my_config.py
"""

_CONFIG = '''\
"""What is trained, on what, and how.

    jaxnet train --config {name}
    jaxnet train --config {name} --workdir runs/wide model.width=64 optimizer.learning_rate=0.001
"""

import flax.linen as nn

from jaxnet import Config, ImageClassification, Optimizer
from jaxnet.data import Digits


class Net(nn.Module):
    """A network of your own: any Flax Linen module; jaxnet.models.from_nnx adapts one of NNX."""

    num_classes: int = 10
    width: int = 32

    @nn.compact
    def __call__(self, images, train):
        x = nn.relu(nn.Conv(self.width, (3, 3))(images))
        x = nn.relu(nn.Conv(2 * self.width, (3, 3), (2, 2))(x))
        x = nn.Dropout(0.2, deterministic=not train)(x.reshape(x.shape[0], -1))
        return nn.Dense(self.num_classes)(x)


def get_config():
    return Config(
        model=Net(),
        data=Digits(),  # or Arrays(train=..., test=...), ImageFolder("photos"), Text(...): help("jaxnet.data")
        task=ImageClassification(),  # or Classification(), Regression(), LanguageModel(): help("jaxnet.tasks")
        optimizer=Optimizer("adamw", learning_rate=0.002, schedule="cosine"),
        epochs=10,
        batch_size=64,
        strategy="auto",  # how gradients travel between devices: `jaxnet strategies`
    )
'''


def add_new(commands: Commands) -> None:
    """Add `new` to the commands of `jaxnet`."""
    parser = commands.add_parser("new", help="write a config to begin with", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("file", type=given_path, metavar="FILE", help="the config to write; a name that ends in .py")
    parser.set_defaults(run=run_new)


def run_new(args: argparse.Namespace) -> int:
    """Write it, and say how it is trained."""
    path: Path = args.file
    if path.suffix != ".py":
        raise InputError(f"{path}: wanted a name that ends in .py, such as my_config.py")
    name = printable(str(path))
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(_CONFIG.format(name=name))
                file.flush()
            except OSError:
                path.unlink(missing_ok=True)  # so that a second try is not refused
                raise
    except FileExistsError as error:
        raise InputError(f"{name} exists and is left alone; give another name") from error
    except OSError as error:
        raise InputError(f"{name} cannot be written: {error.strerror}") from error
    print(f"written to {name}; train it: jaxnet train --config {name}")
    return 0
