"""Puts batches on the devices, as global arrays.

No thread does it ahead of time. JAX dispatches a step and returns at once, so the next batch is made and sent
while the devices still have steps to do; a thread of ours would only compete with them for the host
(docs/design/pacing.md has the figures). Decoding in several threads is Grain's: `train_batches(threads=...)`.
"""

from collections.abc import Generator, Iterator

import jax

from jaxnet.data.batches import Batch

DeviceBatch = dict[str, jax.Array]


def placed(batches: Iterator[Batch], sharding: jax.sharding.Sharding) -> Generator[DeviceBatch, None, None]:
    """Iterate over `batches` as global arrays; closing the iterator closes `batches`, if that can be closed.

    Each process gives its own part of a global batch; dim 0 is sharded as `sharding` says, and rows lie in
    the order of the sharding's devices. On a CPU a global array may share the memory of the array given,
    which must therefore be a fresh one.

    >>> device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    >>> from jaxnet.data import Digits, Shard, eval_batches
    >>> batches = eval_batches(Digits().load('test'), batch_size=90, shard=Shard(0, 1))
    >>> [batch['image'].shape for batch in placed(batches, device)]
    [(90, 8, 8, 1), (90, 8, 8, 1), (90, 8, 8, 1), (90, 8, 8, 1)]
    """
    try:
        for batch in batches:
            yield _placed(batch, sharding)
    finally:
        close = getattr(batches, "close", None)  # Grain's iterators and generators have one
        if close is not None:
            close()


def _placed(batch: Batch, sharding: jax.sharding.Sharding) -> DeviceBatch:
    if sharding.is_fully_addressable:
        arrays: DeviceBatch = jax.device_put(batch, sharding)
        return arrays
    return {key: jax.make_array_from_process_local_data(sharding, local) for key, local in batch.items()}
