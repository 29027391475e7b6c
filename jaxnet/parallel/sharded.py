"""The sharded form (ZeRO-1, S-Caffe's SC-OB and SC-OBR): every device keeps and updates its shard of the parameters.

One step, on each device:

1. gather: the whole parameters from all shards, bucket by bucket, each just before forward uses it;
2. forward and backward on the device's own examples;
3. scatter: each device gets its shard of the sum of the gradients;
4. the optimizer updates the shard; the whole is not gathered before the next step.
"""

from dataclasses import dataclass
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from jaxnet.comm import AXES, Reducer, Sharded, Strategy, mesh_size, shards_in_order, stacked_shards
from jaxnet.optimizer import ShardedParams
from jaxnet.parallel.device_step import Skip, device_step, guard_plan, mean_plan
from jaxnet.parallel.form import StepOptions, StepPlan, Traffic, leaves_by_path
from jaxnet.parallel.layout import Layout, sharded_kinds
from jaxnet.parallel.replicated import shard_mapped
from jaxnet.parallel.state import TrainState
from jaxnet.tasks.task import LossFn

PyTree = Any


@dataclass(frozen=True)
class ShardedUpdate:
    """See `Form`. Of an ensemble, each device updates the same shard of every member.

    Raises:
        ValueError: another mode than 'shard_map'.
    """

    strategy: Strategy
    mesh: Mesh
    options: StepOptions
    ensemble: bool = False
    round_steps = 1

    def __post_init__(self) -> None:
        if self.options.mode != "shard_map":
            raise ValueError(f"strategy {self.strategy.label!r} carries shards: it takes mode 'shard_map'")

    @property
    def shards(self) -> Sharded:
        """What scatters gradients and gathers parameters, taking leaves in backward order."""
        shards, order = self.strategy.reducer, self.options.order
        assert isinstance(shards, Sharded)
        if self.ensemble:
            shards = stacked_shards(shards)
        return shards if order is None else shards_in_order(order, shards)

    def agree_after(self, step: int) -> bool:
        """Always: metrics are means over all devices."""
        del step
        return True

    def reducer(self, params: PyTree) -> Reducer | None:
        """None: shards are scattered and gathered, and nothing is remembered between steps."""
        del params
        return None

    def sharded_params(self, params: PyTree) -> ShardedParams:
        """The optimizer sees a shard of every parameter."""
        return ShardedParams(params, AXES)

    def optimizer(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer as it is."""
        return optimizer

    def layout(self, whole: TrainState, optimizer: optax.GradientTransformation) -> Layout:
        """Parameters, their average and the optimizer's state in shards."""
        axes = self.shards.axes
        return Layout(self.mesh, axes, whole, sharded_kinds(whole, optimizer, ensemble=self.ensemble), self.ensemble)

    def step(self, loss_fn: LossFn, optimizer: optax.GradientTransformation, layout: Layout) -> jax.stages.Wrapped:
        """One program: gather, gradients, scatter, the optimizer on the shard."""
        shards, shapes, options = self.shards, layout.whole_shapes.params, self.options
        step = device_step(
            *(loss_fn, optimizer, lambda grads, state: (shards.scatter(grads), state), mesh_size(self.mesh), AXES),
            *(options.microbatches, options.average_decay),
            gather=lambda parts: shards.gather(parts, shapes),
            skip=Skip(AXES) if options.skip else None,
        )
        return shard_mapped(step, self.mesh, layout.specs, options.compiler)

    def plan(self, layout: Layout, traffic: Traffic) -> StepPlan:
        """Gathers and scatters, metrics and running averages, then norms and the guard, which span all shards."""
        state, sizes = layout.whole_shapes, self.mesh.shape
        sent = self.shards.plan(state.params, sizes)
        averages = traffic.averaged(state.stats)
        planned = sent.collectives + mean_plan(averages, traffic.metrics + traffic.weighted, sizes)
        planned += traffic.norms(ShardedParams(state.params, AXES))
        planned += guard_plan(state.params, AXES, sizes) if self.options.skip else ()
        leaves = leaves_by_path(state.params)
        return StepPlan(planned, (1.0,) * len(planned), leaves, sent.buckets, mesh_size(self.mesh))
