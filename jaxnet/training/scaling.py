"""A config as what `jaxnet.cost.simulation` asks about: its layers, and what one device does of it in a second.

    work = Work("net", layers_of(config), batch=64, rate=compiled_rate(config, "h100", batch=64))

Nothing is run. Where no rate has been measured, the step is compiled for one device of the kind, and is taken to reach
`REACHED` of the published rates.
"""

import dataclasses
from collections import Counter

import jax

from jaxnet.comm import make_mesh
from jaxnet.config.run import Config
from jaxnet.cost.accelerators import ACCELERATORS, Cluster
from jaxnet.cost.simulation import Layer
from jaxnet.data import Source
from jaxnet.models.zoo import parameter_flops
from jaxnet.training.experiment import Experiment
from jaxnet.training.forecast import forecast
from jaxnet.training.network import step_loss
from jaxnet.training.prepare import prepare

# ResNet-50 on one A100, images/s, from NVIDIA's DeepLearningExamples: PyTorch, Paddle and MXNet. The compiled step has
# 4,478 and 2,284 at full rates (batch 256, JAX 0.10.2), so they reach 0.41 to 0.61 of it.
PUBLISHED_RATES = {"bfloat16": (2470.0, 2711.0, 2180.0), "float32": (938.0, 993.0, 1022.0)}
REACHED = 0.5


def layers_of(config: Config, source: Source | None = None) -> tuple[Layer, ...]:
    """The parameters of a config's network: see `network_of`, which also tells their dtype."""
    return network_of(config, source)[0]


def network_of(config: Config, source: Source | None = None) -> tuple[tuple[Layer, ...], str]:
    """The parameters of a config's network, as forward uses them, each with the operations in which it is a factor.

    And the dtype of most of them, in which their gradients travel.

    Args:
        config: of the run.
        source: its training examples, or their shapes; None: they are opened.

    Raises:
        InputError: the config cannot run.
    """
    experiment = _alone(config, make_mesh(1, jax.devices("cpu")[:1]), 1, source)
    variables, batch = experiment.variables, experiment.batch_shapes
    rows = (1, config.ensemble.members) if config.ensemble.on else (1,)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    flops = parameter_flops(step_loss(config, "jit", ()), *variables, batch, keys)
    leaves = jax.tree.leaves(variables.params)
    order = experiment.form.options.order or range(len(leaves))
    layers = tuple(Layer(leaves[index].size, flops[index]) for index in reversed(order))
    sizes = Counter[str]()
    for leaf in leaves:
        sizes[leaf.dtype.name] += leaf.size
    return layers, sizes.most_common(1)[0][0] if sizes else "float32"


def compiled_rate(config: Config, kind: str, batch: int, source: Source | None = None) -> float:
    """Examples a second of one device, by its compiler and `REACHED` of its published rates; compiles for minutes.

    Args:
        config: of the run.
        kind: of the device, such as 'h100'.
        batch: examples of the device.
        source: as in `layers_of`.

    Raises:
        InputError: the compiler is not installed or refuses the step.
    """
    alone = Cluster(ACCELERATORS[kind], (1,) * ACCELERATORS[kind].dims)
    made = forecast(_alone(config, alone.mesh(1), batch, source), alone)
    return REACHED * batch / made.timeline.compute


def _alone(config: Config, mesh: jax.sharding.Mesh, batch: int, source: Source | None) -> Experiment:
    """The run on one device, which sends nothing."""
    one = dataclasses.replace(
        config, strategy="flat", mode="auto", transport="xla", bucket_bytes=None, batch_size=batch, microbatches=1
    )
    return prepare(one, mesh, source=source)
