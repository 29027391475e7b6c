"""Training images that grow during a run: the first epochs are cheaper on small ones, and lose little.

A batch is a function of the seed and the step as ever, so a run that is taken up in the middle sees the same ones.
Photos are cropped to the size of the phase where they are decoded; images in memory are resized on the device. The
step is one function of which a program is compiled for each size before training begins.
"""

import itertools
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxnet.data import DeviceBatch, Source
from jaxnet.errors import InputError
from jaxnet.models import Model, Variables, abstract_variables
from jaxnet.parallel import Step
from jaxnet.parallel.state import TrainState

Make = Callable[[Source, int], Generator[DeviceBatch, None, None]]
CompiledStep = Callable[[Any, Any], Any]


class Phase(NamedTuple):
    """A part of a run with images of one size.

    Attributes:
        first_step: from which it lasts to the next phase.
        size: height and width of training images; None: as the data has them.
    """

    first_step: int
    size: int | None


def phases_of(resolutions: tuple[tuple[float, int], ...], total_steps: int) -> tuple[Phase, ...]:
    """The phases of a run of so many steps.

    >>> phases_of(((0.0, 128), (0.5, 160)), 100)
    (Phase(first_step=0, size=128), Phase(first_step=50, size=160))
    """
    return tuple(Phase(round(part * total_steps), size) for part, size in resolutions) or (Phase(0, None),)


def batch_shapes_at(shapes: Mapping[str, jax.ShapeDtypeStruct], size: int | None) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a batch with images of another size."""
    if size is None:
        return dict(shapes)
    images = shapes["image"]
    count, *_, channels = images.shape
    return {**shapes, "image": images.update(shape=(count, size, size, channels))}


def check_resolutions(model: Model, variables: Variables, phases: tuple[Phase, ...], image: Any) -> None:
    """Refuse a network whose parameters depend on the size of the images; `image` is the shape of one, as tested."""
    for _, size in phases:
        if size is None:
            continue
        of_size = abstract_variables(model, image.update(shape=(1, size, size, image.shape[-1])))
        if [leaf.shape for leaf in jax.tree.leaves(of_size)] != [leaf.shape for leaf in jax.tree.leaves(variables)]:
            raise InputError(
                f"task.resolutions: images of {size}x{size} give this network other parameters than those that it is "
                "tested with; it takes a network that averages over all places before its dense layers, such as ResNet"
            )


def batches_in_phases(
    make: Make, source: Source, phases: tuple[Phase, ...], step: int, sharding: jax.sharding.Sharding
) -> Generator[DeviceBatch, None, None]:
    """The batches from `step` on; `make(source, step)` gives those of one size for ever, placed as `sharding` says."""
    ends = [*(phase.first_step for phase in phases[1:]), None]
    for (_, size), end in zip(phases, ends, strict=True):
        if end is not None and end <= step:
            continue
        resize = jax.jit(lambda images, size=size: _resized(images, size), out_shardings=sharding)
        with closing(make(_at_size(source, size), step)) as batches:
            for batch in itertools.islice(batches, None if end is None else end - step):
                fits = size is None or batch["image"].shape[1:3] == (size, size)
                yield batch if fits else {**batch, "image": resize(batch["image"])}
        step = end or step


def _at_size(source: Source, size: int | None) -> Source:
    at_size = getattr(source, "at_size", None)
    return source if size is None or at_size is None else at_size(size)


def _resized(images: jax.Array, size: int) -> jax.Array:
    shape = (images.shape[0], size, size, images.shape[-1])
    values = jax.image.resize(images.astype(jnp.float32), shape, "bilinear")
    return jnp.round(values).astype(images.dtype)


def step_by_size(
    step: Step,
    state: TrainState,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    phases: tuple[Phase, ...],
    last: CompiledStep,
) -> CompiledStep:
    """The step compiled for every phase of a run, where `last` is that of the last phase, for batches of `shapes`."""
    if len(phases) == 1:
        return last
    sized = [batch_shapes_at(shapes, phase.size) for phase in phases[:-1]]
    programs: dict[tuple[int, ...], CompiledStep] = {
        of_size["image"].shape: step.lower(state, of_size).compile() for of_size in sized
    }
    programs[shapes["image"].shape] = last
    return lambda state, batch: programs[batch["image"].shape](state, batch)
