"""How good a state is: loss and accuracy on every example of the test split, counted once."""

from collections.abc import Callable
from contextlib import closing

from jaxnet.comm import split_by_example
from jaxnet.data import Source, eval_batches, placed
from jaxnet.training.config import Config
from jaxnet.training.experiment import Experiment
from jaxnet.training.run.place import Place
from jaxnet.training.steps.ensemble_evaluation import evaluate_ensemble, make_ensemble_eval_step
from jaxnet.training.steps.evaluation import evaluate, make_eval_step
from jaxnet.training.steps.state import TrainState

Evaluate = Callable[[TrainState], dict[str, float]]


def make_evaluate(config: Config, experiment: Experiment, place: Place, source: Source) -> Evaluate:
    """A function of a state, for the run's network or its ensemble."""
    mesh, ensemble, ranks = place.mesh, config.ensemble.on, place.cluster.ranks
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
