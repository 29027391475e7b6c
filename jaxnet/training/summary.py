"""The first and the last screen of a run, plan.json and summary.json: what is trained, and what came of it."""

import os
import platform
import shlex
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from jaxnet.checkpoints.leaves import named_leaves
from jaxnet.comm import Check
from jaxnet.data import has_classes
from jaxnet.ensembles import ensemble_summary
from jaxnet.files import read_object
from jaxnet.optimizer import optimizer_text
from jaxnet.tasks.task import metric_text
from jaxnet.training.best import BestEvaluation
from jaxnet.training.checkpointing import Start
from jaxnet.training.experiment import Experiment
from jaxnet.training.loop import Outcome
from jaxnet.training.observer import metrics_text, task_metrics
from jaxnet.training.peers import PeerReport
from jaxnet.training.plan import moment_of, size_text, when_text
from jaxnet.training.profiling import CompiledStep


def first_screen(experiment: Experiment, start: Start, best: BestEvaluation, step: CompiledStep, workdir: str) -> str:
    """What is about to be trained, with what, where: a line each. The whole config is in config.json."""
    lines = [f"{name:<11}{text}" for name, text in _opening(experiment, step, workdir)]
    if not start.fresh:
        lines.insert(0, f"continuing {workdir} from step {start.step}")
    if start.weights:
        lines.append(start.weights)
    if start.step >= experiment.total_steps:
        lines.append(f"nothing to train: this config ends at step {experiment.total_steps}")
    elif best.ended:
        lines.append(f"nothing to train, the run has ended early: {best.reason}")
    if not step.check.ok:
        lines.append(f"warning: {step.check.explain()}")
    return "\n".join(lines)


def own_version() -> str:
    """That of jaxnet."""
    try:
        return version("jaxnet")
    except PackageNotFoundError:  # train.py runs in a copy that nobody has installed, too
        return "not installed"


def plan_record(experiment: Experiment) -> dict[str, Any]:
    """What plan.json holds: what a step sends, bucket by bucket, and the machine and versions that it is for."""
    devices = experiment.mesh.devices.flat
    environment = {
        "jaxnet": own_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "flax", "optax")},
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "host": platform.node(),
        "cores": os.cpu_count(),
        "devices": f"{experiment.mesh.size} x {devices[0].device_kind}",
        "processes": experiment.processes.shard.count,
    }
    return {**experiment.plan.as_json(), "environment": environment}


def _opening(experiment: Experiment, step: CompiledStep, workdir: str) -> Iterator[tuple[str, str]]:
    config, strategy = experiment.config, experiment.strategy
    params = sum(leaf.size for leaf in jax.tree.leaves(experiment.variables.params))
    members = f", {config.ensemble.members} members" if config.ensemble.on else ""
    yield "jaxnet", own_version()
    yield "model", f"{_name(config.model)}, {params:,} parameters{members}, for {_name(config.task)}"
    validation = f", {experiment.validation.num_examples:,} validation" if experiment.validation else ""
    counts = f"{experiment.source.num_examples:,} training{validation} and {experiment.tests.num_examples:,} test"
    yield "data", f"{_name(config.data)}, {counts} examples: {_example(experiment)}"
    yield "steps", f"{experiment.total_steps:,}, of {config.batch_size:,} examples: {config.epochs:g} epochs"
    yield "optimizer", f"{optimizer_text(config.optimizer)}, seed {config.seed}"
    when = when_text(moment_of(experiment.form), experiment.form.round_steps)
    yield "strategy", f"{strategy.label}, {when}, mode {experiment.form.options.mode}"
    if experiment.choice:
        yield "", f"chosen by auto: {experiment.choice.why}"
    if strategy.kind != "xla" and strategy.expression != strategy.label:
        yield "", strategy.expression
    plan = experiment.plan
    found = f"; {_found(step.check)}" if step.check.ok and step.check.planned else ""
    sent = _sent_text(plan.wire_bytes_per_step, plan.wire_bytes_per_axis)
    yield "sends", f"{sent} a step from the busiest device{found}"
    devices = experiment.mesh.devices
    count = devices.size * experiment.form.options.ranks
    mesh = " x ".join(f"{size} {axis}{'s' * (size > 1)}" for axis, size in experiment.axis_sizes.items())
    processes = experiment.processes.cluster.process_count
    yield "devices", f"{count} {devices.flat[0].platform} ({mesh}) in {processes} process{'es' * (processes > 1)}"
    yield "writes to", f"{workdir}"


def _sent_text(total: int, by_axis: Mapping[str, int]) -> str:
    """Bytes in all and over each axis, where there are several: links between hosts are the slow ones.

    >>> _sent_text(3072, {"device": 2048, "host": 1024}), _sent_text(10, {"host": 10})
    ('3.0 KiB (2.0 KiB over device, 1.0 KiB over host)', '10 bytes')
    """
    parts = ", ".join(f"{size_text(sent)} over {axis}" for axis, sent in by_axis.items() if sent)
    return f"{size_text(total)} ({parts})" if len(by_axis) > 1 else size_text(total)


def _found(check: Check) -> str:
    if check.extra or check.recoded:
        return check.explain()
    return "the compiled program does as planned"


def _example(experiment: Experiment) -> str:
    """What an example of the data set is, in words."""
    source: Any = experiment.source
    if has_classes(source):
        return f"images of {'x'.join(map(str, source.image_shape))}, {source.num_classes} classes"
    leaves = named_leaves(experiment.example).items()
    return ", ".join(f"{name} {leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves)


def _name(value: Any) -> str:
    named = getattr(value, "name", None)
    return f"{type(value).__name__}({named})" if isinstance(named, str) else type(value).__name__


def last_screen(summary: Mapping[str, Any], workdir: str) -> str:
    """What came of the run, in words: a line each."""
    return "\n".join(f"{name:<11}{text}" for name, text in _ending(summary, workdir))


def _ending(summary: Mapping[str, Any], workdir: str) -> Iterator[tuple[str, str]]:
    early = "ended early" if summary.get("ended_early") else "finished"
    done = early if summary["finished"] else "stopped, run again to continue"
    yield (
        "steps",
        f"{summary['steps']:,}, {done}; {summary['seconds']:.1f} s, {summary['train_seconds']:.1f} s in steps",
    )
    if tested := {name: summary[name] for name in summary["metrics"]}:
        when = summary["evaluated_step"]
        then = f", after step {when:,}" if when != summary["steps"] else ""
        yield "test", f"{metrics_text(tested, ', ')} on {summary['examples']:,} examples{then}"
    if best := summary.get("best"):
        value = metric_text(best["metric"], best["validation"])
        then = metrics_text(best["test"], ", ")
        yield "best", f"{best['metric']} {value} on the validation examples after step {best['step']:,}; test {then}"
    rate, waited = summary["examples_per_second"], summary["data_wait_fraction"]
    yield "speed", f"{rate:,.0f} examples a second, {waited:.1%} of the time waiting for data"
    sent = _sent_text(summary["wire_bytes_per_step"], summary.get("wire_bytes_per_axis", {}))
    yield "sent", f"{sent} a step from the busiest device ({summary['strategy']})"
    troubles = {
        "skipped steps": summary["skipped_steps"],
        "loss spikes": summary["loss_spikes"],
        "rollbacks": summary["rollbacks"],
        "damaged records": summary["damaged_records"],
        "stragglers": len(summary["stragglers"]),
    }
    if any(troubles.values()):
        yield "met", ", ".join(f"{count} {what}" for what, count in troubles.items() if count)
    yield "written to", f"{workdir} (summary.json, metrics.jsonl, checkpoints)"
    yield "to look", f"jaxnet report {shlex.quote(workdir)} --html page.html"


def kept_summary(path: Path, step: int, *, finished: bool) -> dict[str, Any] | None:
    """What summary.json says, if it is that of a run which ended after `step` steps; an earlier attempt's is not."""
    try:
        summary = read_object(path)
        same = (summary["steps"], summary["finished"]) == (step, finished)
    except (OSError, ValueError, KeyError):  # missing, or not as it was written
        return None
    return summary if same else None


def summarize(
    experiment: Experiment,
    outcome: Outcome,
    best: BestEvaluation,
    first_step: int,
    peers: PeerReport,
    *,
    seconds: float,
    not_saved: str,
) -> dict[str, Any]:
    """The figures of a run whose last attempt began after `first_step` steps: what summary.json holds."""
    config, steps = experiment.config, outcome.step - first_step
    tested = outcome.evaluation.get("test", {})
    early = best.ended and outcome.step < experiment.total_steps
    return {
        "steps": outcome.step,
        "finished": early or outcome.step >= experiment.total_steps,
        "ended_early": early,
        **ensemble_summary(config.ensemble, config.optimizer, config.seed, tested),
        "metrics": list(task_metrics(tested)),
        "evaluated_step": outcome.evaluated,
        "best": best.summary(),
        "strategy": experiment.strategy.label,
        "wire_bytes_per_step": experiment.plan.wire_bytes_per_step,
        "wire_bytes_per_axis": experiment.plan.wire_bytes_per_axis,
        "data_wait_fraction": outcome.waited / outcome.seconds if steps else 0.0,
        "examples_per_second": steps * config.batch_size / outcome.seconds if steps else 0.0,
        "train_seconds": outcome.seconds,
        **outcome.met._asdict(),
        "mesh": experiment.axis_sizes,
        "processes": experiment.processes.cluster.process_count,
        "seed": config.seed,
        "damaged_records": peers.damaged,
        "stragglers": [each._asdict() for each in peers.stragglers],
        "seconds": seconds,
        "not_saved": not_saved,
    }
