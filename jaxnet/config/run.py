"""What a run is: frozen dataclasses, written by a function in `configs/NAME.py`."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from jaxnet.comm import Strategy
from jaxnet.comm.as_html import html_folded, html_table
from jaxnet.config.keys import default_values, flatten
from jaxnet.ensembles import Ensemble
from jaxnet.errors import InputError
from jaxnet.limits import BelowOne, Count, Limit, NotNegative, Positive, Seconds, Whole
from jaxnet.optimizer import AnyOptimizer, Optimizer
from jaxnet.tasks.classification import ImageClassification
from jaxnet.tasks.task import Task

# ---- What a run is to do about numbers that go wrong --------------------------------------------------


@dataclass(frozen=True)
class Guard:
    """What is done about numbers that go wrong.

    Attributes:
        skip: a step whose loss or gradient is not finite changes nothing but the count of steps.
        rollback_after: so many such steps in a row send the run back to the last checkpoint before them; it goes on
            with the examples after them.
        max_rollbacks: how often, before the run stops.
        check_replicas_every: steps after which devices compare what they should hold alike, as they do before every
            checkpoint; none: never.
        on_difference: whether a run whose devices differ stops, or trains again from the last checkpoint.
    """

    skip: bool = True
    rollback_after: Count = 5
    max_rollbacks: Whole = 3
    check_replicas_every: Count | None = 100
    on_difference: Literal["stop", "restore"] = "stop"


# ---- When a run that hangs is ended -------------------------------------------------------------------


@dataclass(frozen=True)
class WatchdogLimits:
    """When a run that does not get on is ended, with status 79. Time spent compiling does not count.

    Attributes:
        factor: a step may take so many times the median of the last steps; none: nothing is watched.
        floor_seconds: and at least this long.
        other_seconds: what anything else may take: start-up, the first steps, an evaluation, a save.
    """

    factor: Annotated[float, Limit("above 1", lambda value: value > 1)] | None = 20.0
    floor_seconds: Seconds = 60.0
    other_seconds: Seconds = 1800.0


@dataclass(frozen=True)
class EarlyStopping:
    """When a run ends that gets no better on the validation examples.

    Attributes:
        patience: evaluations in a row that are not better than the best one, by the metric that the task calls its
            best; none: the run goes on to its last step.
        min_delta: by how much an evaluation must be better to count.
    """

    patience: Count | None = None
    min_delta: NotNegative = 0.0


@dataclass(frozen=True)
class Checkpoints:
    """When the state is saved and what is kept.

    Attributes:
        every_steps: a checkpoint every so many steps; an evaluation, the last step and a stop signal save besides.
        keep: how many of the newest to keep; the best on the validation examples is kept besides.
    """

    every_steps: Count = 500
    keep: Count = 3


@dataclass(frozen=True)
class Log:
    """What a run writes down.

    Attributes:
        every_steps: a line in metrics.jsonl, the mean over so many steps; the first after a resume, over those since.
        tensorboard: write TensorBoard files as well.
        hlo: write the compiled step's programs to the workdir (hlo/).
        trackers: send the metrics there as well: 'wandb', 'mlflow', or both; see `jaxnet.training.trackers`.
    """

    every_steps: Count = 50
    tensorboard: bool = True
    hlo: bool = False
    trackers: tuple[Literal["wandb", "mlflow"], ...] = ()


@dataclass(frozen=True)
class Profile:
    """A window of steps traced by the profiler into the workdir (profile/).

    Attributes:
        start: first step traced.
        steps: how many; 0: none.
    """

    start: Whole = 10
    steps: Whole = 0


# Whoever means megabytes would otherwise get a message for every few parameters, and wait for ever.
_BucketBytes = Annotated[int, Limit("at least 1024 (these are bytes)", lambda value: value >= 1024)]
_Validation = Annotated[
    float | str | None,
    Limit(
        "a part of the training examples, above 0 and below 1, or the name of a split",
        lambda value: isinstance(value, str) or 0 < value < 1,
    ),
]
# JAX takes the lower 32 bits of a larger seed without a word.
_Seed = Annotated[int, Limit(f"0 to {2**32 - 1}", lambda value: 0 <= value < 2**32)]


@dataclass(frozen=True)
class Config:
    """A training run.

        # my_config.py, which `jaxnet train --config my_config.py` trains; `jaxnet new` writes one to begin with
        def get_config():
            return Config(model=MyNet(), data=Digits(), epochs=10, batch_size=64, strategy="ddp")

    Attributes:
        model: a Flax Linen module, or a `jaxnet.models.Model` (such as `from_nnx` makes).
        data: a data set of `jaxnet.data`.
        task: what is minimized and measured, such as `ImageClassification`, or a `Task` of your own.
        epochs: passes over the training examples; the last one may be a fraction.
        batch_size: examples in a global batch, over all devices.
        validation: the examples by which the best state is chosen, and the end of a run that gets no better: a part of
            the training examples, such as 0.1, which is then held back from training, or the name of a split of the
            data set. None: nothing is chosen. The test split never chooses anything.
        eval_batch_size: the same for evaluation, at most, rounded up to a multiple of the devices.
        eval_every_epochs: evaluate on the validation and test examples every so many epochs, and at the end.
        optimizer: an `Optimizer`, whose numbers are keys; an Optax transformation; or a function of the run's total
            steps that makes one. Strategies that shard the state take Optax transformations that treat each element by
            itself.
        average_decay: of the moving average of the parameters, which is then what is evaluated, with the running
            averages of BatchNorm; less at first, (1 + n) / (10 + n) after n steps. None: no average.
        microbatches: parts that a device's share of a batch is taken in; gradients travel once.
        batch_norm: what BatchNorm normalizes by: the batch of each device ('local', what the papers of 2015 to 2017
            mean), of each host ('host'), or the whole ('global').
        strategy: how gradients travel: a name (`jaxnet strategies` lists them, and what 'NAME:key=value' can set), or a
            `comm.Strategy` of your own. 'auto' is 'ddp', 'hierarchical' or 'priority', by the platform and, between
            processes on CPUs, by what a message takes; a run says which, and why.
        bucket_bytes: instead of the size of a named strategy's buckets.
        mode: 'auto' is 'jit' for strategy 'xla', 'shard_map' for others. Across CPU hosts of a device each it is
            'pieces', several programs a step, for 'priority', and for strategy 'auto' with more than one bucket.
            'pmap' is there for comparison.
        shard_dense: dense layers, such as classifier_1 or classifier_*, whose kernels are cut over the devices of each
            host, while all else is data parallel: activations travel to them instead of gradients.
        transport: who carries gradients across hosts: XLA's collectives, or an MPI library between the ranks of
            mpirun, each of which is a host.
        hosts: rows of the mesh; None: one a process.
        seed: of initialization, order of examples and augmentation.
        initial_weights: from what a run without a checkpoint begins: the workdir of another run of the same network
            (its newest checkpoint), one of its checkpoints, or a file of `jaxnet import`. None: random numbers.
        checkpoints: see `Checkpoints`.
        log: see `Log`.
        profile: see `Profile`.
        early_stopping: when a run ends that gets no better; see `EarlyStopping`.
        guard: what is done about numbers that go wrong; see `Guard`.
        ensemble: several networks at once; see `Ensemble`.
        watchdog: when a run that hangs is ended; see `WatchdogLimits`.
        compiler_options: of XLA, for the step, besides those that jaxnet sets: NAME=VALUE each, or `sparse_cores`, the
            sums of a TPU v5p or v6e beside its products. `jaxnet plan --on` prints all.
        compile_cache: the directory, relative to the workdir, in which compiled programs are kept, so that a restart
            compiles nothing; None: they are not kept.
    """

    model: Any
    data: Any
    epochs: Positive
    batch_size: Count
    task: Task = field(default_factory=ImageClassification)
    validation: _Validation = None
    eval_batch_size: Count = 512
    eval_every_epochs: Positive = 1.0
    optimizer: AnyOptimizer = field(default_factory=Optimizer)
    average_decay: BelowOne | None = None
    microbatches: Count = 1
    batch_norm: Literal["local", "host", "global"] = "local"
    strategy: str | Strategy = "auto"
    bucket_bytes: _BucketBytes | None = None
    mode: Literal["auto", "shard_map", "jit", "pmap", "pieces"] = "auto"
    shard_dense: tuple[str, ...] = ()
    transport: Literal["xla", "mpi"] = "xla"
    hosts: int | None = None
    seed: _Seed = 0
    initial_weights: str | None = None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    log: Log = field(default_factory=Log)
    profile: Profile = field(default_factory=Profile)
    early_stopping: EarlyStopping = field(default_factory=EarlyStopping)
    guard: Guard = field(default_factory=Guard)
    ensemble: Ensemble = field(default_factory=Ensemble)
    watchdog: WatchdogLimits = field(default_factory=WatchdogLimits)
    compiler_options: tuple[str, ...] = ()
    compile_cache: str | None = "compile_cache"

    def _repr_html_(self) -> str | None:
        try:
            values, defaults = flatten(self), default_values(self)
        except InputError:  # a value of the user's own that cannot be shown
            return None
        chosen = {key: value for key, value in values.items() if key not in defaults or defaults[key] != value}
        return html_table(["key", "value"], chosen.items()) + html_folded(
            f"all {len(values)} keys, with those left at their defaults", html_table(["key", "value"], values.items())
        )
