"""A package of someone else, installed in a folder of the tests, with entry points of jaxnet."""

import textwrap

SOURCE = '''
from dataclasses import dataclass

import flax.linen as nn
import numpy as np

from jaxnet import comm
from jaxnet.data import ArraySource


def halves(scale: float = 0.5, bucket_bytes: int | None = 65536):
    """The sum of values times `scale`, divided by it: the sum."""
    inner = comm.all_reduce(*comm.AXES)

    def reduce(message, state):
        total, state = inner.reduce(scale * message, state)
        return total / scale, state

    return comm.Strategy(comm.bucketed(inner._replace(reduce=reduce), bucket_bytes), "during", "halves, summed")


def nothing():
    return None


class Wide(nn.Module):
    num_classes: int
    width: int = 4

    @nn.compact
    def __call__(self, images, train):
        hidden = nn.relu(nn.Dense(self.width)(images.reshape(images.shape[0], -1)))
        return nn.Dense(self.num_classes)(hidden)


@dataclass(frozen=True)
class Sides:
    count: int = 64

    def load(self, split):
        draw = np.random.RandomState(0 if split == "train" else 1)
        label = draw.randint(0, 2, self.count).astype(np.int32)
        image = draw.randint(0, 64, (self.count, 4, 4, 1)).astype(np.uint8)
        image[np.arange(self.count), 0, 3 * label] = 255
        return ArraySource(image, label, num_classes=2)
'''
ENTRY_POINTS = """
    [jaxnet.strategies]
    halves = NAME:halves
    nothing = NAME:nothing
    absent = NAME.absent:strategy
    ddp = NAME:nothing

    [jaxnet.models]
    wide = NAME:Wide
"""


def install(folder, name, monkeypatch):
    """Install it under that name, as pip does: a module, and metadata beside it."""
    (folder / f"{name}.py").write_text(SOURCE)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS).replace("NAME", name))
    monkeypatch.syspath_prepend(folder)
