"""The batches of a run: global, on the mesh, a function of (seed, step), so that a run goes on wherever it stopped."""

from collections.abc import Callable, Generator, Iterator

from jax.sharding import Mesh

from jaxnet.comm import split_by_example
from jaxnet.config.run import Config
from jaxnet.data import DeviceBatch, Shard, Source, placed, train_batches
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
    config: Config, source: Source, phases: tuple[Phase, ...], mesh: Mesh, shard: Shard, step: int
) -> BatchStream:
    """This process's batches after `step` steps, in the image sizes that the run's phases ask for."""
    sharding = split_by_example(mesh)

    def of_one_size(source: Source, step: int) -> Generator[DeviceBatch, None, None]:
        batches = train_batches(source, batch_size=config.batch_size, seed=config.seed, shard=shard, start_step=step)
        return placed(batches, sharding)

    return BatchStream(lambda step: batches_in_phases(of_one_size, source, phases, step, sharding), step)
