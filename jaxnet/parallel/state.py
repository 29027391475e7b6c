"""Everything that one step hands to the next."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh

from jaxnet.comm import Reducer, one_per_device, replicated
from jaxnet.ensembles import member_keys
from jaxnet.errors import InputError, shown
from jaxnet.models import Model, Variables, fast_keys, leaf_name
from jaxnet.tasks.task import Batch, LossFn, LossOutput, PyTree

# ---- A loss scale for float16: gradients too small for its 5 bits of exponent are multiplied up, and divided again


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

    def scaled_fn(params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array) -> tuple[jax.Array, LossOutput]:
        loss, result = loss_fn(params, stats, batch, keys)
        return loss * scale.scale, result

    return scaled_fn


def before_sum(grads: PyTree, scale: LossScale | None, comm: PyTree) -> PyTree:
    """A device's gradients as they travel: still scaled, unless the reducer remembers some of them.

    What it adds to the next message would otherwise be in the units of a scale that may have changed since.
    """
    if scale is None or not jax.tree.leaves(comm):
        return grads
    return divided(grads, scale.scale)


def divided(tree: PyTree, by: int | jax.Array) -> PyTree:
    """Each leaf divided, in its own dtype: one of 16 bits stays so beside a divisor of 32."""
    return jax.tree.map(lambda leaf: (leaf / by).astype(leaf.dtype), tree)


def divisor(devices: int, scale: LossScale | None, comm: PyTree) -> int | jax.Array:
    """What makes the mean gradient of a sum over `devices`."""
    return devices if scale is None or jax.tree.leaves(comm) else devices * scale.scale


def needs_scale(model: Any) -> bool:
    """Whether a model computes in float16: its field `dtype` says so."""
    dtype = getattr(model, "dtype", None)
    try:
        return dtype is not None and jnp.dtype(dtype) == jnp.float16
    except Exception as error:  # NumPy reads text as a dtype by a grammar of its own
        raise InputError(f"model.dtype={shown(dtype)}: wanted a dtype, such as float32 or bfloat16") from error


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


class TrainState(NamedTuple):
    """State of a run. Whole on every device, but for `comm`, whose leaves lead with [hosts, devices].

    Under a 'deferred' schedule the step takes and gives parameters, their average and the optimizer's state in
    parts, one a device; under a 'local' one each device has these and the running averages for itself. See `Layout`.
    Checkpoints hold whole states under every schedule.

    Attributes:
        step: steps done, int32 [].
        params: the model's parameters.
        stats: BatchNorm's running averages; the mean over devices.
        optimizer: the optimizer's state.
        comm: the reducer's state, one per device.
        average: exponential moving average of the parameters, or None; of those of 16 bits in float32.
        key: key data of the run's random numbers, uint32 [2]; of an ensemble [members, 2].
        scale: of the loss, where the model computes in float16; else None.
    """

    step: jax.Array
    params: PyTree
    stats: PyTree
    optimizer: PyTree
    comm: PyTree
    average: PyTree | None
    key: jax.Array
    scale: LossScale | None = None

    def _repr_html_(self) -> str:
        """In a notebook, a tree to open and close, with the mean, spread and range of each array."""
        import treescope

        html: str = treescope.render_to_html(self._asdict())
        return html


def with_values(variables: Variables, values: Mapping[str, jax.Array]) -> Variables:
    """The variables with those values in the place of their own, in every member of an ensemble; to be traced.

    >>> with_values(Variables({"fc": {"bias": jnp.zeros(2)}}, {}), {"params/fc/bias": jnp.ones(2)}).params
    {'fc': {'bias': Array([1., 1.], dtype=float32)}}
    """
    if not values:
        return variables
    paths, structure = jax.tree.flatten_with_path({"params": variables.params, **variables.stats})
    named = [(leaf_name(path), leaf) for path, leaf in paths]
    # A copy, because the state is donated and the caller's arrays may be the memory of a file.
    leaves = [jnp.copy(jnp.broadcast_to(values[name], leaf.shape)) if name in values else leaf for name, leaf in named]
    tree = jax.tree.unflatten(structure, leaves)
    return Variables(tree.pop("params"), tree)


def first_state(
    model: Model,
    optimizer: optax.GradientTransformation,
    reducer: Reducer | None,
    mesh: Mesh,
    inputs: PyTree,
    seed: int,
    initial: Mapping[str, jax.Array] = MappingProxyType({}),
    *,
    averaged: bool = False,
    scaled: bool = False,
    members: int | None = None,
) -> TrainState:
    """The whole state before the first step: a function of `seed`, and of values by name, the same on any mesh.

    To be traced: `Layout.make` makes it on the mesh, and under `jax.eval_shape` it gives shapes alone. `inputs` are the
    shapes of what the model is called with for one example. With `members` the model is that of an ensemble, and the
    optimizer too.
    """
    key = fast_keys(jax.random.key(seed) if members is None else member_keys(seed, members))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), inputs)
    variables = with_values(model.init(key, zeros), initial)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=variables.params,
        stats=variables.stats,
        optimizer=optimizer.init(variables.params),
        comm=first_comm(reducer, variables.params, mesh),
        average=first_average(variables.params) if averaged else None,
        key=jax.random.key_data(key),
        scale=first_scale() if scaled else None,
    )


def first_average(params: PyTree) -> PyTree:
    """The moving average of parameters before the first step. To be traced.

    Of parameters of 16 bits it is in float32: a step changes it by less than they can hold, and 0.999 would be 1.
    """
    # A copy, because every leaf of the state is donated and must be a buffer of its own.
    return jax.tree.map(lambda leaf: jnp.array(leaf, wide_dtype(leaf.dtype)), params)


def wide_dtype(dtype: Any) -> Any:
    """That in which many numbers of this one are added up, or averaged: at least float32 for floating-point numbers.

    >>> wide_dtype(jnp.bfloat16).name, wide_dtype(jnp.float32).name
    ('float32', 'float32')
    """
    narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.dtype(jnp.float32 if narrow else dtype)


def moved_average(params: PyTree, average: PyTree, decay: jax.Array) -> PyTree:
    """`decay * average + (1 - decay) * params`, in the dtype of the average."""

    def widened(leaf: jax.Array, old: jax.Array) -> jax.Array:
        if leaf.dtype == old.dtype:
            return leaf
        # Rounded again, because XLA would take the update as it was before parameters were rounded to 16 bits.
        kept = jnp.finfo(leaf.dtype)
        return lax.reduce_precision(leaf.astype(old.dtype), kept.nexp, kept.nmant)

    return optax.incremental_update(jax.tree.map(widened, params, average), average, 1 - decay)


def first_comm(reducer: Reducer | None, params: PyTree, mesh: Mesh) -> PyTree:
    """The reducer's state before the first step, one per device, for parameters of these shapes. To be traced."""
    state = () if reducer is None else reducer.init(params, mesh.shape)
    dims = tuple(mesh.shape.values())
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*dims, *leaf.shape)), state)


def state_shardings(state: TrainState, mesh: Mesh) -> TrainState:
    """The sharding of each leaf of a whole state."""
    shardings = jax.tree.map(lambda _: replicated(mesh), state)
    return shardings._replace(comm=jax.tree.map(lambda _: one_per_device(mesh), state.comm))


def abstract_state(shapes: TrainState, mesh: Mesh) -> TrainState:
    """Shapes of a whole state with their shardings on `mesh`: what a checkpoint is restored to."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        state_shardings(shapes, mesh),
    )
