"""Configs whose keys are fuzzed: those that come along, and small ones of each task and each kind of data set."""

import functools
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fuzzing.values import MAKES

ROOT = Path(__file__).parents[2]

_BASE = (
    "epochs=0.02, batch_size=16, eval_batch_size=64, log=Log(every_steps=1, tensorboard=False), "
    "checkpoints=Checkpoints(every_steps=2)"
)
_CODE = """\
tokens = {"tokens": np.arange(320, dtype=np.int32).reshape(32, 10) % 7, "label": np.arange(32) % 2}
items = [{"features": np.float32([i, i + 1]), "label": np.int32(i % 2)} for i in range(32)]


class Bag(nn.Module):
    width: int = 4

    @nn.compact
    def __call__(self, tokens, mask):
        return nn.Dense(2)((nn.Embed(7, self.width)(tokens) * mask[..., None]).sum(1))


def pictures():
    root = Path(__file__).parent / "pictures"
    for split in ("train", "test"):
        for number in range(8):
            path = root / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 12), (number, 40, 200)).save(path)
    return str(root)


"""
_SMALL = "CNN({0}, widths=(2,), hidden=4)"
_SETS = (
    ("nn.Dense(1)", "Diabetes()", "Regression(mean=150.0, std=75.0, error='huber')"),
    ("Transformer(positions=16, dim=8, depth=1, heads=2)", "PythonTopics(length=16)", "LanguageModel()"),
    ("TextLSTM(hidden=4)", "Text(__file__, length=8, test_share=0.5)", "LanguageModel(bytes_per_token=1.0)"),
    ("Bag()", "Arrays(train=tokens, test=tokens)", "SequenceClassification(pad=0)"),
    ("nn.Dense(2)", "Items(train=items, test=items, threads=2)", "Classification()"),
    (_SMALL.format(2), "ImageFolder(pictures(), size=8, test_size=8, test_resize=8)", "ImageClassification()"),
    (
        _SMALL.format(10),
        "Digits()",
        "ImageClassification(mixing=Mixing(mixup=0.2, cutmix=1.0), augmentation=Augmentation(flip=True, shift=1))",
    ),
    ("ResNet(2, depths=(1,), block='basic', stem='small', channels=2)", "Synthetic((8, 8, 3), 2, 32, 16)", "..."),
    ("ViT(2, patch=4, dim=4, depth=1, heads=2)", "Synthetic((8, 8, 3), 2, 32, 16)", "..."),
    ("LSTM(2, hidden=4)", "Synthetic((8, 8, 1), 2, 32, 16)", "..."),
    ("Cifar10(2, width=0.1)", "Synthetic((16, 16, 3), 2, 32, 16)", "..."),
    (_SMALL.format(10), "TFDS('mnist', data_dir='/nowhere')", "..."),
    (_SMALL.format(1000), "ImageNet(data_dir='/nowhere', size=8, test_size=8, test_resize=8)", "..."),
    (_SMALL.format(10), "FashionMNIST(data_dir='/nowhere', idx_dir='/nowhere')", "..."),
)
# Of these the data are put in the place of others that are not here.
_IMAGES = {"cifar10_resnet20": (32, 32, 3), "fashion_mnist": (28, 28, 1)}


def templates() -> list[str]:
    """The text of each, which defines `made()`, a Config."""
    configs = sorted((ROOT / "configs").glob("*.py"))
    return [*map(_small, _SETS), *(_came_along(path) for path in configs)]


def _small(parts: tuple[str, str, str]) -> str:
    model, data, task = parts
    given = f"model={model}, data={data}, {'' if task == '...' else f'task={task}, '}{_BASE}"
    return f"{MAKES}{_CODE}def made():\n    return Config({given})\n"


def _came_along(path: Path) -> str:
    config = f"load_config({str(path)!r})"
    if path.stem in _IMAGES:
        config = f"dataclasses.replace({config}, data=Synthetic({_IMAGES[path.stem]}, 10, 256, 128))"
    return f"{MAKES}from jaxnet import load_config\n\n\ndef made():\n    return {config}\n"


def as_it_is(template: str) -> str:
    """The config file of a template."""
    return f"{template}\n\ndef get_config():\n    return made()\n"


def with_object(template: str, key: str, value: str) -> str:
    """The config file of a template in which a key has this value, an expression."""
    return f"{template}\n\ndef get_config():\n    return put(made(), {key!r}, {value})\n"


@functools.cache
def kinds_of(template: str) -> dict[str, Any]:
    """The keys of a template's config, groups left out, with their types."""
    from jaxnet.config.file import load_config
    from jaxnet.config.keys import is_group, key_values

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.py"
        path.write_text(as_it_is(template))
        return {key: kind for key, value, kind in key_values(load_config(path)) if not is_group(value)}
