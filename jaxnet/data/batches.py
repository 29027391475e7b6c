"""Batches as a function of the step: the only state of the data is the step.

One Grain element is all that a process loads for one step. Grain spends about 20 microseconds on an
element: nothing for a batch, but far too much for a small image (`benchmarks/data_rate.py` measures it).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from jaxnet.data.draws import draws
from jaxnet.data.order import example_ids
from jaxnet.data.source import RandomSource, Source
from jaxnet.errors import InputError

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
    `jaxnet.data.order`: batches straddle epochs, and each epoch holds every example exactly once.

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
