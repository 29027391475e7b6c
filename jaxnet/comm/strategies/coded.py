"""Fewer bits on the wire, by a codec or by rank."""

from jaxnet.comm import codecs
from jaxnet.comm.algorithms.all_reduce import AllReduce, all_reduce, cast, scattered
from jaxnet.comm.buckets.bucketed import bucketed
from jaxnet.comm.compressed import compressed, compressed_scattered
from jaxnet.comm.mesh import AXES, DEVICE, HOST
from jaxnet.comm.powersgd import powersgd as by_rank
from jaxnet.comm.reducer import MiB, Reducer
from jaxnet.comm.strategies.strategy import Strategy


def _lossy(name: str, summary: str, reducer: Reducer) -> Strategy:
    return Strategy(name, summary, reducer, exact=False)


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
        by_rank(rank, bucketed(two_level, bucket_bytes), factors=two_level),
    )
