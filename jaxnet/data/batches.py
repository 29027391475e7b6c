"""Batches as a function of (seed, step), so the step is the whole state of the data.

The stream of training examples is the concatenation of epochs, each a permutation of its own by (seed, epoch). The
global batch of step s is positions s * batch_size .. (s + 1) * batch_size - 1 of the stream, and each process loads an
equal contiguous part of it. With 8 examples, batches of 6 and 2 processes:

    epoch            0                        1
    permutation      7  2  4  0  5  3  1  6   3  4  2  1  0  6  7  5
    position         0  1  2  3  4  5  6  7   8  9 10 11 12 13 14 15
    global batch     0                 1                  2
    of process 0     7  2  4           1  6   3           0  6  7
    of process 1              0  5  3            4  2  1           5 ...

Batch 1 straddles two epochs: nothing is dropped, and every epoch holds every example once. The number of processes
does not enter the order, so a resume on another number of processes continues the same stream.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import jax
import numpy as np

from jaxnet.data.source import Part, RandomSource, Source, example_shapes, read_rows
from jaxnet.errors import InputError

# ---- Order of examples ----------------------------------------------------------------------------------


# Keep two permutations: a batch may straddle two epochs.
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
    """Return the examples at the positions start .. stop - 1 of the stream: int32 [stop - start].

    The example at position p is `permutation(seed, p // n, n)[p % n]`.

    >>> [example_ids(0, 8, start, start + 6).tolist() for start in (0, 6)]
    [[7, 2, 4, 0, 5, 3], [1, 6, 3, 4, 2, 1]]
    """
    pieces = []
    while start < stop:
        epoch, first = divmod(start, num_examples)
        piece = permutation(seed, epoch, num_examples)[first : first + stop - start]
        pieces.append(piece)
        start += len(piece)
    return np.concatenate(pieces)


# ---- One random number per position ---------------------------------------------------------------------
#
# A draw is a function of (seed, position) alone, so random crops are the same on any number of processes and after a
# resume.

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: multiples of it are spread evenly
_MASK = 2**64 - 1


def draws(seed: int, start: int, stop: int) -> np.ndarray:
    """Return a random number for each position start .. stop - 1: uint64 [stop - start]; `seed` is below 2**64.

    >>> draws(seed=0, start=1, stop=3).tolist() == draws(seed=0, start=0, stop=3).tolist()[1:]
    True
    """
    position = np.arange(start, stop, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return _splitmix64(np.uint64(mix_bits(seed)) + position * np.uint64(_GOLDEN))


def mix_bits(number: int) -> int:
    """Return `number` modulo 2**64 with its bits mixed: a bijection whose results look independent."""
    return int(_splitmix64(np.array([(number + _GOLDEN) & _MASK], np.uint64))[0])


def _splitmix64(number: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


# ---- Batches --------------------------------------------------------------------------------------------

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Shard:
    """The contiguous part of every global batch that this process loads: part `index` of `count` equal ones."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard index must be 0 .. {self.count - 1}, got {self.index}")


def train_batches(
    source: Source, *, batch_size: int, seed: int, shard: Shard, start_step: int = 0, threads: int | None = None
) -> Iterator[Batch]:
    """Iterate for ever over this process's part of the global batches, from step `start_step` on.

    The global batch of step s holds positions s * batch_size .. (s + 1) * batch_size - 1 of the stream that the
    docstring of `jaxnet.data.batches` describes.

    Args:
        source: the examples.
        batch_size: examples in a global batch; a multiple of `shard.count`.
        seed: decides the order and, for a `RandomSource`, the draws; 0 .. 2**64 - 1.
        shard: the part that this process loads.
        start_step: the first step.
        threads: how many threads read and decode; 1 is the caller's own. More help if examples are decoded when
            they are read, or if batches are large and the caller has other work. Each works on a whole batch, so as
            many batches are held in memory.
            None: the source's `threads`, or 1.

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

    like, random = example_shapes(source), isinstance(source, RandomSource)

    def load(step: int) -> Batch:
        start = step * batch_size + shard.index * size
        ids = example_ids(seed, source.num_examples, start, start + size)
        if random:
            return {"id": _rows_of(source, ids), **read_rows(source, ids, like, draws(seed, start, start + size))}
        return {**read_rows(source, ids, like), "id": _rows_of(source, ids)}

    for_ever = range(start_step, sys.maxsize // batch_size)
    return _iterate(load, for_ever, _threads(source, threads))


def eval_batches(source: Source, *, batch_size: int, shard: Shard, threads: int | None = None) -> Iterator[Batch]:
    """Iterate over this process's part of ceil(n / batch_size) global batches: every example once, in order.

    Batches are those of `train_batches` with 'weight': float32 [b] added. It is 1, or 0 for the copies of the last
    example that fill up the last global batch.
    """
    size = _part_size(batch_size, shard)
    num_examples, like = source.num_examples, example_shapes(source)

    def load(step: int) -> Batch:
        start = step * batch_size + shard.index * size
        position = np.arange(start, start + size)
        ids = np.minimum(position, num_examples - 1).astype(np.int32)
        weight = (position < num_examples).astype(np.float32)
        return {**read_rows(source, ids, like), "id": _rows_of(source, ids), "weight": weight}

    return _iterate(load, range(-(-num_examples // batch_size)), _threads(source, threads))


def _rows_of(source: Source, ids: np.ndarray) -> np.ndarray:
    """The rows of a source's examples in the data set, of which it may hold a part, as `hold_out` makes."""
    rows: np.ndarray = source.rows_of(ids) if isinstance(source, Part) else ids
    return rows


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
    # A Grain element is all that a process loads for one step. Grain spends about 20 microseconds on an element:
    # nothing for a batch, too much for a small image (benchmarks/data_rate.py measures it).
    # One thread means none of Grain's: its threads make cheap elements slower, because they wait for the
    # interpreter lock.
    readers = 0 if threads == 1 else threads
    options = grain.ReadOptions(num_threads=readers, prefetch_buffer_size=readers)
    return iter(grain.MapDataset.range(steps.start, steps.stop).map(load).to_iter_dataset(options))


# ---- Placement on devices -------------------------------------------------------------------------------
#
# No prefetch thread is needed. JAX dispatches a step and returns at once, so the next batch is made and sent while the
# devices still work on earlier steps; a thread would only compete with them for the host (docs/design/pacing.md has
# the figures). Grain's threads decode, and beside accelerators copy large batches: `train_batches(threads=...)`.


DeviceBatch = dict[str, jax.Array]


def placed(
    batches: Iterator[Batch], sharding: jax.sharding.Sharding, check: Callable[[Batch], None] = lambda batch: None
) -> Generator[DeviceBatch, None, None]:
    """Iterate over `batches` as global arrays. Closing the iterator closes `batches` if it has a `close`.

    `check` sees each batch before it is sent, and may raise.

    Each process passes its own part of a global batch. `sharding` splits dim 0, and rows lie in the order of its
    devices. On a CPU a global array may share the memory of the NumPy array, so each batch must be a fresh array.

    >>> device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    >>> from jaxnet.data import Digits, Shard, eval_batches
    >>> batches = eval_batches(Digits().load('test'), batch_size=90, shard=Shard(0, 1))
    >>> [batch['image'].shape for batch in placed(batches, device)]
    [(90, 8, 8, 1), (90, 8, 8, 1), (90, 8, 8, 1), (90, 8, 8, 1)]
    """
    try:
        for batch in batches:
            check(batch)
            yield _placed(batch, sharding)
    finally:
        close = getattr(batches, "close", None)  # Grain's iterators and generators have one
        if close is not None:
            close()


def _placed(batch: Batch, sharding: jax.sharding.Sharding) -> DeviceBatch:
    if sharding.is_fully_addressable:
        arrays: DeviceBatch = jax.device_put(batch, sharding)
        return arrays
    global_: DeviceBatch = jax.tree.map(lambda local: jax.make_array_from_process_local_data(sharding, local), batch)
    return global_
