"""From a Config to everything that training needs: shapes, functions, a plan. No array is made here.

experiment = prepare(config)
state = experiment.init()
for batch in experiment.batches():
    state, metrics = experiment.step(state, batch)
experiment.evaluate(state)
"""

import dataclasses
import functools
from collections.abc import Callable
from contextlib import closing
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from jaxnet.comm import (
    AUTO,
    DEVICE,
    HOST,
    AllReduce,
    Strategy,
    all_reduce,
    as_sent,
    chosen_options,
    mesh_size,
    mpi_all_reduce,
    mpi_world,
    platform_of,
    split_by_example,
)
from jaxnet.config.check import check_config
from jaxnet.config.fit import bytes_of, check_axes, check_batch, check_fit, check_memory, check_norm, check_parameters
from jaxnet.config.keys import flatten
from jaxnet.config.run import Config
from jaxnet.config.strategy import may_cross, require_whole_gradients, strategy_of
from jaxnet.cost.choice import Choice, choose, gradient_flops, kept_for
from jaxnet.cost.workloads import Workload
from jaxnet.data import Source, check_source, example_shapes, has_classes, hold_out, open_split
from jaxnet.ensembles import ensemble_model, ensemble_optimizer
from jaxnet.errors import InputError
from jaxnet.optimizer import Optimizer, ShardedParams, check_update, learning_rate, make_optimizer, optimizer_plan
from jaxnet.parallel import Form, StepOptions, Traffic, form_of
from jaxnet.parallel.elementwise import require_elementwise, require_same_rule
from jaxnet.parallel.hybrid import sharded_layers
from jaxnet.parallel.state import first_state, needs_scale
from jaxnet.tasks.task import WEIGHT
from jaxnet.training.compiler_options import OptionsChecked
from jaxnet.training.experiment import Experiment, strategys_code
from jaxnet.training.network import (
    TracedLoss,
    as_model,
    check_metrics,
    check_needs,
    checked_variables,
    model_inputs,
    shapes_of_batch,
    step_loss,
    traced_loss,
)
from jaxnet.training.pacing import PacedStep
from jaxnet.training.processes import ProcessGroup, join
from jaxnet.training.resolutions import batch_shapes_at, phases_of


def prepare(
    config: Config,
    mesh: Mesh | None = None,
    *,
    source: Source | None = None,
    tests: Source | None = None,
    all_reduce: AllReduce = all_reduce,
    kept_choice: Callable[[], Any] | None = None,
) -> Experiment:
    """Everything but arrays, for a run of `config`.

    Args:
        config: of the run.
        mesh: axes ('host', 'device'); None: over the devices of all processes, which are joined first.
        source: the training examples; None: those of the config.
        tests: the test examples; None: those of the config, opened when they are needed.
        all_reduce: sums metrics over devices, but where MPI does.
        kept_choice: gives, on process 0, what strategy an earlier attempt chose: `Choice` as JSON, or None.

    Raises:
        InputError: the config cannot run; the message names the key to change.
    """
    # ---- What cannot run anywhere --------------------------------------------------------------------------
    check_config(config)

    # ---- Processes and mesh --------------------------------------------------------------------------------
    processes = join(config, mesh)
    mesh, ranks, across = processes.mesh, 1, None
    if config.transport == "mpi":
        ranks, all_reduce, across = _ranks(), mpi_all_reduce, mpi_all_reduce

    # ---- Data: shapes of a batch, number of steps ----------------------------------------------------------
    if source is not None:
        check_source(source)
    source, held_out = open_split(config.data, "train") if source is None else source, None
    if isinstance(config.validation, float):
        source, held_out = hold_out(source, config.validation)
    check_fit(config, mesh, source, ranks)
    steps_per_epoch = source.num_examples / config.batch_size
    total_steps = max(1, round(config.epochs * steps_per_epoch))
    phases = phases_of(config.task.resolutions, total_steps)
    config.task.check_data(source)
    example = example_shapes(source)
    check_needs(config.task, example)
    batch_shapes = shapes_of_batch(config.batch_size // ranks, example, split_by_example(mesh))
    batch_shapes = batch_shapes_at(batch_shapes, phases[-1].size)
    inputs = model_inputs(config.task, example)
    check_batch(config, mesh, inputs)  # before the model is traced with it

    # ---- Model: shapes of its variables, and the order in which backward produces gradients ----------------
    model = as_model(config.model)
    variables, outputs = checked_variables(config, model, source, example, inputs, phases)
    check_parameters(mesh, variables.params, bytes_of(variables) / jax.process_count())  # before they are planned
    traced = traced_loss(config.task, model, variables, batch_shapes)
    check_metrics(config.task, traced.metrics)
    layers = sharded_layers(config.shard_dense, model, variables, inputs, mesh.shape[DEVICE])

    # ---- Strategy: resolved once and passed on; `auto` is chosen for these devices and their link ----------
    choice = None
    if config.strategy == AUTO and config.transport != "mpi":
        flops = functools.partial(gradient_flops, config.task.loss(model), *variables, batch_shapes)
        choice = _choice(processes, variables.params, flops if may_cross(config) else None, kept_choice)
    strategy, mode = strategy_of(config, across, mesh, choice)
    check_norm(config, mode, variables.stats)

    # ---- Form: what the strategy makes of state, optimizer, step and plan ----------------------------------
    config.task.units(example)
    if not has_classes(source):
        config.task.asked_shapes(example)  # what is saved of it
    with strategys_code(config.strategy):
        options = StepOptions(
            mode=mode,
            microbatches=config.microbatches,
            average_decay=config.average_decay,
            order=traced.order,
            all_reduce=all_reduce,
            ranks=ranks,
            skip=config.guard.skip,
            compiler=chosen_options(config.compiler_options),
        )
        check_axes(strategy, mesh, variables.params)
        check_memory(strategy, mesh, variables.params)
        members = config.ensemble.members if config.ensemble.on else None
        form = form_of(
            *(strategy, mesh, options),
            layers=layers,
            bucket_bytes=config.bucket_bytes,
            ensemble=members is not None,
        )
        shards = form.sharded_params(variables.params)
        optimizer, rate = _optimizer(config, form, variables.params, shards, total_steps, steps_per_epoch)
        if members is not None:
            model = ensemble_model(model, members)
        make_first = functools.partial(
            first_state,
            *(model, optimizer, form.reducer(variables.params), mesh, inputs, config.seed),
            averaged=config.average_decay is not None,
            scaled=needs_scale(config.model),
            members=members,
        )
        layout = form.layout(jax.eval_shape(make_first), optimizer)
        if shards is not None and not isinstance(config.optimizer, Optimizer):
            require_same_rule(optimizer, shards.shapes, layout.shapes_on_device.params, label=strategy.label)
        check_parameters(mesh, layout.whole_shapes.params, len(mesh.local_devices) * layout.bytes_per_device)
        step = form.step(step_loss(config, mode, layers), optimizer, layout)
        step = PacedStep(OptionsChecked(step) if options.compiler else step)
        sends = form.plan(layout, _traffic(config, mesh, traced, total_steps))
        sends = sends._replace(collectives=as_sent(sends.collectives, platform_of(mesh)))
        experiment = Experiment(
            config=config,
            processes=processes,
            source=source,
            held_out=held_out,
            given_tests=tests,
            model=model,
            optimizer=optimizer,
            learning_rate=rate,
            choice=choice,
            form=form,
            layout=layout,
            step=step,
            sends=sends,
            total_steps=total_steps,
            steps_per_epoch=steps_per_epoch,
            phases=phases,
            example=example,
            outputs=outputs,
            batch_shapes=batch_shapes,
            layers=layers,
            _make_first=make_first,
        )
    if tests is not None:
        experiment.check_tests()
    return experiment


def _choice(
    processes: ProcessGroup,
    params: Any,
    flops: Callable[[], float] | None,
    kept: Callable[[], Any] | None,
) -> Choice:
    """What an earlier attempt chose on such a mesh, so that a run goes on as it began; else a new choice."""
    mesh = processes.mesh
    found = None if kept is None else kept_for(mesh, processes.broadcast_object(kept))
    return found or choose(mesh, bytes_of(params), flops, tensors=len(jax.tree.leaves(params)))


def _ranks() -> int:
    """Processes that MPI joins, each with a mesh of its own."""
    try:
        return int(mpi_world().size)
    except (ImportError, RuntimeError) as error:
        raise InputError(f"transport=mpi: {error}") from None


def _optimizer(
    config: Config, form: Form, params: Any, shards: ShardedParams | None, total_steps: int, steps_per_epoch: float
) -> tuple[optax.GradientTransformation, optax.Schedule | None]:
    """The run's optimizer and its learning rate; of an ensemble, that of all members and the first one's."""
    given = config.optimizer
    if not isinstance(given, Optimizer):
        own = make_optimizer(given, total_steps)
        check_update(own, params)
        if shards is not None:
            require_elementwise(own, shards.shapes, label=form.strategy.label)
        return form.optimizer(own), None
    recipes = [each.for_run(config.batch_size, steps_per_epoch) for each in config.ensemble.recipes(given)]
    optimizer = make_optimizer(recipes[0], total_steps, shards)
    if config.ensemble.on:
        optimizer = ensemble_optimizer(recipes, total_steps, shards)
    return form.optimizer(optimizer), learning_rate(recipes[0], total_steps)


def _traffic(config: Config, mesh: Mesh, traced: TracedLoss, total_steps: int) -> Traffic:
    """What a step sends besides gradients."""
    return Traffic(
        metrics=len(traced.metrics - {WEIGHT}),
        weighted=WEIGHT in traced.metrics,
        averages=traced.averages if config.batch_norm != "global" else (),
        norms=functools.partial(_norms, config, mesh),
        total_steps=total_steps,
        examples=config.batch_size // mesh_size(mesh),
    )


def _norms(config: Config, mesh: Mesh, shards: ShardedParams) -> Any:
    """The collectives by which an optimizer of shards knows norms; of an ensemble, those of each member."""
    norms = optimizer_plan(config.optimizer, shards, mesh.shape)
    return tuple(dataclasses.replace(norm, elements=norm.elements * config.ensemble.members) for norm in norms)


def workload_of(name: str, config: Config, mesh: Mesh) -> Workload:
    """A config as what `jaxnet bench step` times: its model, its first batch, its optimizer, under any strategy.

    Raises:
        InputError: layers are cut, so that strategies do not send whole gradients.
    """
    require_whole_gradients(config, "timed")
    source = open_split(config.data, "train")

    def under(strategy: Strategy | str, mode: Any, sums: AllReduce) -> Experiment:
        own = dataclasses.replace(config, strategy=strategy, mode=mode, bucket_bytes=None)
        return prepare(own, mesh, source=source, all_reduce=sums)

    def allows(strategy: Strategy, mode: Any) -> bool:
        try:
            check_config(dataclasses.replace(config, strategy=strategy, mode=mode, bucket_bytes=None))
        except InputError:
            return False
        return True

    plain = under("flat", "shard_map", all_reduce)
    with closing(plain.batches()) as batches:
        batch = next(batches)
    loss = step_loss(config, "shard_map", ())
    order = tuple(plain.form.options.order or ())
    params = plain.layout.whole_shapes.params
    timed = {key: value for key, value in flatten(config).items() if key == "optimizer" or key.startswith(_TIMED)}
    return Workload(
        *(name, config.batch_size // mesh.shape[HOST], mesh, params, order, loss, under, batch, allows),
        settings=repr(timed),
        may_cross=may_cross(dataclasses.replace(config, mode="auto", bucket_bytes=None)),
    )


# Keys of a config that the time of a step depends on, beside its strategy; groups by the names that they begin with.
_TIMED = (
    *("model", "task", "optimizer.name", "optimizer.nesterov", "optimizer.clip_norm", "optimizer.groups", "ensemble"),
    *("microbatches", "batch_norm", "average_decay", "guard.skip", "compiler_options"),
)
