"""A run that goes on with other data than it began with: other classes are refused, other examples are told."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from jaxnet.config.run import Config, Log
from jaxnet.data import Arrays, ImageFolder
from jaxnet.errors import InputError
from jaxnet.models import CNN
from support.runs import train

CONFIG = Config(
    model=CNN(3, widths=(2,), hidden=4),
    data=None,
    epochs=1,
    batch_size=8,
    eval_batch_size=8,
    log=Log(tensorboard=False),
)


def write_folder(root, names):
    for value, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(np.full((8, 8, 3), 40 * value + number, np.uint8)).save(root / name / f"{number}.png")


def folder(root):
    return ImageFolder(str(root), size=8, test_size=8)


def test_a_class_of_another_name_is_refused_and_nothing_is_written(tmp_path):
    """Labels are the places of the names in their order, so one name may change the label of every class."""
    pictures, run = tmp_path / "pictures", tmp_path / "run"
    write_folder(pictures / "train", ["apple", "banana", "cherry"])
    write_folder(pictures / "test", ["apple", "banana", "cherry"])
    config = replace(CONFIG, data=folder(pictures))
    train(config, run, quiet=True)
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    for split in ("train", "test"):
        (pictures / split / "apple").rename(pictures / split / "red_apple")
    with pytest.raises(InputError, match=r"label 0 was 'apple' and is 'banana'\): give them their names"):
        train(replace(config, epochs=2), run, quiet=True, allow_config_change=True)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before

    for split in ("train", "test"):
        (pictures / split / "red_apple").rename(pictures / split / "apple")
    assert train(replace(config, epochs=2), run, quiet=True, allow_config_change=True)["steps"] == 6


def numbers(examples):
    x = np.random.RandomState(0).randint(0, 255, (examples, 8, 8, 1), np.uint8)
    split = {"image": x, "label": np.arange(examples) % 3}
    return Arrays(train=split, test=split)


def test_another_batch_size_is_told(tmp_path, caplog):
    """Steps are counted on, so a run that has seen half of its epochs may be at its end."""
    config = replace(CONFIG, data=numbers(40))
    train(config, tmp_path, quiet=True)
    for size, said in ((8, False), (16, True)):
        with caplog.at_level(logging.WARNING, logger="jaxnet"):
            train(replace(config, batch_size=size, epochs=2), tmp_path, quiet=True, allow_config_change=True)
        assert any("batch_size was 8 when step" in message for message in caplog.messages) == said, caplog.messages


@pytest.mark.parametrize(("examples", "said"), [(40, False), (41, True)])
def test_another_number_of_examples_is_told(tmp_path, caplog, examples, said):
    config = replace(CONFIG, data=numbers(40))
    train(config, tmp_path, quiet=True)
    with caplog.at_level(logging.WARNING, logger="jaxnet"):
        train(replace(config, data=numbers(examples), epochs=2), tmp_path, quiet=True, allow_config_change=True)
    told = [message for message in caplog.messages if "the data set had 40 examples" in message]
    assert bool(told) == said, caplog.messages
