"""Parameters travel every so many steps, instead of gradients in each."""

from jaxnet.comm.algorithms.all_reduce import all_reduce, scattered
from jaxnet.comm.buckets.bucketed import bucketed
from jaxnet.comm.mesh import DEVICE, HOST
from jaxnet.comm.reducer import MiB
from jaxnet.comm.strategies.averaging import Averaging, Block
from jaxnet.comm.strategies.strategy import Strategy


def _local(name: str, summary: str, bucket_bytes: int, averaging: Averaging) -> Strategy:
    reducer = bucketed(scattered(DEVICE, all_reduce(HOST)), bucket_bytes)
    return Strategy(name, summary, reducer, "local", exact=False, averaging=averaging)


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
        Averaging(every, with_optimizer=with_optimizer, block=Block(block_momentum, block_rate)),
    )
