"""Gradients arrive in parts, parts are updated, and the next step gathers the parameters as it needs them."""

from jaxnet.comm.mesh import AXES, DEVICE, HOST
from jaxnet.comm.reducer import MiB
from jaxnet.comm.sharded import Sharded, as_reducer, scatter_after, sharded
from jaxnet.comm.strategies.strategy import Strategy


def _deferred(name: str, summary: str, parts: Sharded) -> Strategy:
    return Strategy(name, summary, as_reducer(parts), "deferred", parts)


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
