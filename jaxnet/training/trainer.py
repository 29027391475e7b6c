"""Train a model, from a Config to a summary. Reads from top to bottom; the titles of the sections are the architecture.

Run again with the same workdir, it continues from the newest good checkpoint.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from jaxnet.config.check import recipe_warnings
from jaxnet.config.keys import flatten
from jaxnet.config.run import Config
from jaxnet.data import has_classes, inputs_of
from jaxnet.ensembles import ensemble_table
from jaxnet.errors import say
from jaxnet.report.goodput import ending_text
from jaxnet.training.checkpointing import Saver, open_checkpoints, start, written_on_error
from jaxnet.training.display import Display, say_warning
from jaxnet.training.ledger import Ledger
from jaxnet.training.loop import Loop
from jaxnet.training.observer import Observer
from jaxnet.training.peers import Peers
from jaxnet.training.prepare import prepare
from jaxnet.training.profiling import ProfileWindow, compile_step, write_programs
from jaxnet.training.records import MetricsWriter, as_json, write_whole, writing
from jaxnet.training.recovery import Recovery
from jaxnet.training.results import Run
from jaxnet.training.stopping import StopSignal
from jaxnet.training.summary import first_screen, kept_summary, last_screen, summarize
from jaxnet.training.watchdog import Watchdog
from jaxnet.training.workdir import EXPRESSION, opened


def train(
    config: Config,
    workdir: str | Path,
    *,
    observers: Sequence[Observer] = (),
    allow_config_change: bool = False,
    quiet: bool = False,
    watchdog: Watchdog | None = None,
    ledger: Ledger | None = None,
) -> Run:
    """Train as `config` says, in `workdir`; continues what was begun there.

    Args:
        config: the run; see `load_config`.
        workdir: where it writes.
        observers: see every step and every line of metrics, and may stop the run; see `Observer`.
        allow_config_change: continue although the workdir holds a run with another config.
        quiet: print nothing.
        watchdog: ends a process that hangs; for who owns the process, as the command line does.
        ledger: accounts for all time of the process, from before this call; likewise.

    Raises:
        InputError: the config or the workdir cannot be used; the message says what to change.
    """
    began = time.perf_counter()
    workdir = Path(workdir)
    watchdog, ledger = watchdog or Watchdog(config.watchdog), ledger or Ledger()
    with ExitStack() as during:
        # ---- Processes, data, model, optimizer, strategy, step: shapes and functions, no arrays yet -----------
        experiment = prepare(config)
        experiment.check_tests()
        processes, source, tests = experiment.processes, experiment.source, experiment.tests
        primary, ranks = processes.primary, processes.cluster.mpi

        # ---- Workdir: held by this run alone; what was compiled before lies there -----------------------------
        fence = during.enter_context(
            opened(workdir, config, processes, ledger, allow_config_change=allow_config_change)
        )

        # ---- State: restored from the newest good checkpoint, or made on the mesh -----------------------------
        checkpoints = open_checkpoints(experiment, workdir, fence)
        during.enter_context(written_on_error(checkpoints, processes, watchdog.begins))
        begins = start(experiment, checkpoints)
        first_step, unfinished = begins.step, begins.step < experiment.total_steps

        if primary:
            for warning in recipe_warnings(config, source, experiment.steps_per_epoch, experiment.total_steps):
                say_warning(warning)

        # ---- Step: compiled once for each size of images, and checked against the plan ------------------------
        step = compile_step(experiment, begins.state, ledger)

        # ---- What a person sees, and what is written ----------------------------------------------------------
        if primary:
            if unfinished or not (workdir / "config.json").exists():
                settings = {**flatten(config), EXPRESSION: experiment.strategy.expression}
                write_whole(workdir / "config.json", as_json(settings, indent=2) + "\n")
            if config.log.hlo:
                write_programs(workdir, step.given, step.made)
        silent = quiet or not primary
        display = Display(experiment.total_steps, first_step, silent=silent, bar=not ranks)
        during.enter_context(display)
        display.say(first_screen(experiment, tests, begins, step, workdir))

        # ---- Observers: they watch the steps, and compute none ------------------------------------------------
        peers = Peers(processes.cluster, source, ledger, display.say)
        gathered = [ranks.all_gather_object] if ranks else []
        guard = Recovery(config.guard, experiment, checkpoints, begins.guard, display.say, *gathered)
        saver = Saver(
            experiment, checkpoints, inputs_of(tests) if has_classes(tests) else None, lambda: guard.past, ledger
        )
        profile = ProfileWindow(config.profile, workdir, processes.shard.index)
        watching: list[Observer] = [profile, display, watchdog, ledger, peers, saver, *observers]
        if primary:
            metrics = MetricsWriter(workdir, tensorboard=config.log.tensorboard, fence=fence)
            watching.insert(0, during.enter_context(closing(metrics)))

        # ---- Loop: batch, step, log, guard, evaluate, save, stop on a signal ----------------------------------
        def evaluated(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            result, damaged = experiment.evaluate(state), peers.gather().damaged
            return result, {"damaged_records": damaged} if damaged else {}

        loop = Loop(experiment, step.run, evaluated, saver.save, guard, watching)
        ledger.began(first_step)
        with closing(experiment.batches(first_step)) as batches, ledger.during("step"):
            stop = StopSignal(ranks.flag() if ranks else None)
            outcome = loop.run(begins.state, batches, first_step, stop, owes_evaluation=begins.owes_evaluation)
        if outcome.signal is not None:
            display.say(f"stopped by {outcome.signal} after step {outcome.step}; run again to continue")
        ledger.enter("other")
        met = peers.gather()
        checkpoints.close()

        # ---- Summary ------------------------------------------------------------------------------------------
        path = workdir / "summary.json"
        if outcome.step == first_step:  # there was nothing left to train
            total = experiment.total_steps
            if kept := processes.broadcast_object(lambda: kept_summary(path, first_step, total)):
                return Run(config, workdir, kept, experiment, outcome.state, step.check)
        if not outcome.evaluation and outcome.signal is None:
            outcome = outcome._replace(evaluation=experiment.evaluate(outcome.state))
        seconds = time.perf_counter() - began
        summary = summarize(experiment, outcome, first_step, met, seconds=seconds, not_saved=checkpoints.unsaved)
        account = ledger.close()
        if primary:
            with writing(path):
                fence()
            write_whole(path, as_json(summary, indent=2) + "\n")
        display.close()
        if not silent:
            table, goodput = ensemble_table(summary), ending_text(account) if account else ""
            say("\n".join(text for text in (last_screen(summary, workdir), goodput, table) if text), sys.stdout)
        return Run(config, workdir, summary, experiment, outcome.state, step.check)
