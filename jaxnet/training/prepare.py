"""From a Config to everything that training needs: shapes, functions, a plan. No array is made here.

experiment = prepare(config)
state = experiment.init()
for batch in experiment.batches():
    state, metrics = experiment.step(state, batch)
experiment.evaluate(state)
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from jaxnet.comm import (
    AXES,
    DEVICE,
    HOST,
    AllReduce,
    Strategy,
    all_reduce,
    backward_order,
    mesh_size,
    mpi_all_reduce,
    mpi_world,
    split_by_example,
)
from jaxnet.config.check import check_config, check_fit, check_model, check_tests, strategy_of
from jaxnet.config.run import Config
from jaxnet.cost.workloads import Workload
from jaxnet.data import Source, eval_batches, example_shapes, hold_out, open_split, placed
from jaxnet.ensembles import ensemble_loss, ensemble_model, ensemble_optimizer
from jaxnet.errors import InputError
from jaxnet.models import Model, Variables, abstract_variables, from_linen
from jaxnet.optimizer import Optimizer, ShardedParams, learning_rate, make_optimizer, multipliers, optimizer_plan
from jaxnet.parallel import Form, Mode, Step, StepOptions, StepPlan, Traffic, form_of
from jaxnet.parallel.elementwise import require_elementwise
from jaxnet.parallel.hybrid import ShardedDense, sharded_layers, with_sharded
from jaxnet.parallel.layout import Layout
from jaxnet.parallel.state import TrainState, first_state, needs_scale
from jaxnet.tasks.evaluation import evaluate, make_eval_step
from jaxnet.tasks.task import WEIGHT, LossFn, Task
from jaxnet.training.batches import BatchStream, batch_stream
from jaxnet.training.initial import initial_values
from jaxnet.training.observer import TRAINER_FIGURES
from jaxnet.training.plan import RunPlan
from jaxnet.training.processes import ProcessGroup, join
from jaxnet.training.resolutions import Phase, batch_shapes_at, check_resolutions, phases_of

PyTree = Any


@dataclass(frozen=True)
class Experiment:
    """A run before it has any arrays.

    Attributes:
        config: of the run.
        processes: that take part, with their mesh.
        source: the training examples, without those that are held back for validation.
        held_out: those.
        given_tests: the test examples, if they are open.
        model: as it is evaluated; of an ensemble, all members as one.
        optimizer: the Optax transformation.
        learning_rate: as a function of the step; None if the optimizer is an Optax transformation of the config.
        form: the strategy's step on this mesh: its options, its layout, its plan.
        layout: how states lie on the mesh between steps.
        step: `step(state, batch) -> (state, metrics)`, not yet compiled.
        sends: what the step's program sends.
        total_steps: of the whole run.
        steps_per_epoch: batches in one pass, a fraction where they do not divide.
        phases: parts of the run, each with images of one size.
        example: the shapes of one training example.
        batch_shapes: of a global batch; with MPI, of a rank's part of it. If their size changes, of the last.
        layers: dense layers whose kernels are cut over the devices of a host.
    """

    config: Config
    processes: ProcessGroup
    source: Source
    held_out: Source | None
    given_tests: Source | None
    model: Model
    optimizer: optax.GradientTransformation
    learning_rate: optax.Schedule | None
    form: Form
    layout: Layout
    step: Step
    sends: StepPlan
    total_steps: int
    steps_per_epoch: float
    phases: tuple[Phase, ...]
    example: dict[str, Any]
    batch_shapes: dict[str, jax.ShapeDtypeStruct]
    layers: tuple[ShardedDense, ...]
    _make_first: Callable[..., TrainState]

    @property
    def mesh(self) -> Mesh:
        """Axes ('host', 'device')."""
        return self.processes.mesh

    @property
    def strategy(self) -> Strategy:
        """How gradients travel."""
        return self.form.strategy

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Sizes of the axes of the whole run, in which ranks of MPI are hosts."""
        return self.plan.axis_sizes

    @property
    def variables(self) -> Variables:
        """Shapes of the model's variables, whole; of an ensemble they lead with [members]."""
        whole = self.layout.whole_shapes
        return Variables(whole.params, whole.stats)

    @property
    def plan(self) -> RunPlan:
        """What a step sends, to be printed: buckets, and bytes over each axis."""
        params = self.layout.whole_shapes.params
        members = self.config.ensemble.members if self.config.ensemble.on else 1
        return RunPlan(self.form, self.sends, params, members, self.layers, self._program)

    def _program(self) -> str:
        """The text of the compiled step."""
        compiled = self.step.lower(self.layout.shapes, self.batch_shapes).compile()
        return compiled.as_text() or ""

    def init(self) -> TrainState:
        """The state before the first step, made on the mesh."""
        weights = self.config.initial_weights
        given = [] if weights is None else [initial_values(Path(weights), self._single_variables)]
        return self.layout.make(self._make_first, *given)

    @property
    def _single_variables(self) -> Variables:
        """Shapes of one network's variables, which a file of weights holds."""
        if not self.config.ensemble.on:
            return self.variables
        one: Variables = jax.tree.map(lambda leaf: leaf.update(shape=leaf.shape[1:]), self.variables)
        return one

    def batches(self, step: int = 0) -> BatchStream:
        """Training batches after `step` steps, without end."""
        processes = self.processes
        return batch_stream(self.config, self.source, self.phases, processes.mesh, processes.shard, step)

    def evaluate(self, state: TrainState, split: str = "test") -> dict[str, float]:
        """The task's metrics on 'test' or 'validation': every example counts once, on any number of devices."""
        return self._evaluators[split](state)

    @property
    def evaluated_splits(self) -> tuple[str, ...]:
        """On which examples a run is evaluated."""
        return tuple(self._evaluators)

    @property
    def units(self) -> dict[str, int]:
        """What an example consists of, such as {'tokens': 256}."""
        return self.config.task.units(self.example)

    @functools.cached_property
    def tests(self) -> Source:
        """The test examples."""
        return self.given_tests or open_split(self.config.data, "test")

    @functools.cached_property
    def validation(self) -> Source | None:
        """The examples that choose the best state; None: nothing is chosen."""
        name = self.config.validation
        return open_split(self.config.data, name) if isinstance(name, str) else self.held_out

    def check_tests(self) -> None:
        """Refuse test examples that the network, which learns from training examples, cannot take."""
        config, model = self.config, as_model(self.config.model)
        trained = model_inputs(config.task, self.example)
        for source in filter(None, (self.validation, self.tests)):
            tested = model_inputs(config.task, example_shapes(source))
            check_tests(config, model, self._single_variables, trained, tested)

    @functools.cached_property
    def _evaluators(self) -> dict[str, Callable[[TrainState], dict[str, float]]]:
        sources = {"validation": self.validation, "test": self.tests}
        return {split: _make_evaluate(self, source) for split, source in sources.items() if source is not None}


def prepare(
    config: Config,
    mesh: Mesh | None = None,
    *,
    source: Source | None = None,
    tests: Source | None = None,
    all_reduce: AllReduce = all_reduce,
) -> Experiment:
    """Everything but arrays, for a run of `config`.

    Args:
        config: of the run.
        mesh: axes ('host', 'device'); None: over the devices of all processes, which are joined first.
        source: the training examples; None: those of the config.
        tests: the test examples; None: those of the config, opened when they are needed.
        all_reduce: sums metrics over devices, but where MPI does.

    Raises:
        InputError: the config cannot run; the message names the key to change.
    """
    # ---- Strategy: resolved once, and passed on ------------------------------------------------------------
    strategy, mode = check_config(config)

    # ---- Processes and mesh --------------------------------------------------------------------------------
    processes = join(config, mesh)
    mesh, ranks = processes.mesh, 1
    if config.transport == "mpi":
        ranks, all_reduce = _ranks(mesh), mpi_all_reduce
        strategy, mode = strategy_of(config, mpi_all_reduce)

    # ---- Data: shapes of a batch, number of steps ----------------------------------------------------------
    source, held_out = source or open_split(config.data, "train"), None
    if isinstance(config.validation, float):
        source, held_out = hold_out(source, config.validation)
    check_fit(config, mesh, source, ranks)
    steps_per_epoch = source.num_examples / config.batch_size
    total_steps = max(1, round(config.epochs * steps_per_epoch))
    phases = phases_of(config.task.resolutions, total_steps)
    config.task.check_data(source)
    example = example_shapes(source)
    _check_needs(config.task, example)
    batch_shapes = _batch_shapes(config.batch_size // ranks, example, split_by_example(mesh))
    batch_shapes = batch_shapes_at(batch_shapes, phases[-1].size)
    inputs = model_inputs(config.task, example)

    # ---- Model: shapes of its variables, and the order in which backward produces gradients ----------------
    model = as_model(config.model)
    variables = _checked_variables(config, mode, model, source, inputs, phases)
    order, metrics = _order(config.task.loss(model), variables, batch_shapes)
    _check_metrics(config.task, metrics)
    layers = sharded_layers(config.shard_dense, model, variables, inputs, mesh.shape[DEVICE])

    # ---- Form: what the strategy makes of state, optimizer, step and plan ----------------------------------
    options = StepOptions(mode, config.microbatches, config.average_decay, order, all_reduce, ranks, config.guard.skip)
    members = config.ensemble.members if config.ensemble.on else None
    form = form_of(
        *(strategy, mesh, options),
        layers=layers,
        bucket_bytes=config.bucket_bytes,
        ensemble=members is not None,
    )
    shards = form.sharded_params(variables.params)
    optimizer, rate = _optimizer(config, form, shards, total_steps, steps_per_epoch)
    if members is not None:
        model = ensemble_model(model, members)
    make_first = functools.partial(
        first_state,
        *(model, optimizer, form.reducer(variables.params), mesh, inputs, config.seed),
        averaged=config.average_decay is not None,
        scaled=needs_scale(config.model),
        members=members,
    )
    layout = form.layout(jax.eval_shape(make_first), optimizer, ensemble=members is not None)
    step = form.step(_step_loss(config, mode, layers), optimizer, layout)
    traffic = _traffic(config, mesh, metrics, total_steps)
    experiment = Experiment(
        *(config, processes, source, held_out, tests, model, optimizer, rate, form, layout, step),
        *(form.plan(layout, traffic), total_steps, steps_per_epoch, phases, example, batch_shapes, layers, make_first),
    )
    if tests is not None:
        experiment.check_tests()
    return experiment


def _ranks(mesh: Mesh) -> int:
    """Processes that MPI joins, each with a mesh such as this one."""
    if mesh.shape[HOST] != 1:
        raise InputError(f"transport=mpi takes a mesh of one host in each process, and this has {mesh.shape[HOST]}")
    try:
        return int(mpi_world().size)
    except (ImportError, RuntimeError) as error:
        raise InputError(f"transport=mpi: {error}") from None


def _optimizer(
    config: Config, form: Form, shards: ShardedParams | None, total_steps: int, steps_per_epoch: float
) -> tuple[optax.GradientTransformation, optax.Schedule | None]:
    """The run's optimizer and its learning rate; of an ensemble, that of all members and the first one's."""
    given = config.optimizer
    if not isinstance(given, Optimizer):
        own = make_optimizer(given, total_steps)
        if shards is not None:
            flat = form.strategy.kind == "sharded"
            require_elementwise(own, shards.shapes, flat=flat, label=form.strategy.label)
        return form.optimizer(own), None
    recipes = [each.for_run(config.batch_size, steps_per_epoch) for each in config.ensemble.recipes(given)]
    optimizer = make_optimizer(recipes[0], total_steps, shards)
    if config.ensemble.on:
        optimizer = ensemble_optimizer(recipes, total_steps, shards)
    return form.optimizer(optimizer), learning_rate(recipes[0], total_steps)


def _traffic(config: Config, mesh: Mesh, metrics: set[str], total_steps: int) -> Traffic:
    """What a step sends besides gradients, with these metrics of its loss."""
    return Traffic(
        metrics=len(metrics - {WEIGHT}),
        weighted=WEIGHT in metrics,
        averages=config.batch_norm != "global",
        norms=functools.partial(_norms, config, mesh),
        total_steps=total_steps,
        examples=config.batch_size // mesh_size(mesh),
    )


def _norms(config: Config, mesh: Mesh, shards: ShardedParams) -> Any:
    """The collectives by which an optimizer of shards knows norms; of an ensemble, those of each member."""
    norms = optimizer_plan(config.optimizer, shards, mesh.shape)
    return tuple(dataclasses.replace(norm, elements=norm.elements * config.ensemble.members) for norm in norms)


def _step_loss(config: Config, mode: Mode, layers: tuple[ShardedDense, ...]) -> LossFn:
    """The loss that a step trains with: of the network as devices share it, or of all members of an ensemble."""
    shared = as_model(config.model, () if mode == "jit" else norm_axes(config))
    loss = config.task.loss(with_sharded(shared, layers))
    return ensemble_loss(loss, config.ensemble.members) if config.ensemble.on else loss


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


def model_inputs(task: Task, example: Mapping[str, Any]) -> PyTree:
    """The shapes of what the model is called with for one example of these shapes."""
    try:
        one: PyTree = jax.eval_shape(task.inputs, _with_batch(1, example))
    except Exception as error:  # of a user's own code, most likely
        raise InputError(
            f"task: {type(task).__name__}.inputs failed on a batch of {', '.join(sorted(example))}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return one


def _check_needs(task: Task, example: Mapping[str, Any]) -> None:
    """Refuse data without the arrays that the task reads."""
    if lacking := [name for name in task.needs if name not in example]:
        raise InputError(
            f"the data set has {', '.join(example)}, but no {' and no '.join(lacking)}, which "
            f"task={type(task).__name__} needs; rename its arrays, or set another task"
        )


def _with_batch(size: int, example: PyTree, **options: Any) -> Any:
    """Shapes of a batch of examples of these shapes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype, **options), example)


def _batch_shapes(size: int, example: Mapping[str, Any], sharding: jax.sharding.Sharding) -> dict[str, Any]:
    row = jax.ShapeDtypeStruct((size,), "int32", sharding=sharding)
    return {**_with_batch(size, example, sharding=sharding), "id": row}


def _checked_variables(
    config: Config, mode: Mode, model: Model, source: Source, inputs: PyTree, phases: tuple[Phase, ...]
) -> Variables:
    """Shapes of the model's variables; InputError if the data or the recipe do not go with them."""
    variables = abstract_variables(model, inputs)
    check_model(config, mode, model, variables, source, inputs)
    check_resolutions(model, variables, phases, inputs)
    if isinstance(config.optimizer, Optimizer):
        multipliers(config.optimizer.groups, variables.params)  # refuses patterns that match nothing
    return variables


def _order(loss_fn: LossFn, variables: Variables, batch: Mapping[str, Any]) -> tuple[tuple[int, ...], set[str]]:
    """The order in which backward produces gradients, and the names of the metrics of the loss."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch["id"].shape[0]))
    names: set[str] = set()

    def gradient(*args: Any) -> PyTree:
        grads, result = jax.grad(loss_fn, has_aux=True)(*args)
        names.update(result.metrics)
        return grads

    return backward_order(gradient, *variables, batch, keys), names


def _check_metrics(task: Task, names: set[str]) -> None:
    """Refuse metrics that would stand in the place of the trainer's own figures, and a best one that is not there."""
    _check_names(task, names)
    try:
        reported = task.reported(dict.fromkeys(names - {WEIGHT}, 1.0))
    except Exception as error:
        raise InputError(
            f"task: {type(task).__name__}.reported failed on means of {', '.join(sorted(names))}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if task.best not in reported:
        raise InputError(
            f"task: {type(task).__name__}.best is {task.best!r}, which is not among its metrics: {', '.join(reported)}"
        )
    _check_names(task, reported)


def _check_names(task: Task, names: Iterable[str]) -> None:
    if taken := sorted(name for name in names if name in TRAINER_FIGURES or name.endswith("_per_second")):
        raise InputError(
            f"task: {type(task).__name__} has metrics named {', '.join(taken)}, as the trainer's own figures are; give "
            "them other names"
        )


def _make_evaluate(experiment: Experiment, source: Source) -> Callable[[TrainState], dict[str, float]]:
    """A function of a state: the task's metrics on all of `source`, each example counted once."""
    config, mesh, task = experiment.config, experiment.mesh, experiment.config.task
    ranks = experiment.processes.cluster.mpi
    step = make_eval_step(experiment.model, task, mesh, config.ensemble.members if config.ensemble.on else None)
    across = [ranks.totals] if ranks else []
    devices = math.prod(experiment.axis_sizes.values())
    size = -(-config.eval_batch_size // devices) * devices  # rounded up: what is too much of the last batch counts 0

    def of_state(state: TrainState) -> dict[str, float]:
        batches = eval_batches(source, batch_size=size, shard=experiment.processes.shard)
        params, stats = experiment.layout.evaluated(state)
        with closing(placed(batches, split_by_example(mesh))) as on_devices:
            return evaluate(step, task, params, stats, on_devices, *across)

    return of_state


def workload_of(name: str, config: Config, mesh: Mesh) -> Workload:
    """A config as what `jaxnet bench step` times: its model, its first batch, its optimizer, under any strategy."""
    source = open_split(config.data, "train")

    def under(strategy: Strategy | str, mode: Any, sums: AllReduce) -> Experiment:
        own = dataclasses.replace(config, strategy=strategy, mode=mode, bucket_bytes=None)
        return prepare(own, mesh, source=source, all_reduce=sums)

    plain = under("flat", "shard_map", all_reduce)
    with closing(plain.batches()) as batches:
        batch = next(batches)
    loss = _step_loss(config, "shard_map", ())
    order = tuple(plain.form.options.order or ())
    params = plain.layout.whole_shapes.params
    return Workload(name, config.batch_size // mesh.shape[HOST], mesh, params, order, loss, under, batch)
