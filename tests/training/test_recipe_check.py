"""Recipes that cannot be followed are refused, naming the key."""

import logging

import pytest

from jaxnet.config.check import endless_warmup, recipe_warnings
from jaxnet.config.file import load_config
from jaxnet.data import Digits
from jaxnet.errors import InputError
from support.programs import ROOT
from support.refusals import TINY, every, says
from support.runs import train

STEP = "optimizer.schedule=step"
CASES = {
    "two warm-ups": ("optimizer.warmup_epochs=5", "warmup_steps=50", "warmup_epochs=5.0", "set one of them to 0"),
    "step without milestones": (STEP, "optimizer.milestones=() does not go with optimizer.schedule=step"),
    "milestones without step": ("optimizer.milestones=0.5", "does not go with optimizer.schedule=cosine"),
    "milestones in epochs": (f"{STEP} optimizer.milestones=30,60", "wanted parts of the run between 0 and 1"),
    "milestones not in order": (f"{STEP} optimizer.milestones=0.5,0.2", "each larger than the one before"),
    "negative multiplier": ("optimizer.groups=conv_0:-1", "'conv_0' has the multiplier -1.0: wanted at least 0"),
    "group without multiplier": ("optimizer.groups=conv_0", "wanted a comma-separated tuple, each text:a number"),
    "power": ("optimizer.power=0", "optimizer.power=0.0: wanted a number above 0"),
    "factor": ("optimizer.factor=0", "optimizer.factor=0.0: wanted a number above 0"),
    "reference batch": ("optimizer.reference_batch=0", "optimizer.reference_batch=0: wanted at least 1, or none"),
    "start of warm-up": ("optimizer.warmup_from=2", "optimizer.warmup_from=2.0: wanted 0 to 1"),
    "mixup": ("task.mixing.mixup=-1", "task.mixing.mixup=-1.0: wanted at least 0"),
    "probability": ("task.mixing.probability=2", "task.mixing.probability=2.0: wanted 0 to 1"),
    "brightness": ("task.augmentation.brightness=1.5", "task.augmentation.brightness=1.5: wanted 0 to 1"),
    "size": ("task.pixels.size=0", "task.pixels.size=0: wanted 1 to 65535, the longest side of a JPEG file, or none"),
    "resolutions in epochs": ("task.resolutions=0:128,6:160", "wanted (part of the run, size) from 0 on"),
    "resolutions that are no pairs": ("task.resolutions=128", "each a number:an integer"),
}


@every(CASES)
def test_a_recipe_that_cannot_be_followed(given, words):
    with pytest.raises(InputError) as error:
        load_config(ROOT / "configs/digits.py", *given.split())
    says(str(error.value), words)


@pytest.mark.parametrize(
    ("warmup", "steps", "key"),
    [
        ("optimizer.warmup_steps=50", 45, "warmup_steps=50: warm-up takes 50 steps and the run 45,"),
        ("optimizer.warmup_steps=45", 45, "warmup_steps=45: warm-up takes 45 steps and the run 45,"),
        ("optimizer.warmup_steps=44", 45, None),
        ("optimizer.warmup_steps=0", 1, None),
        ("optimizer.warmup_steps=0 optimizer.warmup_epochs=2.5", 45, "warmup_epochs=2.5: warm-up takes 56 steps and"),
        ("optimizer.warmup_steps=0 optimizer.warmup_epochs=1.5", 45, None),
    ],
)
def test_warmup_that_a_run_does_not_outlast_is_named(warmup, steps, key):
    line = endless_warmup(load_config(ROOT / "configs/digits.py", *warmup.split()), 22.45, steps)
    assert (line or "").startswith(f"optimizer.{key}" if key else "")
    assert (line is None) == (key is None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("profile.steps=3 profile.start=45", "profile.start=45: the run has 45 steps, so nothing is traced"),
        ("profile.steps=3 profile.start=44", None),
        ("batch_size=2874", "batch_size=2874 is more than the 1437 training examples, so a step takes 2.0 epochs"),
        ("batch_size=1437", None),
        ("task.augmentation.shift=8", "task.augmentation.shift=8: images of 8x8 may be left with nothing in them"),
        ("task.augmentation.erase=100", "task.augmentation.erase=100: images of 8x8"),
        ("task.augmentation.erase=7", None),
        ("task.augmentation.saturation=0.5", "task.augmentation.saturation=0.5: grey images have none"),
        ("task.mixing.cutmix_share=0.9 task.mixing.mixup=1", "task.mixing.cutmix_share=0.9: it counts where"),
        ("task.mixing.cutmix_share=0.9 task.mixing.mixup=1 task.mixing.cutmix=1", None),
    ],
)
def test_what_does_nothing_or_ruins_a_run_is_named(given, said):
    config = load_config(ROOT / "configs/digits.py", "optimizer.warmup_steps=0", *given.split())
    lines = list(recipe_warnings(config, Digits().load("train"), 22.45, 45))
    assert len(lines) == (said is not None)
    assert not lines or lines[0].startswith(said)


def test_a_run_says_so_once(tmp_path, caplog):
    path = tmp_path / "tiny.py"
    path.write_text(TINY)
    config = load_config(path, "optimizer.warmup_epochs=1")
    with caplog.at_level(logging.WARNING, logger="jaxnet"):
        train(config, tmp_path / "run", quiet=True)
    assert [message.partition(":")[0] for message in caplog.messages] == ["optimizer.warmup_epochs=1"]
