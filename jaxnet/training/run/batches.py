"""What a run feeds its step: global batches on the mesh, as a function of (seed, step)."""

from collections.abc import Generator

from jaxnet.comm import split_by_example
from jaxnet.data import DeviceBatch, Source, placed, train_batches
from jaxnet.training.config import Config
from jaxnet.training.experiment import Experiment
from jaxnet.training.run.place import Place
from jaxnet.training.run.recovery import Stream
from jaxnet.training.steps.resolutions import batches_in_phases


def stream(config: Config, experiment: Experiment, place: Place, source: Source, step: int) -> Stream:
    """This process's batches after `step` steps, in the sizes that the run's phases ask for."""
    sharding = split_by_example(place.mesh)

    def of_one_size(source: Source, step: int) -> Generator[DeviceBatch, None, None]:
        batches = train_batches(
            source, batch_size=config.batch_size, seed=config.seed, shard=place.shard, start_step=step
        )
        return placed(batches, sharding)

    return Stream(lambda step: batches_in_phases(of_one_size, source, experiment.phases, step, sharding), step)
