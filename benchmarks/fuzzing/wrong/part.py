"""A part of a config that is wrong, and the config file that holds it."""

from typing import NamedTuple

_FILE = """\
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from dataclasses import dataclass

import jaxnet
from jaxnet import Classification, Config, ImageClassification, Log, Optimizer, Task
from jaxnet.data import Arrays, ArraySource, Items, Synthetic
from jaxnet.models import CNN, Model

{code}

def get_config():
    return Config(
        model={model},
        data={data},
        task={task},
        optimizer={optimizer},
        strategy={strategy},
        epochs=1,
        batch_size=16,
        eval_batch_size=16,
        log=Log(tensorboard=False),
    )
"""
_GOOD = {
    "model": "CNN(2, widths=(2,), hidden=4)",
    "data": "Synthetic((8, 8, 1), 2, 32, 16)",
    "task": "ImageClassification()",
    "optimizer": "Optimizer()",
    "strategy": "'hierarchical'",
}


class Wrong(NamedTuple):
    """A part that is wrong.

    Attributes:
        code: what the config file defines.
        fields: what it sets, as Python.
        words: what the message must say; none: it may train.
        whole: the whole file, in place of these.
    """

    code: str = ""
    fields: dict[str, str] = {}  # noqa: RUF012  it is never changed
    words: tuple[str, ...] = ()
    whole: str | bytes | None = None

    def file(self) -> bytes:
        """The config file."""
        if self.whole is not None:
            return self.whole if isinstance(self.whole, bytes) else self.whole.encode()
        return _FILE.format(code=self.code, **{**_GOOD, **self.fields}).encode()
