"""The training step under each kind of strategy: replicated, sharded, local, in pieces.

`form_of(strategy, mesh)` is the form that a strategy gives the step; see `jaxnet.parallel.form` for what it answers.
"""

from jax.sharding import Mesh

from jaxnet.comm import Strategy, on_platform, platform_of
from jaxnet.parallel.form import Form as Form
from jaxnet.parallel.form import Mode as Mode
from jaxnet.parallel.form import Step as Step
from jaxnet.parallel.form import StepOptions as StepOptions
from jaxnet.parallel.form import StepPlan as StepPlan
from jaxnet.parallel.form import Traffic as Traffic
from jaxnet.parallel.hybrid import ShardedDense as ShardedDense
from jaxnet.parallel.layout import Layout as Layout
from jaxnet.parallel.local import LocalUpdate as LocalUpdate
from jaxnet.parallel.local import averaged_state as averaged_state
from jaxnet.parallel.pieces import StepInPieces as StepInPieces
from jaxnet.parallel.replicated import Replicated as Replicated
from jaxnet.parallel.sharded import ShardedUpdate as ShardedUpdate
from jaxnet.parallel.state import TrainState as TrainState

__all__ = [
    *("Form", "Mode", "Step", "StepOptions", "StepPlan", "Traffic", "Layout", "ShardedDense", "TrainState", "form_of"),
    *("Replicated", "ShardedUpdate", "LocalUpdate", "StepInPieces"),
]


def form_of(
    strategy: Strategy,
    mesh: Mesh,
    options: StepOptions | None = None,
    *,
    layers: tuple[ShardedDense, ...] = (),
    bucket_bytes: int | None = None,
    ensemble: bool = False,
) -> Form:
    """The form of a strategy's step on a mesh.

    Args:
        strategy: how gradients travel.
        mesh: axes ('host', 'device').
        options: see `StepOptions`.
        layers: dense layers to cut over the devices of a host; of a replicated strategy alone.
        bucket_bytes: the cap of a message of cut layers.
        ensemble: whether leaves of the state lead with [members].

    Raises:
        ValueError: the strategy does not go with the mode.
    """
    options, strategy = options or StepOptions(), on_platform(strategy, platform_of(mesh))
    if options.mode == "pieces":
        return StepInPieces(strategy, mesh, options)
    if strategy.kind == "sharded":
        return ShardedUpdate(strategy, mesh, options, ensemble)
    if strategy.kind == "local":
        return LocalUpdate(strategy, mesh, options)
    return Replicated(strategy, mesh, options, layers, bucket_bytes)
