"""Named strategies: how the gradients of a training run travel, each a few lines with its source."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jaxnet.comm.algorithms import all_reduce, scattered
from jaxnet.comm.bucketed import bucketed
from jaxnet.comm.mesh import AXES, DEVICE, HOST
from jaxnet.comm.reducer import MiB, Reducer

Schedule = Literal["during", "after"]


@dataclass(frozen=True)
class Strategy:
    """A reducer and a schedule, with a name.

    Attributes:
        name: what `strategy=NAME` says.
        summary: one line, with the source.
        reducer: sums the gradients; None leaves the partitioning, and with it the reduction, to XLA.
        schedule: 'during': a bucket travels as soon as backward has produced it; 'after': all wait for
            the end of backward.
    """

    name: str
    summary: str
    reducer: Reducer | None
    schedule: Schedule = "during"


def xla() -> Strategy:
    """XLA partitions the step and places the reduction: `jax.jit` over sharded batches, its defaults untouched."""
    return Strategy("xla", "XLA partitions jax.jit and combines all-reduces as it likes", None)


def per_leaf() -> Strategy:
    """One all-reduce a parameter tensor, as soon as it is ready: Caffe2's data_parallel_model."""
    return Strategy(
        "per_leaf",
        "one all-reduce a leaf, as backward produces it (Caffe2)",
        bucketed(all_reduce(*AXES), bucket_bytes=1, split=False),
    )


def flat() -> Strategy:
    """One buffer for all gradients, one all-reduce, after backward: FireCaffe; S-Caffe's SC-B."""
    return Strategy(
        "flat",
        "all gradients in one buffer, after backward (FireCaffe, S-Caffe SC-B)",
        bucketed(all_reduce(*AXES), bucket_bytes=None),
        "after",
    )


def ddp(bucket_bytes: int = 25 * MiB) -> Strategy:
    """PyTorch DDP: whole leaves fused up to 25 MiB, the first bucket 1 MiB, all-reduced during backward."""
    first = min(bucket_bytes, 1 * MiB)
    return Strategy(
        "ddp",
        "buckets of whole leaves, 1 MiB then 25 MiB, during backward (PyTorch DDP)",
        bucketed(all_reduce(*AXES), bucket_bytes, first_bucket_bytes=first, split=False),
    )


def hierarchical(bucket_bytes: int = 25 * MiB) -> Strategy:
    """Reduce-scatter inside the host, all-reduce across hosts, all-gather inside: 1/devices of the bytes cross."""
    return Strategy(
        "hierarchical",
        "reduce-scatter in the host, all-reduce across, all-gather in the host (Horovod, BlueConnect)",
        bucketed(scattered(DEVICE, all_reduce(HOST)), bucket_bytes),
    )


STRATEGIES: dict[str, Callable[..., Strategy]] = {
    make.__name__: make for make in (xla, per_leaf, flat, ddp, hierarchical)
}


def named_strategy(name: str, bucket_bytes: int | None = None) -> Strategy:
    """The strategy called `name`, with buckets of `bucket_bytes` instead of its own size.

    Raises:
        ValueError: no such strategy (the nearest name is given), or one without a bucket size.

    >>> named_strategy("hierarchical", bucket_bytes=4 * MiB).schedule
    'during'
    """
    make = STRATEGIES.get(name)
    if make is None:
        near = difflib.get_close_matches(name, STRATEGIES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no strategy {name!r}; {hint}There are: {', '.join(STRATEGIES)}")
    if bucket_bytes is None:
        return make()
    if not make.__code__.co_argcount:
        raise ValueError(f"strategy {name!r} has no bucket size to set; leave bucket_bytes out")
    return make(bucket_bytes)
