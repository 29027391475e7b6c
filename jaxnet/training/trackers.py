"""Metrics sent to W&B or MLflow as well: `log.trackers=wandb,mlflow`. Each is told where by its own variables.

    WANDB_PROJECT, WANDB_API_KEY, WANDB_MODE=offline, ...            pip install 'jaxnet[wandb]'
    MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ...                 pip install 'jaxnet[mlflow]'

A run that is continued goes on in the same W&B or MLflow run, whose name stands in trackers.json. Where a tracker fails
while a run trains, that is said once, and training goes on without it: metrics.jsonl has everything.
"""

import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from jaxnet.errors import InputError, one_line
from jaxnet.files import read_object, replace
from jaxnet.training.observer import Observer

_PROJECT = "jaxnet"
_MOST_LETTERS = 500  # of a value of the config in MLflow
_AT_ONCE = 100  # of them in one call

Send = Callable[[int, Mapping[str, float]], None]


@contextmanager
def tracking(
    names: Sequence[str], workdir: Path, title: str, settings: Mapping[str, Any], say: Callable[[str], None]
) -> Iterator[list[Observer]]:
    """Inside, observers that send each line of metrics to these trackers.

    Args:
        names: 'wandb' or 'mlflow'.
        workdir: of the run, on this machine.
        title: what the run is called there.
        settings: what config.json holds.
        say: tells the user.

    Raises:
        InputError: a tracker is not installed, or refuses the run.
    """
    place = workdir / "trackers.json"
    known, senders = _known(place), list[Observer]()
    with ExitStack() as begun:
        for name in names:
            tracker = _TRACKERS[name](workdir, title, settings, known)
            try:
                senders.append(_Sender(name, tracker.__enter__(), say))
            except ImportError as error:
                raise InputError(f"log.trackers={name}: {one_line(error)}: pip install 'jaxnet[{name}]'") from error
            except Exception as error:  # of its own types
                raise InputError(f"log.trackers={name}: it refuses the run: {one_line(error)}") from error
            begun.push(functools.partial(_end, name, tracker, say))
        replace(place, json.dumps(known) + "\n")
        yield senders


def _end(
    name: str,
    tracker: AbstractContextManager[Send],
    say: Callable[[str], None],
    kind: type[BaseException] | None,
    failure: BaseException | None,
    trace: TracebackType | None,
) -> None:
    try:
        tracker.__exit__(kind, failure, trace)
    except Exception as error:  # of its own types
        say(f"{name} could not be told of the end: {one_line(error)}")


def _known(place: Path) -> dict[str, str]:
    """The runs that were begun before, by tracker."""
    try:
        return {str(name): str(run) for name, run in read_object(place).items()}
    except (OSError, ValueError):
        return {}


class _Sender(Observer):
    """Sends each line of metrics, as `split/name`; says once where that fails."""

    def __init__(self, name: str, send: Send, say: Callable[[str], None]) -> None:
        self._name, self._send, self._say, self._failed = name, send, say, False

    def on_metrics(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        numbers = {f"{split}/{name}": float(value) for name, value in values.items() if isinstance(value, int | float)}
        try:
            self._send(step, numbers)
        except Exception as error:  # of its own types, such as a server that is gone
            if not self._failed:
                self._say(f"{self._name} cannot be reached: {one_line(error)}; training goes on without it")
            self._failed = True
            return
        self._failed = False


@contextmanager
def _wandb(workdir: Path, title: str, settings: Mapping[str, Any], known: dict[str, str]) -> Iterator[Send]:
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", _PROJECT),
        name=title,
        id=known.get("wandb"),
        resume="allow",
        dir=workdir,
        config=dict(settings),
        settings=wandb.Settings(console="off", silent=True),
    )
    known["wandb"] = run.id
    run.define_metric("*", step_metric="step")  # its own steps may only grow, and a run that resumes goes back
    try:
        yield lambda step, values: run.log({"step": step, **values})
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish()


@contextmanager
def _mlflow(workdir: Path, title: str, settings: Mapping[str, Any], known: dict[str, str]) -> Iterator[Send]:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient()
    if "mlflow" not in known:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name)
        known["mlflow"] = client.create_run(experiment, run_name=title).info.run_id
        params = [Param(key, str(value)[:_MOST_LETTERS]) for key, value in settings.items()]
        for start in range(0, len(params), _AT_ONCE):
            client.log_batch(known["mlflow"], params=params[start : start + _AT_ONCE])
    run = known["mlflow"]
    client.update_run(run, status="RUNNING")

    def send(step: int, values: Mapping[str, float]) -> None:
        now = round(1e3 * time.time())
        client.log_batch(run, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    try:
        yield send
    except BaseException:
        client.set_terminated(run, "FAILED")
        raise
    client.set_terminated(run)


_TRACKERS: Mapping[str, Callable[..., AbstractContextManager[Send]]] = {"wandb": _wandb, "mlflow": _mlflow}
