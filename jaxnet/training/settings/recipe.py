"""Refuses a recipe whose parts do not go together."""

import itertools

from jaxnet.errors import InputError
from jaxnet.training.config import Config
from jaxnet.training.optimizer import Optimizer


def check_recipe(config: Config) -> None:
    """Refuse a schedule, of the rate or of the images' size, that cannot be followed."""
    optimizer = config.optimizer
    if optimizer.warmup_steps and optimizer.warmup_epochs:
        raise InputError(
            f"optimizer.warmup_steps={optimizer.warmup_steps} and optimizer.warmup_epochs={optimizer.warmup_epochs}: "
            "both say how long warm-up is; set one of them to 0"
        )
    _check_milestones(optimizer)
    if config.resolutions:
        _check_resolutions(config.resolutions)
    for pattern, multiplier in optimizer.groups:
        if multiplier < 0:
            raise InputError(f"optimizer.groups: {pattern!r} has the multiplier {multiplier}: wanted at least 0")


def _check_milestones(optimizer: Optimizer) -> None:
    got = f"optimizer.milestones={optimizer.milestones}"
    if (optimizer.schedule == "step") != bool(optimizer.milestones):
        raise InputError(
            f"{got} does not go with optimizer.schedule={optimizer.schedule}: schedule=step needs milestones, such as "
            "0.333,0.667, and the others have none"
        )
    edges = (0.0, *optimizer.milestones, 1.0)
    if any(before >= after for before, after in itertools.pairwise(edges)):
        raise InputError(f"{got}: wanted parts of the run between 0 and 1, each larger than the one before")


def _check_resolutions(resolutions: tuple[tuple[float, int], ...]) -> None:
    starts, sizes = zip(*resolutions, strict=True)
    edges = (*starts, 1.0)
    if starts[0] != 0 or any(before >= after for before, after in itertools.pairwise(edges)) or min(sizes) < 1:
        raise InputError(
            f"resolutions={resolutions}: wanted (part of the run, size) from 0 on, each part larger than the one "
            "before and below 1, such as 0:128,0.5:160"
        )
