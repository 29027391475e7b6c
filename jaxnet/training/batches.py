"""The batches of a run: global, on the mesh, a function of (seed, step), so that a run goes on wherever it stopped."""

import os
from collections.abc import Callable, Generator, Iterator

from jax.sharding import Mesh

from jaxnet.comm import MiB, platform_of, split_by_example
from jaxnet.config.fit import bytes_of
from jaxnet.config.run import Config
from jaxnet.data import DeviceBatch, Shard, Source, example_shapes, placed, train_batches
from jaxnet.data.batches import Batch
from jaxnet.training.resolutions import Phase, batches_in_phases


class BatchStream:
    """The batches of a run from a step on, which can be taken up again from another.

    >>> stream = BatchStream(lambda step: (number for number in range(step, 9)), 3)
    >>> next(stream), next(stream), stream.rewind(1), next(stream)
    (3, 4, None, 1)
    """

    def __init__(self, make: Callable[[int], Generator[DeviceBatch, None, None]], step: int) -> None:
        self._make = make
        self._batches = make(step)

    def __iter__(self) -> Iterator[DeviceBatch]:
        return self

    def __next__(self) -> DeviceBatch:
        return next(self._batches)

    def rewind(self, step: int) -> None:
        """Go on with the batch that follows `step` steps."""
        self.close()
        self._batches = self._make(step)

    def close(self) -> None:
        """Close what makes the batches."""
        self._batches.close()


def batch_stream(
    config: Config,
    source: Source,
    phases: tuple[Phase, ...],
    mesh: Mesh,
    shard: Shard,
    step: int,
    check: Callable[[Batch], None],
) -> BatchStream:
    """This process's batches after `step` steps, checked, in the image sizes that the run's phases ask for."""
    sharding = split_by_example(mesh)
    threads = reading_threads(source, config.batch_size // shard.count, platform_of(mesh))

    def of_one_size(source: Source, step: int) -> Generator[DeviceBatch, None, None]:
        batches = train_batches(
            source, batch_size=config.batch_size, seed=config.seed, shard=shard, start_step=step, threads=threads
        )
        return placed(batches, sharding, check)

    return BatchStream(lambda step: batches_in_phases(of_one_size, source, phases, step, sharding), step)


_BYTES_A_THREAD = 64 * MiB
_LARGE_BATCH = 4 * MiB
_MOST_THREADS = 4


def reading_threads(source: Source, size: int, platform: str) -> int | None:
    """How many threads make batches of `size` examples; None: as many as the source says, or the loop's own.

    Arrays in memory are copied by the loop, where the processor also computes. Beside accelerators it has cores to
    spare, and one core copies 3 to 4 GB/s, less than eight GPUs take. A small batch is copied sooner than a thread gets
    the interpreter's lock. (The limits are chosen, not measured.)
    """
    if platform == "cpu" or hasattr(source, "threads") or not getattr(source, "in_memory", False):
        return None
    batch = size * bytes_of(example_shapes(source))
    wanted = min(_MOST_THREADS, max(2, batch // _BYTES_A_THREAD))
    spare = len(os.sched_getaffinity(0)) - 1  # the loop has one
    return min(wanted, spare) if batch >= _LARGE_BATCH and spare > 1 else None
