"""A small model on eight devices, what its parts take, and plans by their labels."""

import jax
import numpy as np

from jaxnet.comm import make_mesh
from jaxnet.cost.fit import Curve, Line
from jaxnet.cost.prediction import Parts, Plan, ways_of
from jaxnet.cost.shapes import Sizes
from jaxnet.cost.step_bench import labelled_strategy
from jaxnet.cost.workloads import LOSSES, synthetic

SIZES = Sizes(leaves=((256, 256),) * 8, example=(256,), batch=8)  # 2 MiB of gradients


def small_workload():
    return synthetic("small", LOSSES["small"], SIZES, make_mesh(2, jax.devices()[:8]))


def line(latency, per_byte):
    return Curve({1: latency}, Line(latency, per_byte, per_byte, per_byte, 0.0))


def parts_of(workload, share=0.0, per_byte=1e-6):
    """Forward in a second, then a gradient each second in the order of backward; a MB takes a second on any link."""
    ready = np.empty(8)
    ready[list(workload.order)] = 2.0 + np.arange(8)
    ways = ways_of([labelled_strategy(name) for name in ("ddp", "hierarchical", "blueconnect")], workload)
    curves = {way: line(0.0, per_byte) for way in ways}
    return Parts(1.0, tuple(ready), 9.0, 9.5, curves, share)


def plan(label):
    return Plan(labelled_strategy(label), label.endswith("+pieces"))
