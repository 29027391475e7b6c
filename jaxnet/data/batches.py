"""Batches as a function of the step: the only state of the data is the step.

One Grain element is all that a process loads for one step. Grain spends about 20 microseconds on an
element: nothing for a batch, but far too much for a small image (`benchmarks/data_rate.py` measures it).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import jax
import numpy as np

from jaxnet.data.source import RandomSource, Source
from jaxnet.errors import InputError

# ---- One 64-bit random number for each position in the stream of training examples --------------------
#
# A draw is a function of (seed, position) and of nothing else, as the order of examples is: the same images come
# out on any number of processes, and after a resume.


_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: multiples of it are spread evenly
_MASK = 2**64 - 1


def draws(seed: int, start: int, stop: int) -> np.ndarray:
    """Return the draws of the positions start .. stop - 1: uint64 [stop - start]; `seed` is below 2**64.

    >>> draws(seed=0, start=1, stop=3).tolist() == draws(seed=0, start=0, stop=3).tolist()[1:]
    True
    """
    position = np.arange(start, stop, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return _mixed(np.uint64(mixed(seed)) + position * np.uint64(_GOLDEN))


def mixed(number: int) -> int:
    """Return `number` modulo 2**64 with its bits stirred: a bijection whose results look independent."""
    return int(_mixed(np.array([(number + _GOLDEN) & _MASK], np.uint64))[0])


def _mixed(number: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


# ---- The order of training examples: a function of (seed, position) and of nothing else ---------------
#
# The stream of training examples is the concatenation of epochs, each a permutation of its own.
# Nothing else decides which example stands where: neither the number of processes, nor the batch
# size, nor what was read before. So the whole state of the data is a position in the stream.


# Two, because a batch may straddle two epochs.
@functools.lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """Return the order of one epoch: int32 [num_examples], read-only.

    `seed` and `epoch` are below 2**64. NumPy promises that the output of `RandomState` (Mersenne
    Twister) never changes between its versions; it makes no such promise for `Generator`.

    >>> permutation(seed=0, epoch=0, num_examples=8).tolist()
    [7, 2, 4, 0, 5, 3, 1, 6]
    """
    key = np.array([seed, epoch], "<u8").view("<u4")
    order = np.random.RandomState(key).permutation(num_examples).astype(np.int32)
    order.setflags(write=False)
    return order


def example_ids(seed: int, num_examples: int, start: int, stop: int) -> np.ndarray:
    """Return which examples stand at the positions start .. stop - 1 of the stream: int32 [stop - start].

    The example at position p is `permutation(seed, p // n, n)[p % n]`.
    """
    pieces = []
    while start < stop:
        epoch, first = divmod(start, num_examples)
        piece = permutation(seed, epoch, num_examples)[first : first + stop - start]
        pieces.append(piece)
        start += len(piece)
    return np.concatenate(pieces)


Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Shard:
    """Which contiguous part of every global batch this process loads: part `index` of `count` equal ones."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard index must be 0 .. {self.count - 1}, got {self.index}")


def train_batches(
    source: Source, *, batch_size: int, seed: int, shard: Shard, start_step: int = 0, threads: int | None = None
) -> Iterator[Batch]:
    """Iterate for ever over this process's part of the global batches from step `start_step` on.

    The global batch of step s holds positions s * batch_size .. (s + 1) * batch_size - 1 of the stream of
    `jaxnet.data.batches`: batches straddle epochs, and each epoch holds every example exactly once.

    Args:
        batch_size: examples in a global batch; a multiple of `shard.count`.
        threads: how many threads read and decode; 1 is the caller's own. More pay off only where examples
            are decoded on the way. Each works on a whole batch, so as many batches are held in memory.
            None: what the source has as `threads`, or 1.

    Returns:
        Batches {'image': uint8 [b, H, W, C], 'label': int32 [b], 'id': int32 [b]} with
        b = batch_size / shard.count; 'id' is the row of the example in the data set.

    Raises:
        InputError: a number is out of range, or the batch does not divide.
    """
    size = _part_size(batch_size, shard)
    if not 0 <= seed < 2**64:
        raise InputError(f"seed must be 0 .. 2**64 - 1, got {seed}")
    if start_step < 0:
        raise InputError(f"start_step must be at least 0, got {start_step}")

    def load(step: int) -> Batch:
        start = step * batch_size + shard.index * size
        ids = example_ids(seed, source.num_examples, start, start + size)
        if isinstance(source, RandomSource):
            return {"id": ids, **source.random_rows(ids, draws(seed, start, start + size))}
        return {**source.rows(ids), "id": ids}

    for_ever = range(start_step, sys.maxsize // batch_size)
    return _iterate(load, for_ever, _threads(source, threads))


def eval_batches(source: Source, *, batch_size: int, shard: Shard, threads: int | None = None) -> Iterator[Batch]:
    """Iterate over this process's part of ceil(n / batch_size) global batches: every example once, in order.

    Batches are as those of `train_batches`, with 'weight': float32 [b] besides: 1, or 0 for the padding
    that fills the last global batch (it repeats the last example).
    """
    size = _part_size(batch_size, shard)
    num_examples = source.num_examples

    def load(step: int) -> Batch:
        start = step * batch_size + shard.index * size
        position = np.arange(start, start + size)
        ids = np.minimum(position, num_examples - 1).astype(np.int32)
        weight = (position < num_examples).astype(np.float32)
        return {**source.rows(ids), "id": ids, "weight": weight}

    return _iterate(load, range(-(-num_examples // batch_size)), _threads(source, threads))


def _part_size(batch_size: int, shard: Shard) -> int:
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    if batch_size % shard.count:
        raise InputError(
            f"batch_size={batch_size} cannot be divided among {shard.count} processes: use a multiple of {shard.count}"
        )
    return batch_size // shard.count


def _threads(source: Source, threads: int | None) -> int:
    return getattr(source, "threads", 1) if threads is None else threads


def _iterate(load: Callable[[int], Batch], steps: range, threads: int) -> Iterator[Batch]:
    import grain  # here, because it takes 0.2 s to import

    if threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}")
    # Grain's own threads make cheap elements slower: they wait for the interpreter lock.
    readers = 0 if threads == 1 else threads
    options = grain.ReadOptions(num_threads=readers, prefetch_buffer_size=readers)
    return iter(grain.MapDataset.range(steps.start, steps.stop).map(load).to_iter_dataset(options))


# ---- Puts batches on the devices, as global arrays ----------------------------------------------------
#
# No thread does it ahead of time. JAX dispatches a step and returns at once, so the next batch is made and sent
# while the devices still have steps to do; a thread of ours would only compete with them for the host
# (docs/design/pacing.md has the figures). Decoding in several threads is Grain's: `train_batches(threads=...)`.


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
