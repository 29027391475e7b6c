"""Refuses a recipe whose parts do not go together, or says that it is a strange one."""

import itertools
from collections.abc import Iterator

from jaxnet.errors import InputError
from jaxnet.training.config import Config
from jaxnet.training.mixing import Mixing
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


def strange(
    config: Config, image_shape: tuple[int, int, int], steps_per_epoch: float, total_steps: int
) -> Iterator[str]:
    """A line for each thing that was asked for and does nothing, or ruins the run; images are of this shape.

    No reason to refuse: whether a program runs is tried with a few steps, and a config serves more than one data set.
    """
    if warning := endless_warmup(config, steps_per_epoch, total_steps):
        yield warning
    height, width, channels = config.pixels.shape(image_shape)
    augmentation, mixing, profile = config.augmentation, config.mixing, config.profile
    if profile.steps and profile.start >= total_steps:
        yield f"profile.start={profile.start}: the run has {total_steps} steps, so nothing is traced; begin earlier"
    for name in ("shift", "erase"):
        if (size := getattr(augmentation, name)) >= min(height, width):
            yield f"augmentation.{name}={size}: images of {height}x{width} may be left with nothing in them; give less"
    if augmentation.saturation and channels == 1:
        yield f"augmentation.saturation={augmentation.saturation:g}: grey images have none; leave it out"
    if mixing.cutmix_share != Mixing().cutmix_share and not (mixing.mixup and mixing.cutmix):
        yield f"mixing.cutmix_share={mixing.cutmix_share:g}: it counts where mixing.mixup and mixing.cutmix are both on"


def endless_warmup(config: Config, steps_per_epoch: float, total_steps: int) -> str | None:
    """The line that says that the rate never stops rising, as in a long recipe that was cut short; or None."""
    given = config.optimizer
    warmup = given.for_run(config.batch_size, steps_per_epoch).warmup_steps
    if not warmup or warmup < total_steps:
        return None
    key = f"warmup_steps={given.warmup_steps}" if given.warmup_steps else f"warmup_epochs={given.warmup_epochs:g}"
    return (
        f"optimizer.{key}: warm-up takes {warmup} steps and the run {total_steps}, so the learning rate only rises and "
        f"optimizer.schedule={given.schedule} never begins; shorten warm-up, or raise epochs"
    )


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
