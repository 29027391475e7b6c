"""Train a model: `python train.py --config configs/digits.py [--workdir DIR] [key.path=value ...]`.

Reads top to bottom; the titles of the sections are the architecture. Run again with the same workdir, it
continues from the newest good checkpoint.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxnet.checkpoints import Checkpoints, Consensus, Enduring, OneWriter
from jaxnet.cli.parser import Parser, given_path
from jaxnet.cluster.agreement import check_agreement
from jaxnet.cluster.digests import code_digests
from jaxnet.cluster.leave import leave
from jaxnet.cluster.progress import noted
from jaxnet.cluster.start import Cluster, start, start_by_mpi
from jaxnet.comm import make_mesh, mpi_world, split_by_example, verify
from jaxnet.data import DeviceBatch, Shard, Source, eval_batches, inputs_of, placed, train_batches
from jaxnet.errors import InputError, exit_cleanly
from jaxnet.report.goodput import goodput_line
from jaxnet.training.compile_cache import compile_cache
from jaxnet.training.config import Config
from jaxnet.training.config_file import load_config
from jaxnet.training.config_keys import default_values, differences, flatten, to_json
from jaxnet.training.ensemble_evaluation import evaluate_ensemble, make_ensemble_eval_step
from jaxnet.training.ensemble_report import ensemble_summary, ensemble_table
from jaxnet.training.evaluation import evaluate, make_eval_step
from jaxnet.training.experiment import Experiment, prepare
from jaxnet.training.guard import Counts
from jaxnet.training.initial import weights_digest
from jaxnet.training.ledger import Ledger, process_start
from jaxnet.training.loop import Evaluate, Loop, Outcome
from jaxnet.training.loss_scale import stored_scale
from jaxnet.training.plan_report import plan_text, wire_bytes_per_step
from jaxnet.training.profiling import ProfileWindow, write_programs
from jaxnet.training.progress import Display, say_nothing, say_warning, show_warnings
from jaxnet.training.records import NoRecords, Records, make_workdir, read_settings, write_whole, writing
from jaxnet.training.recovery import Recovery, Stream
from jaxnet.training.resolutions import batches_in_phases, step_by_size
from jaxnet.training.state import TrainState, abstract_state
from jaxnet.training.stopping import StopSignal
from jaxnet.training.watchdog import Alarm
from jaxnet.training.workdir import held


def train(
    config: Config,
    workdir: Path,
    *,
    allow_config_change: bool = False,
    quiet: bool = False,
    alarm: Alarm | None = None,
    ledger: Ledger | None = None,
) -> dict[str, Any]:
    """Train as `config` says; returns the summary that is also written to `<workdir>/summary.json`.

    `alarm`, which ends a process that hangs, and a `ledger` of all its time, are for who owns the process.
    """
    with ExitStack() as during:
        given = alarm or Alarm(config.watchdog), ledger or Ledger()
        return train_during(during, *given, config, workdir, allow_config_change, quiet)


def train_during(
    during: ExitStack,
    alarm: Alarm,
    ledger: Ledger,
    config: Config,
    workdir: Path,
    allow_config_change: bool,
    quiet: bool,
) -> dict[str, Any]:
    """As `train`; what is entered into `during` lasts until the end."""
    started = time.perf_counter()

    # ---- Processes and mesh -------------------------------------------------------------------------------
    cluster = start_by_mpi(mpi_world) if config.transport == "mpi" else start()
    check_agreement(cluster, fingerprint(config))
    mesh = mesh_of(config)
    shard = Shard(cluster.process_index, cluster.process_count)
    primary = shard.index == 0

    # ---- Data: a batch is a function of (seed, step) ------------------------------------------------------
    source, test_source = config.data.load("train"), config.data.load("test")

    # ---- Model, optimizer, strategy, step: shapes and functions, no arrays yet ----------------------------
    experiment = prepare(config, mesh, source)

    # ---- Workdir: held by this run alone; what was compiled before lies there -----------------------------
    make_workdir(workdir)
    settings = flatten(config)
    refuse_changes(workdir / "config.json", settings, default_values(config), allowed=allow_config_change)
    told = cluster.ranks.told if cluster.ranks else Consensus().decided
    fence = during.enter_context(held(workdir, told, ledger.beat))
    if primary:
        with writing(workdir / "ledger.jsonl"):
            ledger.open(workdir / "ledger.jsonl", fence=fence)
        during.callback(ledger.close)
    if config.compile_cache is not None and not cluster.ranks:  # with MPI a program holds addresses of its process
        during.enter_context(compile_cache(workdir / Path(config.compile_cache).expanduser()))

    # ---- State: restored from the newest good checkpoint, or made on the mesh -----------------------------
    checkpoints = Enduring(open_checkpoints(config, workdir, cluster, fence), say_warning if primary else say_nothing)
    like = abstract_state(experiment.layout.whole_shapes, mesh)
    restored = checkpoints.restore_latest(like, defaults=stored_scale())
    first_step = 0 if restored is None else restored.step
    state = experiment.first_state() if restored is None else experiment.layout.cut(restored.state)

    # ---- Step: compiled once for each size of images, and checked against the plan ------------------------
    lowered = experiment.step.lower(state, experiment.batch_shapes)
    with ledger.during("compile"):
        compiled = lowered.compile()
    check = verify(compiled.as_text() or "", experiment.planned, mesh.shape)
    by_size = step_by_size(experiment.step, state, experiment.batch_shapes, experiment.phases, compiled)

    # ---- Evaluation: every example of the test split, once ------------------------------------------------
    test = make_test(config, experiment, mesh, test_source, shard, cluster)

    # ---- Loop: batch, step, log, evaluate, save, stop on a signal -----------------------------------------
    if primary:
        write_whole(workdir / "config.json", to_json(config))
    written = Records(workdir, tensorboard=config.log.tensorboard, fence=fence) if primary else NoRecords()

    def batches_from(step: int) -> Generator[DeviceBatch, None, None]:
        return batches_in_phases(
            lambda source, step: placed(
                train_batches(source, batch_size=config.batch_size, seed=config.seed, shard=shard, start_step=step),
                split_by_example(mesh),
            ),
            *(source, experiment.phases, step, split_by_example(mesh)),
        )

    with (
        closing(written) as records,
        Display(experiment.total_steps, first_step, silent=quiet or not primary, bar=not cluster.ranks) as display,
        closing(Stream(batches_from, first_step)) as on_devices,
    ):
        display.say(to_json(config) if restored is None else f"continuing {workdir} from step {first_step}")
        display.say(plan_text(experiment, mesh, check))
        if not check.ok:
            display.say(f"warning: {check.explain()}")
        if config.log.hlo and primary:
            write_programs(workdir, lowered, compiled)
        profile = ProfileWindow(config.profile, workdir, shard.index)
        stop = StopSignal(cluster.ranks.flag() if cluster.ranks else None)
        # From its second call on, JAX runs a `Compiled` without the tokens that keep MPI's calls in order.
        step = experiment.step if cluster.ranks else by_size
        inputs = inputs_of(test_source)
        met = Counts() if restored is None else Counts.saved(restored.extra)
        gathered = [cluster.ranks.given_by_all] if cluster.ranks else []
        recovery = Recovery(config.guard, experiment, checkpoints, met, display.say, *gathered)
        loop = Loop(
            *(config, experiment, step, test, checkpoints, records, display, profile, settings, inputs, stop, recovery),
            *(alarm, ledger),
        )
        ledger.began(first_step)
        outcome = loop.run(state, on_devices, first_step)

    # ---- Summary ------------------------------------------------------------------------------------------
    ledger.enter("other")
    checkpoints.close()
    path = workdir / "summary.json"
    if outcome.step == first_step and path.exists():
        return json.loads(path.read_text())  # there was nothing left to train
    if not outcome.evaluation and outcome.signal is None:
        outcome = outcome._replace(evaluation=test(outcome.state))
    summary = summarize(config, experiment, mesh, outcome, first_step, cluster)
    summary["damaged_records"] = len(getattr(source, "damaged", ()))  # that this process met and replaced
    summary["seconds"] = time.perf_counter() - started
    summary["not_saved"] = checkpoints.unsaved
    account = ledger.close()
    if account and not quiet:
        print(goodput_line(account))
    if primary:
        fence()
        write_whole(path, json.dumps(summary, indent=2) + "\n")
        if not quiet and (table := ensemble_table(summary)):
            print(table)
    return summary


def open_checkpoints(
    config: Config, workdir: Path, cluster: Cluster, fence: Callable[[], None]
) -> Checkpoints | OneWriter:
    """The run's checkpoints; with MPI, where no array spans the processes, those of rank 0."""
    directory, keep = workdir / "checkpoints", config.checkpoints.keep
    if cluster.ranks:
        return OneWriter(directory, cluster.ranks, keep=keep, best="accuracy", fence=fence)
    return Checkpoints(directory, keep=keep, best="accuracy", fence=fence)


def make_test(
    config: Config, experiment: Experiment, mesh: Mesh, source: Source, shard: Shard, cluster: Cluster
) -> Evaluate:
    """Loss and accuracy of a state on the whole of `source`."""
    ensemble = config.ensemble.on
    step = (make_ensemble_eval_step if ensemble else make_eval_step)(experiment.model, config.pixels, mesh)
    across = [cluster.ranks.totals] if cluster.ranks else []

    def test(state: TrainState) -> dict[str, float]:
        batches = eval_batches(source, batch_size=config.eval_batch_size, shard=shard)
        params, stats = experiment.layout.evaluated(state)
        with closing(placed(batches, split_by_example(mesh))) as on_devices:
            if ensemble:
                return evaluate_ensemble(step, params, stats, on_devices, mesh)
            return evaluate(step, params, stats, on_devices, mesh, *across)

    return test


def mesh_of(config: Config) -> Mesh:
    """The mesh that the config asks for."""
    try:
        return make_mesh(1 if config.transport == "mpi" else config.hosts)
    except ValueError as error:
        count = jax.device_count()
        divisors = ", ".join(str(hosts) for hosts in range(1, count + 1) if count % hosts == 0)
        raise InputError(f"hosts={config.hosts}: {error}; wanted one of {divisors}") from error


def fingerprint(config: Config) -> dict[str, str]:
    """What must be the same on all processes."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy", *(("mpi4jax", "mpi4py") * (config.transport == "mpi")))
    return {
        "config": hashlib.sha256(to_json(config).encode()).hexdigest()[:16],
        "python": ".".join(map(str, sys.version_info[:2])),
        "devices per process": str(local_device_count()),
        **({} if config.initial_weights is None else {"initial weights": weights_digest(config.initial_weights)}),
        **{package: version(package) for package in packages},
        **code_digests(),
    }


def local_device_count() -> int:
    """Devices of this process, or an InputError if JAX cannot make any."""
    try:
        return jax.local_device_count()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a platform which it knows has a device
        reason = str(error) or "there is no such device here; set it to cpu, or not at all"
        raise InputError(
            f"JAX cannot start with JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}: {reason}"
        ) from error


def refuse_changes(saved: Path, settings: dict[str, Any], defaults: dict[str, Any], *, allowed: bool) -> None:
    """Stop if the workdir belongs to a run with another config, naming the keys; those it lacks had their defaults."""
    if allowed or not saved.exists():
        return
    changed = differences(read_settings(saved), settings, defaults)
    if changed:
        raise InputError(
            f"{saved.parent} holds a run with another config ({'; '.join(changed)}); use another --workdir, or "
            "--allow-config-change to continue it with this one"
        )


def summarize(
    config: Config, experiment: Experiment, mesh: Mesh, outcome: Outcome, first_step: int, cluster: Cluster
) -> dict[str, Any]:
    """The final figures of a run."""
    steps = outcome.step - first_step
    return {
        "steps": outcome.step,
        "finished": outcome.step >= experiment.total_steps,
        **ensemble_summary(config, outcome.evaluation),
        "strategy": experiment.strategy.name,
        "wire_bytes_per_step": wire_bytes_per_step(experiment, mesh),
        "data_wait_fraction": outcome.waited / outcome.seconds if steps else 0.0,
        "examples_per_second": steps * config.batch_size / outcome.seconds if steps else 0.0,
        "train_seconds": outcome.seconds,
        **outcome.met._asdict(),
        "mesh": experiment.mesh_over_ranks(mesh),
        "processes": cluster.process_count,
        "seed": config.seed,
    }


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog="train.py",
        description="Train a model; run again with the same workdir, it continues.",
        epilog="example: python train.py --config configs/digits.py strategy=ddp optimizer.learning_rate=0.05",
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="a Python file with get_config(), such as configs/digits.py; FILE is run",
    )
    parser.add_argument("--workdir", type=given_path, help="where the run writes; default runs/NAME")
    parser.add_argument("--allow-config-change", action="store_true", help="continue a run although its config differs")
    parser.add_overrides()
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, the process's own by default; the result is the exit status."""
    args = parse(sys.argv[1:] if argv is None else argv)
    config = load_config(args.config, args.overrides)
    with Alarm(config.watchdog, noted(os.environ)) as alarm:
        summary = train(
            config,
            args.workdir or Path("runs") / Path(args.config).stem,
            allow_config_change=args.allow_config_change,
            alarm=alarm,
            ledger=Ledger(process_start()),
        )
    if start().process_index == 0:  # the processes have been joined above
        print(json.dumps(summary))
    if summary.get("not_saved"):
        raise InputError(f"the last checkpoint is missing: {summary['not_saved']}")
    return 0


if __name__ == "__main__":
    show_warnings()
    exit_cleanly(main, leave)
