"""Named strategies: how the gradients of a training run travel, each a few lines with its source."""

import difflib
import inspect
from collections.abc import Callable

from jaxnet.comm.algorithms.all_reduce import AllReduce
from jaxnet.comm.strategies.averaging import Averaging as Averaging
from jaxnet.comm.strategies.averaging import Block as Block
from jaxnet.comm.strategies.coded import bf16, cntk_1bit, fp16, int8, mxnet_2bit, powersgd, top_k
from jaxnet.comm.strategies.deferred import s_caffe_ob, s_caffe_obr, zero
from jaxnet.comm.strategies.fused import caffe2, ddp, flat, horovod, mg_wfbp, per_leaf, xla
from jaxnet.comm.strategies.local import bmuf, local_sgd, post_local_sgd
from jaxnet.comm.strategies.staged import (
    blueconnect,
    halving_doubling,
    hierarchical,
    parameter_server,
    s_caffe_b,
    s_caffe_hr,
    torus,
)
from jaxnet.comm.strategies.strategy import Schedule as Schedule
from jaxnet.comm.strategies.strategy import Strategy as Strategy
from jaxnet.comm.strategies.strategy import scheduled as scheduled

STRATEGIES: dict[str, Callable[..., Strategy]] = {
    make.__name__: make
    for make in (
        *(xla, per_leaf, flat, caffe2, ddp, horovod, mg_wfbp),
        *(hierarchical, blueconnect, torus, halving_doubling, parameter_server),
        *(s_caffe_b, s_caffe_hr, s_caffe_ob, s_caffe_obr, zero),
        *(fp16, bf16, int8, cntk_1bit, mxnet_2bit, top_k, powersgd),
        *(local_sgd, post_local_sgd, bmuf),
    )
}


def named_strategy(name: str, bucket_bytes: int | None = None, all_reduce: AllReduce | None = None) -> Strategy:
    """The strategy called `name`, with buckets of `bucket_bytes` instead of its own size.

    Args:
        name: one of `STRATEGIES`.
        bucket_bytes: None: the strategy's own.
        all_reduce: makes the sums across hosts, such as `mpi_all_reduce`; None: XLA's.

    Raises:
        ValueError: no such strategy (the nearest name is given), one without a bucket size, or one that sums across
            hosts in another way than by an all-reduce.

    >>> named_strategy("hierarchical", bucket_bytes=4 * 2**20).schedule
    'during'
    """
    make = STRATEGIES.get(name)
    if make is None:
        near = difflib.get_close_matches(name, STRATEGIES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no strategy {name!r}; {hint}There are: {', '.join(STRATEGIES)}")
    if bucket_bytes is not None and not has_bucket_size(name):
        raise ValueError(f"strategy {name!r} has no bucket size to set; leave bucket_bytes out")
    if all_reduce is not None and not takes_all_reduce(name):
        able = ", ".join(filter(takes_all_reduce, STRATEGIES))
        raise ValueError(f"strategy {name!r} has no all-reduce across hosts that another could replace; {able} have")
    given = {"bucket_bytes": bucket_bytes, "all_reduce": all_reduce}
    return make(**{key: value for key, value in given.items() if value is not None})


def has_bucket_size(name: str) -> bool:
    """Whether the strategy called `name` takes `bucket_bytes`."""
    return "bucket_bytes" in inspect.signature(STRATEGIES[name]).parameters


def takes_all_reduce(name: str) -> bool:
    """Whether the strategy called `name` takes `all_reduce`: its stage across hosts is one, of any transport."""
    return "all_reduce" in inspect.signature(STRATEGIES[name]).parameters
