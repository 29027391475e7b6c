"""What `strategy=auto` is on a mesh: a rule, from the platform, the processes and the link, which is measured.

| where | what | why |
|---|---|---|
| TPUs | `ddp` | one all-reduce takes the links of all dims of a slice at once |
| GPUs | `hierarchical` | the network between hosts carries 1/devices of the bytes |
| CPUs | `ddp`, buckets of 4 MiB | of 25 MiB, too few travel beside backward; no gradient is cut |
| there, one process, several buckets | `per_leaf`, after backward | who waits for a sum holds up what others compute |
| there, one device a process, several buckets | the same in pieces | a message does not wait for what computes |
| there, over a slow link | `priority` | messages also travel beside the next forward pass |
| several processes of several CPU devices | `ddp` or `hierarchical` | which sends less between processes |
| there, large tensors | the same, after backward | as in one process |

Messages that cross the end of a step (`priority`) keep the link busy, and cost the cores more: more programs, and large
gradients are cut. So a message is timed, and the rate of a product, by which computation is estimated. They cross where
the link is slow and takes longer than computation.

On CPUs `hierarchical` copies large gradients twice, to cut them into buckets, and waits more often inside a process;
that takes time of the cores, which also compute. Where several processes have several devices each it sends less
between processes, but a message travels beside what computes. So one is summed both ways and timed, and `hierarchical`
is taken where it saves 2 ms a MiB, and at least 3. Devices that share a process share its threads: one that waits for a
message leaves fewer to the others. So messages wait for the end of backward, but where most tensors are small. Then
nothing computes beside them, and 1.25 ms a MiB are enough.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxnet.comm import (
    AUTO,
    AXES,
    DEVICE,
    HOST,
    MiB,
    all_reduce,
    has_bucket_size,
    named_strategy,
    platform_of,
    scattered,
)
from jaxnet.cost.collectives import Transfer, measured_row
from jaxnet.cost.rounds import seconds_a_step, warm_up
from jaxnet.cost.steps import TimedProgram
from jaxnet.cost.workloads import Workload
from jaxnet.files import record_of
from jaxnet.models.zoo import count_flops
from jaxnet.tasks.task import LossFn, PyTree

_BUCKET = 4 * MiB
_TIMES, _FEW_TIMES = 7, 3
# Milliseconds that `hierarchical` must save of a message: a MiB, and at least. What it saves of 4 MiB, and the ratio of
# the step, as measured between two processes of two devices: at 250 Mbit/s 64 0.74; at 1 Gbit/s 16 0.88, 12 0.92, 11
# 0.94, 10 0.94; at 2 Gbit/s 6.5 1.06, 2.6 0.99; without a link between -3.9 1.37, -6.1 1.45, -6.7 1.68. Of 0.4 MB, 1.7
# ms saved: 1.21; 5.6: 0.87. Where messages follow backward (another processor): at 1 Gbit/s 21 0.83, 19 0.75, 14 0.80;
# at 2 Gbit/s 7.5 0.93, 6.6 0.96, 6.4 0.88; at 3 Gbit/s 3.7 1.02, 3.2 0.96, 2.4 1.26; at 4 Gbit/s 2.3 1.02, 1.9 1.10.
_SAVED_A_MIB, _SAVED_A_MIB_AFTER, _SAVED = 2.0, 1.25, 3.0
# The least time of a message of `_BUCKET` bytes with which messages cross the end of a step. Ratios of `priority` and
# steps that end with their sums, between two processes, four models: 0.96 to 1.00 where a message takes 141 ms, 0.88 to
# 0.95 at 35, 0.99 to 1.03 at 18, 1.01 to 1.13 at 9.
_SLOW_SECONDS = 0.025
# Mean bytes of a tensor from which messages wait for the end of backward, between processes of several devices. A step
# that waits over one that does not, `ddp` through loopback and `hierarchical` at 1 Gbit/s: dense (4 MiB) 0.91 and 0.97,
# vgg (6.7) 0.89 and 0.92, odd (7.1) 0.94 and 1.00, resnet50 (0.6) 1.15 and 1.13.
_LARGE = 1 * MiB
_PRODUCT = 768  # rows and columns of the factors by whose product a processor's rate is measured
_BESIDE = "buckets of 4 MiB travel beside backward, and no gradient is cut"
_BEHIND = "devices of one process have no link to keep busy: each tensor is summed as it is, when backward has ended"
_ALONE = "on one device nothing travels"

# How either strategy sums a message.
_WAYS = (
    Transfer("ddp", "all-reduce", reducer=lambda axes: all_reduce(*axes)),
    Transfer("hierarchical", "all-reduce", reducer=lambda _: scattered(DEVICE, all_reduce(HOST))),
)


class Choice(NamedTuple):
    """The strategy that was chosen for a mesh.

    Attributes:
        mesh: for which: see `described`.
        strategy: its name.
        bucket_bytes: of its buckets; None: its own.
        why: in words.
        pieces: whether a step is several programs, as in `mode=pieces`, where nothing else in a config forbids it; a
            step of `priority` is anyway.
    """

    mesh: str
    strategy: str
    bucket_bytes: int | None
    why: str
    pieces: bool = False

    @property
    def label(self) -> str:
        """The strategy as `jaxnet bench step --strategy` takes it."""
        size = f":{self.bucket_bytes // MiB}MiB" if self.bucket_bytes else ""
        return self.strategy + size + "+pieces" * self.pieces


def choose(mesh: Mesh, gradient_bytes: int, flops: Callable[[], float] | None = None, *, tensors: int = 1) -> Choice:
    """The strategy for gradients of so many bytes in all. All processes call it, which may send messages.

    Args:
        mesh: of whose devices.
        gradient_bytes: that each device sums with the others.
        flops: counts those of all devices in a step (`gradient_flops`); None: messages must not cross its end.
        tensors: of which the gradients are so many.

    >>> from jaxnet.comm import make_mesh
    >>> choose(make_mesh(), 10**6).strategy
    'ddp'
    """
    platform, where = platform_of(mesh), described(mesh)
    if platform != "cpu":
        name = named_strategy(AUTO, platform=platform).name
        why = f"as compiled for {platform.upper()}s it waits least for messages"
        return Choice(where, name, None, why if mesh.devices.size > 1 else _ALONE)
    if mesh.devices.size == 1:
        return Choice(where, "ddp", _BUCKET, _ALONE)
    if not _ways_differ(mesh):
        if gradient_bytes <= _BUCKET:  # one leaves when backward ends, so that further programs only cost their launch
            return Choice(where, "ddp", _BUCKET, _BESIDE)
        if _processes(mesh) == 1:
            return Choice(where, "per_leaf:after=true", None, _BEHIND)
        if flops is not None:
            return _crossing_or_not(mesh, gradient_bytes, flops)
        return Choice(where, "ddp", _BUCKET, _BESIDE, pieces=True)
    size = min(_BUCKET, gradient_bytes)
    ddp, hierarchical = (measured_row(mesh, AXES, way, size, _TIMES).min_us / 1e3 for way in _WAYS)
    after = gradient_bytes > _BUCKET and gradient_bytes >= tensors * _LARGE
    enough = max(_SAVED, (_SAVED_A_MIB_AFTER if after else _SAVED_A_MIB) * size / MiB)
    found = f"{size / 1e6:.1f} MB take {hierarchical:.1f} ms by hierarchical, {ddp:.1f} by ddp"
    why = f"over this link {found}; hierarchical pays from {enough:.0f} ms less on"
    name = "hierarchical" if ddp - hierarchical >= enough else "ddp"
    if after:
        name, why = f"{name}:after=true", f"{why}; tensors are large, so that messages follow backward"
    return Choice(where, name, _BUCKET, why)


def with_buckets(name: str) -> str:
    """The strategy of that name, or `ddp`: who sets a size of buckets wants buckets, where what is best has none.

    >>> with_buckets("hierarchical:after=true"), with_buckets("per_leaf:after=true")
    ('hierarchical:after=true', 'ddp')
    """
    return name if has_bucket_size(name) else "ddp"


def choice_of(workload: Workload) -> Choice:
    """What `strategy=auto` is for a workload. All processes call it, which may send messages."""

    def flops() -> float:
        state = workload.first_state
        return gradient_flops(workload.loss_fn, state.params, state.stats, workload.global_batch)

    count = flops if workload.may_cross else None
    return choose(workload.mesh, workload.gradient_bytes, count, tensors=len(workload.shapes))


def gradient_flops(loss_fn: LossFn, params: PyTree, stats: PyTree, batch: PyTree) -> float:
    """Floating-point operations of a loss and its gradient; infinite if they depend on values. Shapes will do."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch["id"].shape[0]))
    try:
        return count_flops(jax.value_and_grad(loss_fn, has_aux=True), params, stats, batch, keys)
    except ValueError:
        return math.inf


def _crossing_or_not(mesh: Mesh, gradient_bytes: int, flops: Callable[[], float]) -> Choice:
    """Whether messages are to cross the end of a step, between processes of one CPU device each."""
    message = measured_row(mesh, AXES, _WAYS[0], _BUCKET, _FEW_TIMES).min_us / 1e6
    found, crosses = f"4 MiB take {1e3 * message:.1f} ms", False
    if message >= _SLOW_SECONDS:
        link, computation = message * gradient_bytes / _BUCKET, flops() / mesh.devices.size / _product_rate(mesh)
        crosses = 0 < computation <= link
        found = f"gradients take some {1e3 * link:.0f} ms of the link, computation {1e3 * computation:.0f}"
    where = described(mesh)
    if crosses:
        return Choice(where, "priority", _BUCKET, f"{found}: what the next forward pass needs late travels beside it")
    return Choice(where, "ddp", _BUCKET, f"{_BESIDE}; {found}", pieces=True)


def _product_rate(mesh: Mesh) -> float:
    """Floating-point operations a second of a large product, of the slowest process while all compute."""
    shape, product = (_PRODUCT, _PRODUCT), jax.jit(jnp.dot)
    ones, mean = (jax.device_put(np.full(shape, x, np.float32), mesh.local_devices[0]) for x in (1, 1 / _PRODUCT))
    task = TimedProgram(lambda left, right: (product(left, right), ()), ones, mean)
    warm_up(task)
    return 2 * _PRODUCT**3 / min(seconds_a_step(task, 1) for _ in range(_FEW_TIMES))


def _ways_differ(mesh: Mesh) -> bool:
    """Whether `hierarchical` sends less between processes than `ddp`: where they have several CPU devices each."""
    return platform_of(mesh) == "cpu" and 1 < _processes(mesh) < mesh.devices.size


def described(mesh: Mesh) -> str:
    """Of a mesh, what a choice depends on.

    >>> from jaxnet.comm import make_mesh
    >>> described(make_mesh(2))
    '2 x 4 cpu devices, 1 processes'
    """
    return f"{mesh.shape[HOST]} x {mesh.shape[DEVICE]} {platform_of(mesh)} devices, {_processes(mesh)} processes"


def _processes(mesh: Mesh) -> int:
    return len({device.process_index for device in mesh.devices.flat})


def kept_for(mesh: Mesh, kept: object) -> Choice | None:
    """A choice that was kept as JSON, if it is one for such a mesh and its strategy is still there."""
    try:
        choice = record_of(Choice, kept)
        named_strategy(choice.strategy, choice.bucket_bytes)
    except ValueError:
        return None
    sized = choice.bucket_bytes is None or choice.bucket_bytes > 0
    return choice if sized and choice.mesh == described(mesh) else None
