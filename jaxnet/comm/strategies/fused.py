"""One all-reduce over all devices for each message: what differs is which gradients share one, and when it leaves.

`all_reduce` makes the sum: that of XLA, or `mpi_all_reduce`.
"""

import itertools
from collections.abc import Sequence

from jaxnet.comm.algorithms.all_reduce import AllReduce, all_reduce
from jaxnet.comm.buckets.bucketed import bucketed, grouped
from jaxnet.comm.buckets.merge import Groups, merge_by_cost, merge_up_to
from jaxnet.comm.mesh import AXES
from jaxnet.comm.reducer import MiB
from jaxnet.comm.strategies.strategy import Strategy


def xla() -> Strategy:
    """XLA partitions the step and places the reduction: `jax.jit` over sharded batches, its defaults untouched."""
    return Strategy("xla", "XLA partitions jax.jit and combines all-reduces as it likes", None)


def per_leaf(all_reduce: AllReduce = all_reduce) -> Strategy:
    """One all-reduce a parameter tensor, as soon as it is ready; no bound on how many at once."""
    return Strategy(
        "per_leaf",
        "one all-reduce a leaf, as backward produces it",
        bucketed(all_reduce(*AXES), bucket_bytes=1, split=False),
    )


def flat(all_reduce: AllReduce = all_reduce) -> Strategy:
    """One buffer for all gradients, one all-reduce, after backward: FireCaffe; S-Caffe's SC-B but for the root."""
    return Strategy(
        "flat",
        "all gradients in one buffer, after backward (FireCaffe)",
        bucketed(all_reduce(*AXES), bucket_bytes=None),
        "after",
    )


def caffe2(all_reduce: AllReduce = all_reduce) -> Strategy:
    """Caffe2's data_parallel_model: an all-reduce a tensor in backward order, at most 4 at once, none fused.

    The bound is its `num_controls`: the i-th all-reduce waits for the (i-4)-th, on all devices alike.
    """
    return Strategy(
        "caffe2",
        "one all-reduce a leaf, as backward produces it, at most 4 at once (Caffe2 with Gloo)",
        bucketed(all_reduce(*AXES), bucket_bytes=1, split=False, in_flight=4),
    )


def ddp(bucket_bytes: int = 25 * MiB, all_reduce: AllReduce = all_reduce) -> Strategy:
    """PyTorch DDP: whole leaves fused up to 25 MiB, the first bucket 1 MiB, all-reduced during backward."""
    first = min(bucket_bytes, 1 * MiB)
    return Strategy(
        "ddp",
        f"buckets of whole leaves, {first / MiB:g} MiB then {bucket_bytes / MiB:g} MiB, during backward (PyTorch DDP)",
        bucketed(all_reduce(*AXES), bucket_bytes, first_bucket_bytes=first, split=False),
    )


def horovod(bucket_bytes: int = 128 * MiB, all_reduce: AllReduce = all_reduce) -> Strategy:
    """Horovod's tensor fusion: a buffer of 128 MiB takes whole leaves while they fit; one that is larger goes alone.

    Horovod rounds the buffer up to a multiple of 512 bytes times the devices of a host, which 128 MiB is for any
    power of two. It also sends a buffer that is not full when its cycle of 1 ms ends; a compiled program has no
    clock, so here models below 128 MiB are one message.
    """

    def fuse(sizes: Sequence[int]) -> Groups:
        return merge_up_to(bucket_bytes, sizes)

    return Strategy(
        "horovod",
        f"whole leaves fused while they fit into {bucket_bytes / MiB:g} MiB, during backward (Horovod's tensor fusion)",
        grouped(all_reduce(*AXES), fuse),
    )


def mg_wfbp(
    alpha: float = 2.8e-3,
    beta: float = 8.4e-9,
    seconds_per_byte: float = 3.4e-9,
    ready_seconds: Sequence[float] | None = None,
    all_reduce: AllReduce = all_reduce,
) -> Strategy:
    """MG-WFBP: consecutive gradients merged so that the last all-reduce is predicted to end first.

    The defaults are measured, on two hosts joined at 1 Gbit/s and dense layers of 1024 x 1024 with 512 examples on
    one core each. The model behind `seconds_per_byte`, that backward takes as long for each byte of parameters,
    holds for dense layers alone: a convolution uses each weight many times.

    Args:
        alpha: seconds that an all-reduce takes whatever its size.
        beta: seconds for each byte of a message.
        seconds_per_byte: of backward, for each byte of parameters; has no effect beside `ready_seconds`.
        ready_seconds: when backward has produced each leaf, in backward order, as measured.
        all_reduce: makes the sum over all devices.
    """

    def merge(sizes: Sequence[int]) -> Groups:
        modelled = itertools.accumulate(seconds_per_byte * size for size in sizes)
        return merge_by_cost(list(modelled) if ready_seconds is None else ready_seconds, sizes, alpha, beta)

    return Strategy(
        "mg_wfbp",
        "leaves merged where a model of costs says that the last message ends first, during backward (MG-WFBP)",
        grouped(all_reduce(*AXES), merge),
    )
