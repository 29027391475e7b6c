"""The final figures of a run: what summary.json holds."""

import json
from pathlib import Path
from typing import Any

from jaxnet.config.run import Config
from jaxnet.ensembles import ensemble_summary
from jaxnet.training.loop import Outcome
from jaxnet.training.peers import PeerReport
from jaxnet.training.place import ProcessGroup
from jaxnet.training.plan import wire_bytes_per_step
from jaxnet.training.prepare import Experiment


def kept_summary(path: Path, step: int, total_steps: int) -> dict[str, Any] | None:
    """What summary.json says, if it is that of a run which ended after `step` steps; an earlier attempt's is not."""
    try:
        summary = json.loads(path.read_text())
        same = (summary["steps"], summary["finished"]) == (step, step >= total_steps)
    except (OSError, ValueError, KeyError, TypeError):  # missing, or not as it was written
        return None
    return summary if same else None


def summarize(
    config: Config, experiment: Experiment, place: ProcessGroup, outcome: Outcome, first_step: int, met: PeerReport
) -> dict[str, Any]:
    """The figures of a run whose last attempt began after `first_step` steps."""
    steps = outcome.step - first_step
    return {
        "steps": outcome.step,
        "finished": outcome.step >= experiment.total_steps,
        **ensemble_summary(config.ensemble, config.optimizer, config.seed, outcome.evaluation),
        "strategy": experiment.strategy.name,
        "wire_bytes_per_step": wire_bytes_per_step(experiment, place.mesh),
        "data_wait_fraction": outcome.waited / outcome.seconds if steps else 0.0,
        "examples_per_second": steps * config.batch_size / outcome.seconds if steps else 0.0,
        "train_seconds": outcome.seconds,
        **outcome.met._asdict(),
        "mesh": experiment.mesh_over_ranks(place.mesh),
        "processes": place.cluster.process_count,
        "seed": config.seed,
        "damaged_records": met.damaged,
        "stragglers": [each._asdict() for each in met.stragglers],
    }
