"""An all-reduce in stages: along one mesh axis after the other, or in its two halves."""

from jaxnet.comm.algorithms.all_reduce import AllReduce, all_reduce, scattered
from jaxnet.comm.algorithms.halving_doubling import halving_doubling as by_halves
from jaxnet.comm.algorithms.ring import ring
from jaxnet.comm.algorithms.rooted import rooted
from jaxnet.comm.buckets.bucketed import bucketed
from jaxnet.comm.mesh import AXES, DEVICE, HOST
from jaxnet.comm.reducer import MiB
from jaxnet.comm.sharded import as_reducer, sharded
from jaxnet.comm.strategies.strategy import Strategy


def hierarchical(bucket_bytes: int = 25 * MiB, all_reduce: AllReduce = all_reduce) -> Strategy:
    """Reduce-scatter inside the host, all-reduce across hosts, all-gather inside: 1/devices of the bytes cross.

    `all_reduce` makes the sum across hosts: that of XLA, or `mpi_all_reduce`.
    """
    return Strategy(
        "hierarchical",
        "reduce-scatter in the host, all-reduce across, all-gather in the host (Horovod, NCCL)",
        bucketed(scattered(DEVICE, all_reduce(HOST)), bucket_bytes),
    )


def blueconnect(bucket_bytes: int = 25 * MiB) -> Strategy:
    """BlueConnect (Cho et al., MLSys 2019): reduce-scatters from the inside out, then all-gathers back.

    As `hierarchical`, with the all-reduce across hosts in two halves as well. The paper factors the devices of a
    host further, by their links; for that see `factored`.
    """
    return Strategy(
        "blueconnect",
        "reduce-scatter in the host, then across; all-gather across, then in the host (BlueConnect)",
        bucketed(scattered(DEVICE, scattered(HOST, all_reduce())), bucket_bytes),
    )


def torus(bucket_bytes: int = 25 * MiB) -> Strategy:
    """The 2-D torus of Mikami et al. (Sony, 2018): rings in the rows, which are hosts, then in the columns, then back.

    Nothing but permutes, each of at most 1 MiB, which Gloo sends well.
    """
    columns = ring(HOST, piece_bytes=1 * MiB)
    return Strategy(
        "torus",
        "rings of permutes: reduce-scatter in the host, all-reduce across, all-gather in the host (2-D torus)",
        bucketed(ring(DEVICE, columns, piece_bytes=1 * MiB), bucket_bytes),
    )


def halving_doubling(bucket_bytes: int = 25 * MiB) -> Strategy:
    """Recursive halving, then doubling, as Gloo's all-reduce in Caffe2: few rounds, fewest bytes."""
    across = by_halves(HOST, piece_bytes=1 * MiB)
    return Strategy(
        "halving_doubling",
        "reduce-scatter by halving, all-gather by doubling, of permutes (Rabenseifner; Gloo in Caffe2)",
        bucketed(by_halves(DEVICE, across, piece_bytes=1 * MiB), bucket_bytes),
    )


def s_caffe_b() -> Strategy:
    """S-Caffe's SC-B: after backward, one buffer to the root along a binomial tree, and from it back to all.

    There the root updates and the parameters come back; here the sums do, and all update alike.
    """
    across = rooted(HOST, tree="binomial")
    return Strategy(
        "s_caffe_b",
        "one buffer, after backward: binomial tree to the root and back (S-Caffe SC-B)",
        bucketed(rooted(DEVICE, across, tree="binomial"), bucket_bytes=None),
        "after",
    )


def s_caffe_hr(bucket_bytes: int = 25 * MiB) -> Strategy:
    """S-Caffe's hierarchical reduce, CB: a chunked chain inside the host, a binomial tree across the roots.

    The paper's CB-8 has groups of 8 devices; here a group is a host.
    """
    across = rooted(HOST, tree="binomial", piece_bytes=1 * MiB)
    return Strategy(
        "s_caffe_hr",
        "to the root and back: chunked chain in the host, binomial tree across (S-Caffe HR, CB)",
        bucketed(rooted(DEVICE, across, tree="chunked_chain", piece_bytes=1 * MiB), bucket_bytes),
    )


def parameter_server() -> Strategy:
    """Each leaf striped over all devices as over servers: pushed as a reduce-scatter, pulled as an all-gather.

    What MXNet's KVStore does with arrays above 10^6 elements (smaller ones have one server each), if every device
    is a server besides. FireCaffe compares with one server for all, whose link carries the messages of all workers:
    `rooted(..., tree="star")`.
    """
    return Strategy(
        "parameter_server",
        "each leaf: a reduce-scatter to its owners, an all-gather back (MXNet KVStore, striped over all devices)",
        as_reducer(sharded(AXES, bucket_bytes=1, split=False)),
    )
