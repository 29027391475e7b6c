"""Train a model: `python train.py --config configs/digits.py [--workdir DIR] [key.path=value ...]`.

Reads top to bottom; the titles of the sections are the architecture. Run again with the same workdir, it
continues from the newest good checkpoint.
"""

from jaxnet.cluster.huge_pages import use_huge_pages

if __name__ == "__main__":
    use_huge_pages()  # it may start this program again: so before all that takes time to import

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from jaxnet.checkpoints import FaultTolerantCheckpoints
from jaxnet.cluster.progress import noted
from jaxnet.cluster.start import leave, start
from jaxnet.command_line import Parser, given_path
from jaxnet.config.check import recipe_warnings
from jaxnet.config.file import load_config
from jaxnet.config.keys import to_json
from jaxnet.config.run import Config
from jaxnet.data import Inputs, Source, inputs_of, open_split
from jaxnet.ensembles import ensemble_table
from jaxnet.errors import InputError, exit_cleanly, say
from jaxnet.report.goodput import ending_text
from jaxnet.training.beginning import Beginning, begin, open_checkpoints
from jaxnet.training.display import Display, say_warning, show_warnings
from jaxnet.training.inputs import Evaluate, make_evaluate, stream
from jaxnet.training.ledger import Ledger, process_start
from jaxnet.training.loop import Loop, Outcome
from jaxnet.training.peers import PeerReport, Peers
from jaxnet.training.place import ProcessGroup, meet
from jaxnet.training.plan import plan_text
from jaxnet.training.prepare import Experiment, prepare
from jaxnet.training.profiling import CompiledStep, ProfileWindow, compile_step, write_programs
from jaxnet.training.records import MetricsWriter, NoMetricsWriter, as_json, write_whole, writing
from jaxnet.training.recovery import Recovery
from jaxnet.training.stopping import StopSignal
from jaxnet.training.summary import kept_summary, summarize
from jaxnet.training.watchdog import Watchdog
from jaxnet.training.workdir import Fence, finished, opened


class Run(NamedTuple):
    """A run before its first step; `alarm` ends a process that hangs, `ledger` accounts for all its time."""

    config: Config
    workdir: Path
    alarm: Watchdog
    ledger: Ledger
    place: ProcessGroup
    source: Source
    inputs: Inputs
    experiment: Experiment
    fence: Fence
    checkpoints: FaultTolerantCheckpoints
    beginning: Beginning
    step: CompiledStep
    evaluate: Evaluate


def train(
    config: Config,
    workdir: Path,
    *,
    allow_config_change: bool = False,
    quiet: bool = False,
    alarm: Watchdog | None = None,
    ledger: Ledger | None = None,
) -> dict[str, Any]:
    """Train as `config` says; returns the summary that is also written to `<workdir>/summary.json`.

    `alarm`, which ends a process that hangs, and a `ledger` of all its time, are for who owns the process.
    """
    started = time.perf_counter()
    with ExitStack() as during:
        watching = alarm or Watchdog(config.watchdog), ledger or Ledger()
        run = ready(during, config, workdir, *watching, allow_config_change=allow_config_change)
        return end(run, *loop(run, quiet), started, quiet)


def ready(
    during: ExitStack, config: Config, workdir: Path, alarm: Watchdog, ledger: Ledger, *, allow_config_change: bool
) -> Run:
    """All that comes before the first step; what is entered into `during` lasts until the end."""
    # ---- Processes and mesh -------------------------------------------------------------------------------
    place = meet(config)

    # ---- Data: a batch is a function of (seed, step) ------------------------------------------------------
    source, test_source = open_split(config.data, "train"), open_split(config.data, "test")

    # ---- Model, optimizer, strategy, step: shapes and functions, no arrays yet ----------------------------
    experiment = prepare(config, place.mesh, source, test_source)

    # ---- Workdir: held by this run alone; what was compiled before lies there -----------------------------
    fence = during.enter_context(opened(workdir, config, place, ledger, allow_config_change=allow_config_change))

    # ---- State: restored from the newest good checkpoint, or made on the mesh -----------------------------
    checkpoints = open_checkpoints(config, workdir, place, fence)
    during.enter_context(finished(checkpoints, place, alarm))
    beginning = begin(config, experiment, place, checkpoints)
    for warning in recipe_warnings(config, source.image_shape, experiment.steps_per_epoch, experiment.total_steps):
        if place.primary:
            say_warning(warning)

    # ---- Step: compiled once for each size of images, and checked against the plan ------------------------
    step = compile_step(experiment, beginning.state, place, ledger)

    # ---- Evaluation: every example of the test split, once ------------------------------------------------
    evaluate = make_evaluate(config, experiment, place, test_source)

    given = config, workdir, alarm, ledger
    return Run(*given, place, source, inputs_of(test_source), experiment, fence, checkpoints, beginning, step, evaluate)


def loop(run: Run, quiet: bool) -> tuple[Outcome, PeerReport]:
    """All steps, as far as the last or a signal."""
    # ---- Loop: batch, step, log, evaluate, save, stop on a signal -----------------------------------------
    config, experiment, workdir, place, ledger = run.config, run.experiment, run.workdir, run.place, run.ledger
    first_step, primary, ranks = run.beginning.step, place.primary, place.cluster.mpi
    goes_on = first_step < experiment.total_steps
    if primary and (goes_on or not (workdir / "config.json").exists()):
        write_whole(workdir / "config.json", to_json(config))
    written = (
        MetricsWriter(workdir, tensorboard=config.log.tensorboard, fence=run.fence) if primary else NoMetricsWriter()
    )
    with (
        closing(written) as records,
        Display(experiment.total_steps, first_step, silent=quiet or not primary, bar=not ranks) as display,
        closing(stream(config, experiment, place, run.source, first_step)) as batches,
    ):
        display.say(to_json(config) if run.beginning.fresh else f"continuing {workdir} from step {first_step}")
        if run.beginning.weights:
            display.say(run.beginning.weights)
        if not goes_on:
            display.say(f"nothing to train: this config ends at step {experiment.total_steps}")
        display.say(plan_text(experiment, place.mesh, run.step.check))
        if not run.step.check.ok:
            display.say(f"warning: {run.step.check.explain()}")
        if config.log.hlo and primary:
            write_programs(workdir, run.step.given, run.step.made)
        gathered = [ranks.all_gather_object] if ranks else []
        peers = Peers(place.cluster, run.source, ledger, display.say)
        steps = Loop(
            config,
            experiment,
            run.step.run,
            run.evaluate,
            run.checkpoints,
            records,
            display,
            ProfileWindow(config.profile, workdir, place.shard.index),
            run.inputs,
            StopSignal(ranks.flag() if ranks else None),
            Recovery(config.guard, experiment, run.checkpoints, run.beginning.met, display.say, *gathered),
            run.alarm,
            ledger,
            peers,
        )
        ledger.began(first_step)
        outcome = steps.run(run.beginning.state, batches, first_step, owes_evaluation=run.beginning.owes_evaluation)
    ledger.enter("other")
    return outcome, peers.gather()


def end(run: Run, outcome: Outcome, met: PeerReport, started: float, quiet: bool) -> dict[str, Any]:
    """All that comes after the last step."""
    # ---- Summary ------------------------------------------------------------------------------------------
    run.checkpoints.close()
    path, first_step = run.workdir / "summary.json", run.beginning.step
    if outcome.step == first_step:  # there was nothing left to train
        total = run.experiment.total_steps
        if kept := run.place.told(lambda: kept_summary(path, first_step, total)):
            return kept
    if not outcome.evaluation and outcome.signal is None:
        outcome = outcome._replace(evaluation=run.evaluate(outcome.state))
    summary = summarize(run.config, run.experiment, run.place, outcome, first_step, met)
    summary["seconds"] = time.perf_counter() - started
    summary["not_saved"] = run.checkpoints.unsaved
    account = run.ledger.close()
    if account and not quiet:
        say(ending_text(account), sys.stdout)
    if run.place.primary:
        with writing(path):
            run.fence()
        write_whole(path, as_json(summary, indent=2) + "\n")
        if not quiet and (table := ensemble_table(summary)):
            say(table, sys.stdout)
    return summary


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
    with Watchdog(config.watchdog, noted(os.environ)) as alarm:
        summary = train(
            config,
            args.workdir or Path("runs") / Path(args.config).stem,
            allow_config_change=args.allow_config_change,
            alarm=alarm,
            ledger=Ledger(process_start()),
        )
    if start().process_index == 0:  # the processes have been joined above
        say(as_json(summary), sys.stdout)
    if summary.get("not_saved"):
        raise InputError(f"the last checkpoint is missing: {summary['not_saved']}")
    return 0


if __name__ == "__main__":
    show_warnings()
    exit_cleanly(main, leave)
