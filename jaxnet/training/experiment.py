"""A run before it has any arrays: its parts, its first state, its batches and its evaluation."""

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from jaxnet.comm import (
    Check,
    CompilerOption,
    Strategy,
    platform_of,
    platform_options,
    replicated,
    split_by_example,
    verify,
)
from jaxnet.comm.as_html import html_line
from jaxnet.config.fit import check_tests
from jaxnet.config.run import Config
from jaxnet.cost.choice import Choice
from jaxnet.data import Source, check_rows, eval_batches, example_shapes, open_split, placed
from jaxnet.errors import InputError, error_text, shown, users_code
from jaxnet.models import Model, Variables
from jaxnet.parallel import Form, Step, StepPlan
from jaxnet.parallel.hybrid import ShardedDense
from jaxnet.parallel.layout import Layout
from jaxnet.parallel.state import TrainState
from jaxnet.tasks.evaluation import EXAMPLES, evaluate, make_eval_step
from jaxnet.tasks.task import WEIGHT
from jaxnet.training.batches import BatchStream, batch_stream
from jaxnet.training.initial import initial_values
from jaxnet.training.network import as_model, check_metrics, model_inputs, shapes_of_batch
from jaxnet.training.plan import RunPlan
from jaxnet.training.processes import ProcessGroup
from jaxnet.training.resolutions import Phase


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
        choice: what strategy=auto is here, and why; None if the config names another.
        form: the strategy's step on this mesh: its options, its layout, its plan.
        layout: how states lie on the mesh between steps.
        step: `step(state, batch) -> (state, metrics)`, not yet compiled; it keeps at most two steps in flight.
        sends: what the step's program sends.
        total_steps: of the whole run.
        steps_per_epoch: batches in one pass, a fraction where they do not divide.
        phases: parts of the run, each with images of one size.
        example: the shapes of one training example.
        outputs: the shapes of what one network gives for one example.
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
    choice: Choice | None
    form: Form
    layout: Layout
    step: Step
    sends: StepPlan
    total_steps: int
    steps_per_epoch: float
    phases: tuple[Phase, ...]
    example: dict[str, Any]
    outputs: Any
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
        return RunPlan(self.form, self.sends, params, members, self.layers, self.compiled, self.checked)

    def _repr_html_(self) -> str:
        count = sum(leaf.size for leaf in jax.tree.leaves(self.variables.params))
        what = f"{self.total_steps:,} steps of {self.config.batch_size:,} examples, {count:,} parameters"
        return html_line(what) + self.plan._repr_html_()

    @property
    def compiler_options(self) -> tuple[CompilerOption, ...]:
        """What the compiler is told about the collectives of the step, by jaxnet and by the config, and why."""
        options = self.form.options
        ours = () if options.mode == "jit" else platform_options(platform_of(self.mesh))
        return tuple({option.name: option for option in (*ours, *options.compiler)}.values())

    @functools.cached_property
    def lowered(self) -> jax.stages.Lowered:
        """The step for the mesh and the run's batches, to be compiled."""
        with strategys_code(self.config.strategy):
            lowered: jax.stages.Lowered = self.step.lower(self.layout.placed_shapes, self.batch_shapes)
        return lowered

    def compiled(self, options: dict[str, str | bool] | None = None) -> jax.stages.Compiled:
        """The step, compiled for the mesh, with these compiler options besides its own."""
        return self.lowered.compile(compiler_options=options) if options else self.lowered.compile()

    def checked(self, hlo: str) -> Check:
        """What is planned beside what is in the text of the step's compiled program."""
        check = verify(hlo, self.sends.collectives, self.mesh.shape)
        trace = getattr(self.step, "trace", None)  # a step in pieces has none, and no two messages in a program
        if check.ok or trace is None:
            return check
        traced = trace(self.layout.placed_shapes, self.batch_shapes).jaxpr
        return verify(hlo, self.sends.collectives, self.mesh.shape, traced)

    def init(self) -> TrainState:
        """The state before the first step, made on the mesh."""
        given = self._initial_values()
        return self.layout.make(self._make_first, *([] if given is None else [given]))

    def check_initial_weights(self) -> None:
        """Refuse weights to begin with that cannot be read, or are another network's; they are read and given up."""
        self._initial_values()

    def _initial_values(self) -> dict[str, np.ndarray] | None:
        if (weights := self.config.initial_weights) is None:
            return None
        try:
            return initial_values(Path(weights), self._single_variables)
        except OSError as error:  # such as a name that is too long
            raise InputError(f"initial_weights={weights[:80]}: {error.strerror or error_text(error)}") from error

    @property
    def _single_variables(self) -> Variables:
        """Shapes of one network's variables, which a file of weights holds."""
        if not self.config.ensemble.on:
            return self.variables
        one: Variables = jax.tree.map(lambda leaf: leaf.update(shape=leaf.shape[1:]), self.variables)
        return one

    def batches(self, step: int = 0) -> BatchStream:
        """Training batches after `step` steps, without end."""
        processes, check = self.processes, self.check_of("train")
        return batch_stream(self.config, self.source, self.phases, processes.mesh, processes.shard, step, check)

    def check_of(self, split: str) -> Callable[[dict[str, Any]], None]:
        """What refuses a batch of a split, before it is sent, that this network cannot learn."""
        return functools.partial(self.config.task.check_batch, outputs=self.outputs, split=split)

    def evaluate(self, state: TrainState, split: str = "test") -> dict[str, float]:
        """The task's metrics on 'test' or 'validation': every example counts once, on any number of devices."""
        if split not in self._evaluators:
            raise InputError(f"split {split!r}: this run is evaluated on {', '.join(self._evaluators)}")
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
        if not isinstance(name, str):
            return self.held_out
        try:
            return open_split(self.config.data, name)
        except InputError as error:
            cure = (
                "wanted the name of a split besides 'train' and 'test', or a part of the training examples such as 0.1"
            )
            raise InputError(f"validation={name}: {error}; {cure}") from error

    def check_tests(self) -> None:
        """Refuse test examples that the network, which learns from training examples, cannot take."""
        config, model = self.config, as_model(self.config.model)
        trained = model_inputs(config.task, self.example)
        for source in (self.validation, self.tests):
            if source is None:
                continue
            tested = model_inputs(config.task, example_shapes(source))
            check_tests(config, model, self._single_variables, trained, tested)

    def check_programs(self) -> None:
        """Read examples, and trace the step and the evaluations: what fails in them fails before anything is written.

        JAX keeps what it has traced, so this takes no time of what comes later.

        Raises:
            InputError: a model, a task, an optimizer or a strategy of the user's does not fit the rest.
        """
        for source in (self.source, self.validation, self.tests):
            if source is not None:
                check_rows(source)
        _ = self.lowered  # kept for whoever compiles it
        for evaluator in self._evaluators.values():
            evaluator.trace()

    @functools.cached_property
    def _evaluators(self) -> dict[str, "_Evaluator"]:
        sources = {"validation": self.validation, "test": self.tests}
        return {split: _Evaluator(self, split, source) for split, source in sources.items() if source is not None}


class _Evaluator:
    """A function of a state: the task's metrics on all of `source`, a split, each example counted once."""

    def __init__(self, experiment: Experiment, split: str, source: Source) -> None:
        config, self._split = experiment.config, split
        devices = math.prod(experiment.axis_sizes.values())
        # Rounded up, as what is too much of the last batch counts 0; a batch of more than all examples is padding.
        self._size = -(-min(config.eval_batch_size, source.num_examples) // devices) * devices
        members = config.ensemble.members if config.ensemble.on else None
        self._step = make_eval_step(experiment.model, config.task, experiment.mesh, members)
        self._experiment, self._source, self._task = experiment, source, config.task
        self._ranks = experiment.processes.cluster.mpi

    def __call__(self, state: TrainState) -> dict[str, float]:
        across = [self._ranks.totals] if self._ranks else []
        batches = eval_batches(self._source, batch_size=self._size, shard=self._experiment.processes.shard)
        params, stats = self._experiment.layout.evaluated(state)
        sharding = split_by_example(self._experiment.mesh)
        with closing(placed(batches, sharding, self._experiment.check_of(self._split))) as on_devices:
            return evaluate(self._step, self._task, params, stats, on_devices, *across)

    def trace(self) -> None:
        """Trace the program without computing anything; its metrics need not be those of the loss."""
        mesh, whole = self._experiment.mesh, self._experiment.layout.whole_shapes
        everywhere, split = replicated(mesh), split_by_example(mesh)
        params, stats = jax.tree.map(lambda leaf: leaf.update(sharding=everywhere), (whole.params, whole.stats))
        size = self._size // (self._experiment.processes.shard.count if self._ranks else 1)
        batch = shapes_of_batch(size, example_shapes(self._source), split)
        weight = jax.ShapeDtypeStruct((size,), "float32", sharding=split)
        measured = self._step.lower(params, stats, {**batch, "weight": weight}).out_info
        ensemble = self._experiment.config.ensemble.on  # then names have the member before them
        names = {name.partition("/")[2] if ensemble else name for name in measured.keys() - {WEIGHT, EXAMPLES}}
        check_metrics(self._task, names)


def strategys_code(strategy: str | Strategy) -> AbstractContextManager[None]:
    """Inside, what fails is a strategy of the user's own, if the config holds one; see `users_code`."""
    return users_code(f"strategy={shown(strategy, 200)}") if isinstance(strategy, Strategy) else nullcontext()
