"""The named strategies: for each a function that returns it, with what travels, and when."""

from collections.abc import Sequence

from jaxnet.comm import codecs
from jaxnet.comm.bucketed import bucketed, by_bucket, grouped
from jaxnet.comm.compressed import cast, compressed, compressed_scattered
from jaxnet.comm.expression import MiB
from jaxnet.comm.halves import AllReduce, all_reduce, scattered
from jaxnet.comm.mesh import AXES, DEVICE, HOST
from jaxnet.comm.order import merged_by_cost, merged_up_to
from jaxnet.comm.powersgd import powersgd as by_rank
from jaxnet.comm.reducer import Reducer
from jaxnet.comm.rings import halving_doubling as by_halves
from jaxnet.comm.rings import ring
from jaxnet.comm.sharded import Sharded, as_reducer, scatter_after, sharded
from jaxnet.comm.strategy import Averaging, BlockFilter, Moment, Strategy
from jaxnet.comm.trees import rooted

# ---- One all-reduce over all devices for each message: what differs is which gradients share one, and when it leaves
#
# `all_reduce` makes the sum: that of XLA, or `mpi_all_reduce`. With `after`, messages wait for the end of backward:
# where several CPU devices share a process, one that waits for a message also holds up what the others compute.


def _moment(after: bool) -> Moment:
    return "after" if after else "during"


def xla() -> Strategy:
    """XLA partitions the step and places the reduction: `jax.jit` over sharded batches, its collectives left alone."""
    return Strategy(None, name="xla", summary="XLA partitions jax.jit and combines all-reduces as it likes")


def per_leaf(all_reduce: AllReduce = all_reduce, *, after: bool = False) -> Strategy:
    """One all-reduce a parameter tensor, as soon as it is ready; no bound on how many at once."""
    return Strategy(
        bucketed(all_reduce(*AXES), bucket_bytes=1, split=False),
        _moment(after),
        name="per_leaf",
        summary=f"one all-reduce a leaf, {'after backward' if after else 'as backward produces it'}",
    )


def flat(all_reduce: AllReduce = all_reduce) -> Strategy:
    """One buffer for all gradients, one all-reduce, after backward: FireCaffe; S-Caffe's SC-B but for the root."""
    return Strategy(
        bucketed(all_reduce(*AXES), bucket_bytes=None),
        "after",
        name="flat",
        summary="all gradients in one buffer, after backward (FireCaffe)",
    )


def caffe2(all_reduce: AllReduce = all_reduce) -> Strategy:
    """Caffe2's data_parallel_model: an all-reduce a tensor in backward order, at most 4 at once, none fused.

    The bound is its `num_controls`: the i-th all-reduce waits for the (i-4)-th, on all devices alike.
    """
    return Strategy(
        bucketed(all_reduce(*AXES), bucket_bytes=1, split=False, in_flight=4),
        "during",
        name="caffe2",
        summary="one all-reduce a leaf, as backward produces it, at most 4 at once (Caffe2 with Gloo)",
    )


def ddp(bucket_bytes: int = 25 * MiB, all_reduce: AllReduce = all_reduce, *, after: bool = False) -> Strategy:
    """PyTorch DDP: whole leaves fused up to 25 MiB, the first bucket 1 MiB, all-reduced during backward."""
    first = min(bucket_bytes, 1 * MiB)
    return Strategy(
        bucketed(all_reduce(*AXES), bucket_bytes, first_bucket_bytes=first, split=False),
        _moment(after),
        name="ddp",
        summary=f"buckets of whole leaves, {first / MiB:g} MiB then {bucket_bytes / MiB:g} MiB (PyTorch DDP)",
    )


def horovod(bucket_bytes: int = 128 * MiB, all_reduce: AllReduce = all_reduce) -> Strategy:
    """Horovod's tensor fusion: a buffer of 128 MiB takes whole leaves while they fit; one that is larger goes alone.

    Horovod rounds the buffer up to a multiple of 512 bytes times the devices of a host, which 128 MiB is for any
    power of two. It also sends a buffer that is not full when its cycle of 1 ms ends; a compiled program has no
    clock, so here models below 128 MiB are one message.
    """

    return Strategy(
        grouped(all_reduce(*AXES), merged_up_to(bucket_bytes)),
        "during",
        name="horovod",
        summary=f"whole leaves fused while they fit into {bucket_bytes / MiB:g} MiB (Horovod's tensor fusion)",
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

    merging = merged_by_cost(alpha=alpha, beta=beta, seconds_per_byte=seconds_per_byte, ready_seconds=ready_seconds)
    return Strategy(
        grouped(all_reduce(*AXES), merging),
        "during",
        name="mg_wfbp",
        summary="leaves merged where a model of costs says that the last message ends first, during backward (MG-WFBP)",
    )


def priority(bucket_bytes: int = 4 * MiB, all_reduce: AllReduce = all_reduce) -> Strategy:
    """P3 and ByteScheduler: messages cross the end of the step, and what the next forward pass needs first goes first.

    Forward begins layer by layer as its parameters arrive. In a step of one program messages travel during backward.
    """
    return Strategy(
        bucketed(all_reduce(*AXES), bucket_bytes),
        "priority",
        name="priority",
        summary="what the next forward pass needs first travels first, across the end of the step (P3, ByteScheduler)",
    )


# ---- An all-reduce in stages: along one mesh axis after the other, or in its two halves ---------------


def hierarchical(bucket_bytes: int = 25 * MiB, all_reduce: AllReduce = all_reduce, *, after: bool = False) -> Strategy:
    """Reduce-scatter inside the host, all-reduce across hosts, all-gather inside: 1/devices of the bytes cross.

    `all_reduce` makes the sum across hosts: that of XLA, or `mpi_all_reduce`.
    """
    return Strategy(
        bucketed(scattered(DEVICE, all_reduce(HOST)), bucket_bytes),
        _moment(after),
        name="hierarchical",
        summary="reduce-scatter in the host, all-reduce across, all-gather in the host (Horovod, NCCL)",
    )


def blueconnect(bucket_bytes: int = 25 * MiB) -> Strategy:
    """BlueConnect (Cho et al., MLSys 2019): reduce-scatters from the inside out, then all-gathers back.

    As `hierarchical`, with the all-reduce across hosts in two halves as well. The paper factors the devices of a
    host further, by their links; for that see `factored`.
    """
    return Strategy(
        bucketed(scattered(DEVICE, scattered(HOST, all_reduce())), bucket_bytes),
        "during",
        name="blueconnect",
        summary="reduce-scatter in the host, then across; all-gather across, then in the host (BlueConnect)",
    )


def torus(bucket_bytes: int = 25 * MiB, piece_bytes: int | None = 1 * MiB) -> Strategy:
    """The 2-D torus of Mikami et al. (Sony, 2018): rings in the rows, which are hosts, then in the columns, then back.

    Nothing but permutes, each of at most `piece_bytes`; those of 1 MiB are what Gloo sends well.
    """
    columns = ring(HOST, piece_bytes=piece_bytes)
    return Strategy(
        bucketed(ring(DEVICE, columns, piece_bytes=piece_bytes), bucket_bytes),
        "during",
        name="torus",
        summary="rings of permutes: reduce-scatter in the host, all-reduce across, all-gather in the host (2-D torus)",
    )


def halving_doubling(bucket_bytes: int = 25 * MiB, piece_bytes: int | None = 1 * MiB) -> Strategy:
    """Recursive halving, then doubling, as Gloo's all-reduce in Caffe2: few rounds, fewest bytes.

    A permute has at most `piece_bytes`, as for `torus`.
    """
    across = by_halves(HOST, piece_bytes=piece_bytes)
    return Strategy(
        bucketed(by_halves(DEVICE, across, piece_bytes=piece_bytes), bucket_bytes),
        "during",
        name="halving_doubling",
        summary="reduce-scatter by halving, all-gather by doubling, of permutes (Rabenseifner; Gloo in Caffe2)",
    )


def s_caffe_b() -> Strategy:
    """S-Caffe's SC-B: after backward, one buffer to the root along a binomial tree, and from it back to all.

    There the root updates and the parameters come back; here the sums do, and all update alike.
    """
    across = rooted(HOST, tree="binomial")
    return Strategy(
        bucketed(rooted(DEVICE, across, tree="binomial"), bucket_bytes=None),
        "after",
        name="s_caffe_b",
        summary="one buffer, after backward: binomial tree to the root and back (S-Caffe SC-B)",
    )


def s_caffe_hr(bucket_bytes: int = 25 * MiB) -> Strategy:
    """S-Caffe's hierarchical reduce, CB: a chunked chain inside the host, a binomial tree across the roots.

    The paper's CB-8 has groups of 8 devices; here a group is a host.
    """
    across = rooted(HOST, tree="binomial", piece_bytes=1 * MiB)
    return Strategy(
        bucketed(rooted(DEVICE, across, tree="chunked_chain", piece_bytes=1 * MiB), bucket_bytes),
        "during",
        name="s_caffe_hr",
        summary="to the root and back: chunked chain in the host, binomial tree across (S-Caffe HR, CB)",
    )


def parameter_server() -> Strategy:
    """Each leaf striped over all devices as over servers: pushed as a reduce-scatter, pulled as an all-gather.

    What MXNet's KVStore does with arrays above 10^6 elements (smaller ones have one server each), if every device
    is a server besides. FireCaffe compares with one server for all, whose link carries the messages of all workers:
    `rooted(..., tree="star")`.
    """
    return Strategy(
        as_reducer(sharded(AXES, bucket_bytes=1, split=False)),
        "during",
        name="parameter_server",
        summary="each leaf: a reduce-scatter to its owners, an all-gather back (MXNet KVStore, striped)",
    )


# ---- Gradients arrive in shards, shards are updated, and the next step gathers the parameters as it needs them


def _deferred(name: str, summary: str, parts: Sharded) -> Strategy:
    return Strategy(parts, "deferred", name=name, summary=summary)


def zero(bucket_bytes: int = 1 * MiB) -> Strategy:
    """ZeRO stage 1: reduce-scatter during backward, each device updates its part, all-gather in the next forward.

    As `s_caffe_obr`, but in two stages, so that fewest bytes cross hosts, and in buckets of a size that Gloo
    sends well. Optimizer state falls as 1/devices (Rajbhandari et al., SC 2020).
    """
    return _deferred(
        "zero",
        "reduce-scatter during backward, sharded update, all-gather in the next forward, by host (ZeRO-1)",
        sharded(DEVICE, HOST, bucket_bytes=bucket_bytes),
    )


def s_caffe_ob() -> Strategy:
    """S-Caffe's SC-OB: parameters arrive leaf by leaf under the forward pass; gradients leave after backward.

    Each device stands for the root solver for its part of each leaf (Awan et al., PPoPP 2017).
    """
    return _deferred(
        "s_caffe_ob",
        "a leaf at a time: all-gather in the forward pass, reduce-scatter after backward (S-Caffe SC-OB)",
        scatter_after(sharded(AXES, bucket_bytes=1, split=False)),
    )


def s_caffe_obr() -> Strategy:
    """S-Caffe's SC-OBR: as SC-OB, and each gradient leaves as soon as backward has produced it."""
    return _deferred(
        "s_caffe_obr",
        "a leaf at a time: all-gather in the forward pass, reduce-scatter during backward (S-Caffe SC-OBR)",
        sharded(AXES, bucket_bytes=1, split=False),
    )


# ---- Fewer bits on the wire, by a codec or by rank ----------------------------------------------------


def _lossy(name: str, summary: str, reducer: Reducer) -> Strategy:
    return Strategy(reducer, "during", name=name, summary=summary, exact=False)


def fp16(bucket_bytes: int = 25 * MiB, all_reduce: AllReduce = all_reduce) -> Strategy:
    """Gradients cast to float16, summed in it too: Horovod's fp16 compression, PyTorch's `fp16_compress_hook`."""
    return _lossy(
        "fp16",
        "float16 on the wire and in the sum (Horovod, PyTorch's fp16_compress_hook)",
        bucketed(cast("float16", all_reduce(*AXES)), bucket_bytes),
    )


def bf16(bucket_bytes: int = 25 * MiB) -> Strategy:
    """bfloat16 on the wire, the sum in float32; what is lost is not sent later.

    PyTorch's `bf16_compress_hook` sums in bfloat16 too, which XLA:CPU would send as float32.
    """
    reducer = compressed_scattered(*AXES, codec=codecs.bfloat16, feedback=False)
    return _lossy(
        "bf16",
        "bfloat16 on the wire, to owners of parts and back; summed in float32",
        bucketed(reducer, bucket_bytes),
    )


def int8(bucket_bytes: int = 25 * MiB) -> Strategy:
    """Eight bits and a scale a block, to the owners of parts and back, as EQuARX; with error feedback on top."""
    return _lossy(
        "int8",
        "8 bits with a scale for each block, both ways, error feedback (after EQuARX)",
        bucketed(compressed_scattered(*AXES, codec=codecs.int8()), bucket_bytes),
    )


def cntk_1bit(bucket_bytes: int = 25 * MiB) -> Strategy:
    """CNTK's 1-bit SGD (Seide et al., 2014): signs with two means a block, both ways, error feedback on both."""
    return _lossy(
        "cntk_1bit",
        "a sign an element and two means a block, both ways, error feedback (CNTK's 1-bit SGD)",
        bucketed(compressed_scattered(*AXES, codec=codecs.one_bit()), bucket_bytes),
    )


def mxnet_2bit(threshold: float = 0.5 / 32, bucket_bytes: int = 25 * MiB) -> Strategy:
    """MXNet's gradient compression: +-threshold or nothing, error feedback; encoded gradients go to all devices.

    MXNet sends them to servers, which answer uncompressed. Its threshold is 0.5 for gradients summed over a batch;
    these are means, so the default is that of 32 examples a device.
    """
    return _lossy(
        "mxnet_2bit",
        "+-threshold or nothing, 2 bits an element, error feedback (MXNet)",
        bucketed(compressed(*AXES, codec=codecs.two_bit(threshold)), bucket_bytes),
    )


def top_k(fraction: float = 0.01, bucket_bytes: int = 25 * MiB) -> Strategy:
    """Top-k sparsification with error feedback (Aji and Heafield, 2017): the largest part of each bucket."""
    return _lossy(
        "top_k",
        f"the largest {100 * fraction:g} % of each bucket, all-gathered, error feedback (Aji and Heafield)",
        bucketed(compressed(*AXES, codec=codecs.top_k(fraction)), bucket_bytes),
    )


def powersgd(rank: int = 2, bucket_bytes: int = 25 * MiB) -> Strategy:
    """PowerSGD (Vogels et al., 2019): matrices as two factors of low rank, the rest as in `hierarchical`."""
    two_level = scattered(DEVICE, all_reduce(HOST))
    return _lossy(
        "powersgd",
        f"matrices as factors of rank {rank} with error feedback, the rest as hierarchical (PowerSGD)",
        by_bucket(by_rank(rank, bucketed(two_level, None), factors=two_level), bucket_bytes),
    )


def _local(name: str, summary: str, bucket_bytes: int, averaging: Averaging) -> Strategy:
    reducer = bucketed(scattered(DEVICE, all_reduce(HOST)), bucket_bytes)
    return Strategy(reducer, averaging, name=name, summary=summary, exact=False)


def local_sgd(every: int = 8, bucket_bytes: int = 25 * MiB, *, with_optimizer: bool = False) -> Strategy:
    """Local SGD (Stich, ICLR 2019; McMahan et al., 2017): the mean of all parameters after each round of steps.

    CNTK calls it model averaging. Between rounds nothing travels; `every=1` with plain SGD is synchronous training.

    Args:
        every: steps in a round.
        bucket_bytes: the cap of a message.
        with_optimizer: average the optimizer's state too (Yu et al., ICML 2019), for as many bytes more as it has.
    """
    return _local(
        "local_sgd",
        f"no gradients; the mean of the parameters every {every} steps (local SGD, federated averaging, CNTK)",
        bucket_bytes,
        Averaging(every, with_optimizer=with_optimizer),
    )


def post_local_sgd(
    every: int = 8, synchronous_steps: int = 200, bucket_bytes: int = 25 * MiB, *, with_optimizer: bool = False
) -> Strategy:
    """Post-local SGD (Lin et al., ICLR 2020): gradients in each of the first steps, then as `local_sgd`."""
    return _local(
        "post_local_sgd",
        f"gradients for {synchronous_steps} steps, then the mean of the parameters every {every} (post-local SGD)",
        bucket_bytes,
        Averaging(every, synchronous_steps, with_optimizer),
    )


def bmuf(
    every: int = 8,
    bucket_bytes: int = 25 * MiB,
    *,
    block_momentum: float | None = None,
    block_rate: float = 1.0,
    with_optimizer: bool = False,
) -> Strategy:
    """Block-wise model-update filtering (Chen and Huo, ICASSP 2016): `local_sgd` with momentum over the rounds.

    CNTK's block momentum SGD without Nesterov's variant, and without clearing the momentum of SGD after a round.

    Args:
        every: steps in a round, the paper's block.
        bucket_bytes: the cap of a message.
        block_momentum: of the mean change of a round; None: 1 - 1/devices.
        block_rate: what that change is multiplied by.
        with_optimizer: as for `local_sgd`.
    """
    return _local(
        "bmuf",
        f"the mean of the parameters every {every} steps, its changes smoothed by block momentum (BMUF, CNTK)",
        bucket_bytes,
        Averaging(every, with_optimizer=with_optimizer, block=BlockFilter(block_momentum, block_rate)),
    )
