"""How good a state is: loss and accuracy on every example of the test split, counted once."""

from collections.abc import Callable, Generator
from contextlib import closing

from jaxnet.comm import split_by_example
from jaxnet.config.run import Config
from jaxnet.data import DeviceBatch, Source, eval_batches, placed, train_batches
from jaxnet.ensembles import evaluate_ensemble, make_ensemble_eval_step
from jaxnet.parallel.state import TrainState
from jaxnet.tasks.classification import evaluate, make_eval_step
from jaxnet.training.place import ProcessGroup
from jaxnet.training.prepare import Experiment
from jaxnet.training.recovery import BatchStream
from jaxnet.training.resolutions import batches_in_phases

# ---- What a run feeds its step: global batches on the mesh, as a function of (seed, step) -------------


def stream(config: Config, experiment: Experiment, place: ProcessGroup, source: Source, step: int) -> BatchStream:
    """This process's batches after `step` steps, in the sizes that the run's phases ask for."""
    sharding = split_by_example(place.mesh)

    def of_one_size(source: Source, step: int) -> Generator[DeviceBatch, None, None]:
        batches = train_batches(
            source, batch_size=config.batch_size, seed=config.seed, shard=place.shard, start_step=step
        )
        return placed(batches, sharding)

    return BatchStream(lambda step: batches_in_phases(of_one_size, source, experiment.phases, step, sharding), step)


Evaluate = Callable[[TrainState], dict[str, float]]


def make_evaluate(config: Config, experiment: Experiment, place: ProcessGroup, source: Source) -> Evaluate:
    """A function of a state, for the run's network or its ensemble."""
    mesh, ensemble, ranks = place.mesh, config.ensemble.on, place.cluster.mpi
    step = (make_ensemble_eval_step if ensemble else make_eval_step)(experiment.model, config.pixels, mesh)
    across = [ranks.totals] if ranks else []

    def of_state(state: TrainState) -> dict[str, float]:
        batches = eval_batches(source, batch_size=config.eval_batch_size, shard=place.shard)
        params, stats = experiment.layout.evaluated(state)
        with closing(placed(batches, split_by_example(mesh))) as on_devices:
            if ensemble:
                return evaluate_ensemble(step, params, stats, on_devices, mesh)
            return evaluate(step, params, stats, on_devices, mesh, *across)

    return of_state
