"""From a Config to everything that training needs, as shapes and functions; no array is made here."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from jaxnet.comm import (
    AXES,
    DEVICE,
    HOST,
    AllReduce,
    Collective,
    Reducer,
    Sharded,
    Strategy,
    all_reduce,
    backward_order,
    mesh_size,
    mpi_all_reduce,
    mpi_world,
    named_strategy,
    scheduled,
    split_by_example,
    stacked_shards,
)
from jaxnet.config.check import check_config, check_fit, check_model, check_test_images, strategy_of
from jaxnet.config.run import Config
from jaxnet.data import Source
from jaxnet.ensembles import ensemble_loss, ensemble_model, ensemble_optimizer
from jaxnet.errors import InputError
from jaxnet.models import Model, Variables, abstract_variables, from_linen
from jaxnet.optimizer import ShardedParams, learning_rate, make_optimizer, multipliers, optimizer_plan
from jaxnet.parallel.device_step import guard_plan, mean_plan, one_message
from jaxnet.parallel.hybrid import ShardedDense, hybrid_strategy, layers_plan, param_kinds, sharded_layers, with_sharded
from jaxnet.parallel.initial import initial_values
from jaxnet.parallel.layout import Layout, make_layout
from jaxnet.parallel.local import Exchange, exchanged, local_optimizer, local_plan
from jaxnet.parallel.state import TrainState, first_state, needs_scale
from jaxnet.parallel.step import Mode, Step, StepOptions, make_train_step, scheduled_parts
from jaxnet.tasks.classification import LossFn, classification_loss
from jaxnet.training.resolutions import Phase, batch_shapes_at, check_resolutions, phases_of

# ---- What the program of a training step will send: its plan, before it is compiled -------------------


_METRICS = 2  # loss and accuracy


class StepPlan(NamedTuple):
    """Collectives of a step; the attributes are those of `Experiment`."""

    planned: tuple[Collective, ...]
    shares: tuple[float, ...]
    exchange: Exchange | None


def step_plan(
    config: Config,
    strategy: Strategy,
    travels: Reducer | Sharded | None,
    layout: Layout,
    total_steps: int,
    mesh: Mesh,
    sums: AllReduce,
    layers: Sequence[ShardedDense],
) -> StepPlan:
    """The plan of a step with this strategy, whose states lie so; `travels` is its reducer, or None if XLA sums."""
    state = layout.whole_shapes
    if strategy.averaging is not None:
        exchange = exchanged(state, strategy.averaging, _METRICS + config.guard.skip)
        return StepPlan(*local_plan(strategy, exchange, total_steps, mesh.shape), exchange)
    if travels is None:
        return StepPlan((), (), None)
    merged = None if config.batch_norm == "global" else state.stats  # running averages that differ between devices
    planned = travels.plan(state.params, mesh.shape).collectives
    planned += mean_plan(merged, _METRICS, mesh.shape, one_message(sums))
    if axes := AXES if strategy.sharded is not None else layout.cut_axes:
        norms = optimizer_plan(config.optimizer, ShardedParams(state.params, axes), mesh.shape)
        planned += tuple(dataclasses.replace(norm, elements=norm.elements * config.ensemble.members) for norm in norms)
        planned += guard_plan(state.params, axes, mesh.shape) if config.guard.skip else ()
    examples = config.batch_size // mesh_size(mesh)
    in_layers, times = layers_plan(layers, examples, config.microbatches, mesh.shape)
    return StepPlan(planned + in_layers, (1.0,) * len(planned) + times, None)


PyTree = Any


@dataclass(frozen=True)
class Experiment:
    """A run before it has any arrays.

    Attributes:
        model: as it is evaluated; of an ensemble, all members as one.
        optimizer: the Optax transformation.
        learning_rate: as a function of the step.
        strategy: how gradients travel.
        ranks: processes that MPI joins, each with a mesh of its own; else 1.
        reducer: the strategy's, scheduled and in backward order, or its parts; None if XLA reduces.
        order: leaves in the order in which backward produces them.
        mode: of the step.
        step: the training step, not yet compiled.
        total_steps: of the whole run.
        steps_per_epoch: batches in one pass, a fraction where they do not divide.
        layout: how states lie on the mesh between steps.
        state_shapes: of the train state that the step takes, without shardings.
        batch_shapes: of a global batch; with MPI, of a rank's part of it. If their size changes, of the last.
        phases: parts of the run, each with images of one size.
        planned: collectives of one step's program; empty if XLA reduces.
        shares: for each of them, how often a step sends it, in the mean over the run's steps: once, but for a 'local'
            schedule and in the loop over microbatches.
        exchange: shapes of what a 'local' schedule sends at the end of a round; None for the others.
        layers: dense layers whose kernels are cut over the devices of a host.
        first_state: makes the state before the first step.
    """

    model: Model
    optimizer: optax.GradientTransformation
    learning_rate: optax.Schedule
    strategy: Strategy
    ranks: int
    reducer: Reducer | Sharded | None
    order: tuple[int, ...]
    mode: Mode
    step: Step
    total_steps: int
    steps_per_epoch: float
    layout: Layout
    state_shapes: TrainState
    batch_shapes: dict[str, jax.ShapeDtypeStruct]
    phases: tuple[Phase, ...]
    planned: tuple[Collective, ...]
    shares: tuple[float, ...]
    exchange: Exchange | None
    layers: tuple[ShardedDense, ...]
    first_state: Callable[[], TrainState]

    @property
    def variables(self) -> Variables:
        """Shapes of the model's variables, whole; of an ensemble they lead with [members]."""
        whole = self.layout.whole_shapes
        return Variables(whole.params, whole.stats)

    def mesh_over_ranks(self, mesh: Mesh) -> dict[str, int]:
        """Sizes of the axes of the whole run, in which ranks of MPI are hosts."""
        return {**mesh.shape, HOST: mesh.shape[HOST] * self.ranks}


def prepare(config: Config, mesh: Mesh, source: Source, tests: Source | None = None) -> Experiment:
    """Everything but arrays, or an InputError that names the key to change; `tests` is for checks alone."""
    check_config(config)
    strategy, mode, sums, ranks = _transport(config, mesh)
    check_fit(config, mesh, source, ranks)
    steps_per_epoch = source.num_examples / config.batch_size
    total_steps = max(1, round(config.epochs * steps_per_epoch))
    model = as_model(config.model)
    phases = phases_of(config.resolutions, total_steps)
    of_data = _batch_shapes(config.batch_size // ranks, source.image_shape, split_by_example(mesh))
    batch_shapes = batch_shapes_at(of_data, phases[-1].size)
    image_shape = config.pixels.shape(source.image_shape)
    variables = _checked_variables(config, model, source, tests, phases)
    order = _order(_loss(config, model), variables, batch_shapes)
    parts = None if strategy.sharded is None else ShardedParams(variables.params, AXES)
    layers = sharded_layers(config.shard_dense, model, variables, image_shape, mesh.shape[DEVICE])
    cut = param_kinds(variables.params, layers) if layers else None
    if cut is not None:
        parts = ShardedParams(variables.params, (DEVICE,))
        strategy = hybrid_strategy(strategy, cut, order, config.bucket_bytes)
    optimizer, rate = _optimizer(config, strategy, parts, total_steps, steps_per_epoch)
    members = config.ensemble.members if config.ensemble.on else None
    if members is not None:
        model = ensemble_model(model, members)
        strategy = dataclasses.replace(strategy, sharded=strategy.sharded and stacked_shards(strategy.sharded))
    # Parameters are all there when they are averaged: their order means nothing.
    reducer = scheduled(strategy, order) if strategy.averaging is None else strategy.reducer
    travels = scheduled_parts(strategy, order) or reducer
    make_first = functools.partial(
        first_state,
        *(model, optimizer, reducer, mesh, image_shape, config.seed),
        averaged=config.average_decay is not None,
        scaled=needs_scale(config.model),
        members=members,
    )
    layout = make_layout(jax.eval_shape(make_first), optimizer, mesh, strategy, ensemble=config.ensemble.on, cut=cut)
    options = StepOptions(mode, config.microbatches, config.average_decay, order, sums, ranks, config.guard.skip)
    step = make_train_step(_step_loss(config, mode, layers), optimizer, strategy, mesh, options, layout)
    sent = step_plan(config, strategy, travels, layout, total_steps, mesh, sums, layers)
    return Experiment(
        model=model,
        optimizer=optimizer,
        learning_rate=rate,
        strategy=strategy,
        ranks=ranks,
        reducer=travels,
        order=order,
        mode=mode,
        step=step,
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        layout=layout,
        state_shapes=layout.shapes,
        batch_shapes=batch_shapes,
        phases=phases,
        planned=sent.planned,
        shares=sent.shares,
        exchange=sent.exchange,
        layers=layers,
        first_state=functools.partial(_first_state, layout, make_first, config.initial_weights, variables),
    )


def _transport(config: Config, mesh: Mesh) -> tuple[Strategy, Mode, AllReduce, int]:
    """Strategy and mode, how a strategy sums across hosts, and the processes that MPI joins."""
    strategy, mode = strategy_of(config)
    if config.transport != "mpi":
        return strategy, mode, all_reduce, 1
    ranks = _ranks(mesh)
    return named_strategy(config.strategy, config.bucket_bytes, mpi_all_reduce), mode, mpi_all_reduce, ranks


def _optimizer(
    config: Config, strategy: Strategy, parts: ShardedParams | None, total_steps: int, steps_per_epoch: float
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """The run's optimizer and its learning rate; of an ensemble, that of all members and the first one's."""
    recipes = [each.for_run(config.batch_size, steps_per_epoch) for each in config.ensemble.recipes(config.optimizer)]
    optimizer = make_optimizer(recipes[0], total_steps, parts)
    if config.ensemble.on:
        optimizer = ensemble_optimizer(recipes, total_steps, parts)
    if strategy.averaging is not None:
        optimizer = local_optimizer(optimizer, strategy.averaging)
    return optimizer, learning_rate(recipes[0], total_steps)


def _step_loss(config: Config, mode: Mode, layers: tuple[ShardedDense, ...]) -> LossFn:
    """The loss that a step trains with: of the network as devices share it, or of all members of an ensemble."""
    shared = as_model(config.model, () if mode == "jit" else norm_axes(config))
    loss = _loss(config, with_sharded(shared, layers))
    return ensemble_loss(loss, config.ensemble.members) if config.ensemble.on else loss


def _first_state(
    layout: Layout, make: Callable[..., TrainState], weights: str | None, variables: Variables
) -> TrainState:
    return layout.make(make) if weights is None else layout.make(make, initial_values(Path(weights), variables))


def _ranks(mesh: Mesh) -> int:
    """Processes that MPI joins, each with a mesh such as this one."""
    if mesh.shape[HOST] != 1:
        raise InputError(f"transport=mpi takes a mesh of one host in each process, and this has {mesh.shape[HOST]}")
    try:
        return int(mpi_world().size)
    except (ImportError, RuntimeError) as error:
        raise InputError(f"transport=mpi: {error}") from None


def as_model(model: nn.Module | Model, axes: tuple[str, ...] = ()) -> Model:
    """The config's model; a Linen module with a field `norm_axes` gets the axes that share its BatchNorm."""
    if isinstance(model, Model):
        return model
    if axes and "norm_axes" in {field.name for field in dataclasses.fields(model)}:
        model = model.clone(norm_axes=axes)
    return from_linen(model)


def norm_axes(config: Config) -> tuple[str, ...]:
    """Mesh axes that share BatchNorm's statistics."""
    return {"local": (), "host": (DEVICE,), "global": AXES}[config.batch_norm]


def _loss(config: Config, model: Model) -> LossFn:
    pixels = dataclasses.replace(config.pixels, size=None) if config.resolutions else config.pixels
    return classification_loss(
        model,
        pixels,
        label_smoothing=config.label_smoothing,
        augment=config.augmentation,
        mix=config.mixing if config.mixing.on else None,
    )


def _batch_shapes(
    size: int, image_shape: tuple[int, ...], sharding: jax.sharding.Sharding
) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        "image": jax.ShapeDtypeStruct((size, *image_shape), "uint8", sharding=sharding),
        "label": jax.ShapeDtypeStruct((size,), "int32", sharding=sharding),
        "id": jax.ShapeDtypeStruct((size,), "int32", sharding=sharding),
    }


def _checked_variables(
    config: Config, model: Model, source: Source, tests: Source | None, phases: tuple[Phase, ...]
) -> Variables:
    """Shapes of the model's variables; InputError if the data or the recipe do not go with them."""
    image_shape = config.pixels.shape(source.image_shape)
    variables = abstract_variables(model, image_shape)
    check_model(config, model, variables, source)
    check_resolutions(model, variables, phases, image_shape[-1])
    multipliers(config.optimizer.groups, variables.params)  # refuses patterns that match nothing
    if tests is not None:
        check_test_images(config, model, variables, source, tests)
    return variables


def _order(loss_fn: LossFn, variables: Variables, batch: dict[str, jax.ShapeDtypeStruct]) -> tuple[int, ...]:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch["id"].shape[0]))
    gradient = jax.grad(loss_fn, has_aux=True)
    return backward_order(lambda *args: gradient(*args)[0], *variables, batch, keys)
