"""What the four forms of a training step have in common: what they are given, and what each must answer.

A strategy says what travels and when. Its form says what follows for the step: how the state lies on the mesh, the
program, and the plan of what that program sends. `form_of` in `jaxnet.parallel` chooses the form.

    replicated   every device holds the whole state             jaxnet/parallel/replicated.py
    sharded      every device holds and updates its shard       jaxnet/parallel/sharded.py
    local        every device trains a copy of its own          jaxnet/parallel/local.py
    pieces       replicated, as several programs                jaxnet/parallel/pieces.py
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import optax
from jax.sharding import Mesh

from jaxnet.comm import AllReduce, BucketPlan, Collective, CompilerOption, Reducer, Strategy, all_reduce
from jaxnet.models import leaf_name
from jaxnet.optimizer import ShardedParams
from jaxnet.parallel.layout import Layout
from jaxnet.parallel.state import TrainState
from jaxnet.tasks.task import LossFn

Mode = Literal["shard_map", "jit", "pmap", "pieces"]
PyTree = Any


@dataclass(frozen=True)
class StepOptions:
    """What a step does besides its loss, optimizer and strategy.

    Attributes:
        mode: 'shard_map': one program a device, the collectives are ours; 'jit': XLA partitions one global
            program; 'pmap': as shard_map through the older `jax.pmap`, which has one mesh axis; 'pieces': several
            programs, launched from two threads, on one device a process.
        microbatches: parts that a device's share of the batch is taken in; gradients travel once.
        average_decay: `d` of the moving average of parameters, `a = d a + (1 - d) p`, less at first (`warmed_decay`);
            None keeps none.
        order: leaves in the order in which backward produces them (`backward_order`); None: the tree's.
        all_reduce: sums metrics and running averages; of the same transport as the strategy.
        ranks: processes that MPI joins, each with a mesh of its own.
        skip: leave the state as it was where the loss or the gradient is not finite; see `Skip`.
        compiler: options for the compiler besides those that the platform and the networks need; in no mode 'pieces'.
    """

    mode: Mode = "shard_map"
    microbatches: int = 1
    average_decay: float | None = None
    order: Sequence[int] | None = None
    all_reduce: AllReduce = all_reduce
    ranks: int = 1
    skip: bool = True
    compiler: tuple[CompilerOption, ...] = ()


class Traffic(NamedTuple):
    """What a step sends besides gradients, for its plan.

    Attributes:
        metrics: how many scalars are averaged over devices.
        weighted: whether the mean weight of the examples is one more.
        averages: which leaves of the running averages differ between devices, and so are averaged too.
        norms: the collectives of an optimizer that sees shards of the parameters.
        total_steps: of the run.
        examples: of a device's share of a batch.
    """

    metrics: int
    weighted: bool
    averages: tuple[int, ...]
    norms: Callable[[ShardedParams], tuple[Collective, ...]]
    total_steps: int
    examples: int

    def averaged(self, stats: PyTree) -> list[Any]:
        """The leaves of running averages of these shapes that are averaged."""
        leaves = jax.tree.leaves(stats)
        return [leaves[index] for index in self.averages]


class StepPlan(NamedTuple):
    """What the program of a step sends.

    Attributes:
        collectives: of one step's program; empty if XLA reduces.
        shares: for each of them how often a step sends it, in the mean over the run's steps. 1.0 but for rounds of
            local training and for loops over microbatches.
        leaves: path and shape of each leaf that travels, as the buckets number them.
        buckets: how leaves map to messages; None if XLA reduces, or where messages are no buckets.
        shards: into how many equal shards each bucket is cut; 1: a bucket is a whole message.
    """

    collectives: tuple[Collective, ...]
    shares: tuple[float, ...]
    leaves: tuple[tuple[str, jax.ShapeDtypeStruct], ...]
    buckets: BucketPlan | None
    shards: int = 1


class Step(Protocol):
    """`step(state, batch) -> (state, metrics)`, a `jax.jit` function or used as one.

    The state is donated. `step.lower(state, batch).compile()` is the program to run or inspect.
    """

    def __call__(self, state: TrainState, batch: PyTree, /) -> tuple[TrainState, dict[str, jax.Array]]: ...

    def lower(self, state: TrainState, batch: PyTree, /) -> Any: ...


class Form(Protocol):
    """The step of one kind of strategy on one mesh.

    Attributes:
        strategy: how gradients travel.
        mesh: axes ('host', 'device').
        options: see `StepOptions`.
        round_steps: steps between two moments at which all devices hold the same state; 1 but for local training.
    """

    @property
    def strategy(self) -> Strategy: ...

    @property
    def mesh(self) -> Mesh: ...

    @property
    def options(self) -> StepOptions: ...

    @property
    def round_steps(self) -> int: ...

    def reducer(self, params: PyTree) -> Reducer | None:
        """What sums values of these shapes, and keeps a state for each device (`TrainState.comm`); None: none does."""

    def agree_after(self, step: int) -> bool:
        """Whether all devices report the same metrics of step number `step` (from 1)."""

    def sharded_params(self, params: PyTree) -> ShardedParams | None:
        """What shards of the parameters (given as shapes) the optimizer sees; None: it sees them whole."""

    def optimizer(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer with room in its state for what this form remembers."""

    def layout(self, whole: TrainState, optimizer: optax.GradientTransformation) -> Layout:
        """How a state of these shapes lies on the mesh between steps."""

    def step(self, loss_fn: LossFn, optimizer: optax.GradientTransformation, layout: Layout) -> Step:
        """The training step. The optimizer is what `optimizer` gave."""

    def plan(self, layout: Layout, traffic: Traffic) -> StepPlan:
        """What the step's program will send, before it is compiled."""


def leaves_by_path(tree: PyTree) -> tuple[tuple[str, Any], ...]:
    """Path and value of each leaf.

    >>> leaves_by_path({"a": 1, "b": {"c": 2}})
    (('a', 1), ('b/c', 2))
    """
    return tuple((leaf_name(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree))
