"""A config's model and task as functions and shapes: what is called with what, and what does not go together."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.comm import AXES, DEVICE
from jaxnet.comm.cut import traced
from jaxnet.comm.order import depend_on, order_of
from jaxnet.config.fit import check_model
from jaxnet.config.run import Config
from jaxnet.data import Source
from jaxnet.ensembles import MEMBER_FIGURES, ensemble_loss
from jaxnet.errors import InputError, users_code
from jaxnet.models import Model, Variables, abstract_variables, from_linen, guarded, leaf_name
from jaxnet.optimizer import Optimizer, multipliers
from jaxnet.parallel import Mode
from jaxnet.parallel.hybrid import ShardedDense, with_sharded
from jaxnet.tasks.evaluation import OF_MEMBERS
from jaxnet.tasks.task import WEIGHT, LossFn, Task
from jaxnet.training.observer import SUMMARY_FIGURES, TRAINER_FIGURES
from jaxnet.training.resolutions import Phase, check_resolutions

PyTree = Any

# ---- Functions ------------------------------------------------------------------------------------------


def as_model(model: nn.Module | Model, axes: tuple[str, ...] = ()) -> Model:
    """The config's model; a Linen module with a field `norm_axes` gets the axes that share its BatchNorm."""
    if isinstance(model, Model):
        return guarded(model, "of functions of your own")
    if axes and "norm_axes" in {field.name for field in dataclasses.fields(model)}:
        model = model.clone(norm_axes=axes)
    return guarded(from_linen(model), type(model).__name__)


def norm_axes(config: Config) -> tuple[str, ...]:
    """Mesh axes that share BatchNorm's statistics."""
    return {"local": (), "host": (DEVICE,), "global": AXES}[config.batch_norm]


def step_loss(config: Config, mode: Mode, layers: tuple[ShardedDense, ...]) -> LossFn:
    """The loss that a step trains with: of the network as devices share it, or of all members of an ensemble."""
    shared = as_model(config.model, () if mode == "jit" else norm_axes(config))
    loss = config.task.loss(with_sharded(shared, layers))
    return ensemble_loss(loss, config.ensemble.members) if config.ensemble.on else loss


# ---- Shapes ---------------------------------------------------------------------------------------------


def model_inputs(task: Task, example: Mapping[str, Any]) -> PyTree:
    """The shapes of what the model is called with for one example of these shapes."""
    return _inputs(task, _with_batch(1, example))


def _inputs(task: Task, batch: Mapping[str, Any]) -> PyTree:
    with users_code(f"task: {type(task).__name__}.inputs"):  # such as text, which is no array
        given: PyTree = jax.eval_shape(task.inputs, batch)
    if not jax.tree.leaves(given):
        raise InputError(f"task: {type(task).__name__}.inputs gave no array: wanted what the model is called with")
    return given


def shapes_of_batch(size: int, example: Mapping[str, Any], sharding: jax.sharding.Sharding) -> dict[str, Any]:
    """Shapes of a batch of examples of these shapes, with the rows that they have in the data set."""
    row = jax.ShapeDtypeStruct((size,), "int32", sharding=sharding)
    return {**_with_batch(size, example, sharding=sharding), "id": row}


def _with_batch(size: int, example: PyTree, **options: Any) -> Any:
    """Shapes of a batch of examples of these shapes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype, **options), example)


def checked_variables(
    config: Config,
    model: Model,
    source: Source,
    example: Mapping[str, Any],
    inputs: PyTree,
    phases: tuple[Phase, ...],
) -> tuple[Variables, PyTree]:
    """Shapes of the model's variables, and of what it gives for one example.

    Raises:
        InputError: the data or the recipe do not go with them.
    """
    variables = abstract_variables(model, inputs)
    for path, leaf in jax.tree.leaves_with_path(variables.stats):
        if leaf.dtype == jnp.bool_:
            raise InputError(
                f"the model {type(config.model).__name__}: its variable {leaf_name(path)} is bool: wanted a number, "
                "because devices take the mean of what a step changes; keep it as int32"
            )
    two = _inputs(config.task, _with_batch(2, example))
    outputs = check_model(config, model, variables, source, two, examples=2)
    check_resolutions(model, variables, phases, inputs)
    if isinstance(config.optimizer, Optimizer):
        multipliers(config.optimizer.groups, variables.params)  # refuses patterns that match nothing
    return variables, outputs


class TracedLoss(NamedTuple):
    """What the program of a loss and its gradient says.

    Attributes:
        order: in which backward produces the gradients.
        metrics: the names of the loss's metrics.
        averages: which leaves of the running averages the examples change. Others, such as those of a frozen BatchNorm,
            are the same on all devices and are not sent.
    """

    order: tuple[int, ...]
    metrics: set[str]
    averages: tuple[int, ...]


def traced_loss(task: Task, model: Model, variables: Variables, batch: Mapping[str, Any]) -> TracedLoss:
    """Trace the loss of a batch of these shapes, and its gradient.

    Raises:
        InputError: the task's loss of this model has no gradient.
    """
    loss_fn = task.loss(model)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch["id"].shape[0]))
    names: set[str] = set()

    def gradient(*args: Any) -> PyTree:
        grads, result = jax.grad(loss_fn, has_aux=True)(*args)
        names.update(result.metrics)
        return grads, result.stats

    with users_code(f"task: the gradient of {type(task).__name__}.loss"):
        program = traced(gradient, (*variables, batch, keys)).jaxpr
    params, of_model = (len(jax.tree.leaves(tree)) for tree in (variables.params, variables))
    changed = depend_on(program, program.invars[of_model:], program.outvars[params:])
    return TracedLoss(order_of(program, program.outvars[:params]), names, changed)


# ---- What a task must have ------------------------------------------------------------------------------


def check_needs(task: Task, example: Mapping[str, Any]) -> None:
    """Refuse data without the arrays that the task reads."""
    if lacking := [name for name in task.needs if name not in example]:
        raise InputError(
            f"the data set has {', '.join(example)}, but no {' and no '.join(lacking)}, which "
            f"task={type(task).__name__} needs; rename its arrays, or set another task"
        )


def check_metrics(task: Task, names: set[str]) -> None:
    """Refuse metrics that would stand in the place of the trainer's own figures, and a best one that is not there."""
    _check_names(task, names)
    reported = task.reported(dict.fromkeys(names - {WEIGHT}, 1.0))
    if task.best not in reported:
        raise InputError(
            f"task: {type(task).__name__}.best is {task.best!r}, which is not among its metrics: {', '.join(reported)}"
        )
    _check_names(task, reported)


def _check_names(task: Task, names: Collection[str]) -> None:
    own = {*TRAINER_FIGURES, *SUMMARY_FIGURES, *MEMBER_FIGURES}
    reserved = (name for name in names if name.endswith("_per_second") or name.startswith(OF_MEMBERS))
    if taken := sorted({*own.intersection(names), *reserved}):
        raise InputError(
            f"task: {type(task).__name__} has metrics named {', '.join(taken)}, as the trainer's own figures are; give "
            "them other names"
        )
