"""What the program of a training step will send: its plan, before it is compiled."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jax.sharding import Mesh

from jaxnet.comm import AXES, AllReduce, Collective, Reducer, Sharded, Strategy, mesh_size
from jaxnet.training.config import Config
from jaxnet.training.norms import Parts
from jaxnet.training.optimizer import optimizer_plan
from jaxnet.training.steps.device_step import mean_plan, one_message
from jaxnet.training.steps.finite import guard_plan
from jaxnet.training.steps.hybrid import layers_plan
from jaxnet.training.steps.layout import Layout
from jaxnet.training.steps.local_step import Exchange, exchanged, local_plan
from jaxnet.training.steps.sharded_dense import ShardedDense

_METRICS = 2  # loss and accuracy


class Sent(NamedTuple):
    """Collectives of a step; the attributes are those of `Experiment`."""

    planned: tuple[Collective, ...]
    shares: tuple[float, ...]
    exchange: Exchange | None


def what_is_sent(
    config: Config,
    strategy: Strategy,
    travels: Reducer | Sharded | None,
    layout: Layout,
    total_steps: int,
    mesh: Mesh,
    sums: AllReduce,
    layers: Sequence[ShardedDense],
) -> Sent:
    """The plan of a step with this strategy, whose states lie so; `travels` is its reducer, or None if XLA sums."""
    state = layout.whole_shapes
    if strategy.averaging is not None:
        exchange = exchanged(state, strategy.averaging, _METRICS + config.guard.skip)
        return Sent(*local_plan(strategy, exchange, total_steps, mesh.shape), exchange)
    if travels is None:
        return Sent((), (), None)
    merged = None if config.batch_norm == "global" else state.stats  # running averages that differ between devices
    planned = travels.plan(state.params, mesh.shape).collectives
    planned += mean_plan(merged, _METRICS, mesh.shape, one_message(sums))
    if axes := AXES if strategy.sharded is not None else layout.cut_axes:
        norms = optimizer_plan(config.optimizer, Parts(state.params, axes), mesh.shape)
        planned += tuple(dataclasses.replace(norm, elements=norm.elements * config.ensemble.members) for norm in norms)
        planned += guard_plan(state.params, axes, mesh.shape) if config.guard.skip else ()
    examples = config.batch_size // mesh_size(mesh)
    in_layers, times = layers_plan(layers, examples, config.microbatches, mesh.shape)
    return Sent(planned + in_layers, (1.0,) * len(planned) + times, None)
