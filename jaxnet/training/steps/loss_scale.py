"""A loss scale for float16: gradients too small for its 5 bits of exponent are multiplied up, and divided again."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxnet.errors import InputError
from jaxnet.training.loss import Batch, LossFn, PyTree, Result

_FIRST = 2.0**15
_LARGEST = 2.0**24  # far beyond what float16 holds; gradients in float32 still do not overflow
_PATIENCE = 2000


class LossScale(NamedTuple):
    """What the loss is multiplied by; the same on every device.

    Attributes:
        scale: a power of two, so that neither way rounds, float32 [].
        good: steps since it last changed or a step was skipped, int32 [].
    """

    scale: jax.Array
    good: jax.Array

    def next(self, good: jax.Array) -> "LossScale":
        """After a step: half where its gradient was not `good`, twice after 2000 that were."""
        count = jnp.where(good, self.good + 1, 0)
        grown = count == _PATIENCE
        factor = jnp.where(good, jnp.where(grown, 2.0, 1.0), 0.5)
        return LossScale(jnp.clip(self.scale * factor, 1.0, _LARGEST), jnp.where(grown, 0, count))


def first_scale() -> LossScale:
    """That of the first step: too large for most networks, and right after a few halvings."""
    return LossScale(jnp.float32(_FIRST), jnp.int32(0))


def stored_scale() -> dict[str, np.generic]:
    """The leaves of the first scale as a checkpoint of a `TrainState` names them: for one that was saved without."""
    return {"scale/scale": np.float32(_FIRST), "scale/good": np.int32(0)}


def scaled(loss_fn: LossFn, scale: LossScale | None) -> LossFn:
    """`loss_fn` with its loss multiplied by the scale; metrics are those of the loss itself."""
    if scale is None:
        return loss_fn

    def scaled_fn(params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array) -> tuple[jax.Array, Result]:
        loss, result = loss_fn(params, stats, batch, keys)
        return loss * scale.scale, result

    return scaled_fn


def before_sum(grads: PyTree, scale: LossScale | None, comm: PyTree) -> PyTree:
    """A device's gradients as they travel: still scaled, unless the reducer remembers some of them.

    What it adds to the next message would otherwise be in the units of a scale that may have changed since.
    """
    if scale is None or not jax.tree.leaves(comm):
        return grads
    return jax.tree.map(lambda leaf: leaf / scale.scale, grads)


def divisor(devices: int, scale: LossScale | None, comm: PyTree) -> int | jax.Array:
    """What makes the mean gradient of a sum over `devices`."""
    return devices if scale is None or jax.tree.leaves(comm) else devices * scale.scale


def needs_scale(model: Any) -> bool:
    """Whether a model computes in float16: its field `dtype` says so."""
    dtype = getattr(model, "dtype", None)
    return dtype is not None and jnp.dtype(dtype) == jnp.float16


def check_scale(model: Any, skips: bool, strategy: str, schedule: str) -> None:
    """Refuse float16 where no scale can be found for it."""
    if not needs_scale(model):
        return
    if not skips:
        raise InputError(
            "model.dtype=float16 does not go with guard.skip=false: the loss scale is found by skipping steps that "
            "overflow; leave guard.skip=true, or use model.dtype=bfloat16"
        )
    if schedule == "local":
        raise InputError(
            f"model.dtype=float16 does not go with strategy={strategy}, in which devices train by themselves and could "
            "not agree on a loss scale; use model.dtype=bfloat16 or another strategy"
        )
