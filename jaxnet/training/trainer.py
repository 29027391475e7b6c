"""Train a model, from a Config to a summary. Reads from top to bottom; the titles of the sections are the architecture.

Run again with the same workdir, it continues from the newest good checkpoint.
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from jaxnet.cluster.told import told
from jaxnet.comm import platform_of
from jaxnet.config.check import recipe_warnings
from jaxnet.config.keys import flatten
from jaxnet.config.run import Config
from jaxnet.data import has_classes, inputs_of
from jaxnet.ensembles import ensemble_table
from jaxnet.errors import InputError, say, shown
from jaxnet.object_storage.store import remote_url
from jaxnet.report.goodput import ending_text
from jaxnet.training.best import BestEvaluation
from jaxnet.training.checkpointing import Saver, begins_anew, newest, open_checkpoints, start, written_on_error
from jaxnet.training.display import Display, say_warning
from jaxnet.training.ledger import Ledger
from jaxnet.training.loop import Loop
from jaxnet.training.observer import Observer
from jaxnet.training.peers import Peers
from jaxnet.training.prepare import prepare
from jaxnet.training.profiling import ProfileWindow, compiling, write_programs
from jaxnet.training.records import MetricsWriter, as_json, has_settings, write_whole, writing
from jaxnet.training.recovery import Recovery
from jaxnet.training.results import Run
from jaxnet.training.stopping import StopSignal
from jaxnet.training.summary import first_screen, kept_summary, last_screen, plan_record, summarize
from jaxnet.training.trackers import tracking
from jaxnet.training.watchdog import Watchdog
from jaxnet.training.workdir import CHOICE, EXPRESSION, last_choice, opened


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
        workdir: where it writes: a directory, or gs://BUCKET/NAME or s3://BUCKET/NAME.
        observers: see every step and every line of metrics, and may stop the run; see `Observer`.
        allow_config_change: continue although the workdir holds a run with another config.
        quiet: print nothing.
        watchdog: ends a process that hangs; for who owns the process, as the command line does.
        ledger: accounts for all time of the process, from before this call; likewise.

    Raises:
        InputError: the config or the workdir cannot be used; the message says what to change.
    """
    began = time.perf_counter()
    if not isinstance(config, Config):
        raise InputError(f"train: got {shown(config)}, wanted a Config; jaxnet.load_config(FILE) makes one of a file")
    remote_url(workdir)  # refuses a URL that is none of a run, before anything is done
    watchdog, ledger = watchdog or Watchdog(config.watchdog), ledger or Ledger()
    with ExitStack() as during:
        # ---- Processes, data, model, optimizer, strategy, step: shapes and functions, no arrays yet -----------
        experiment = prepare(config, kept_choice=lambda: last_choice(workdir))
        experiment.check_tests()
        experiment.check_programs()
        if begins_anew(workdir):
            experiment.check_initial_weights()
        settings = {**flatten(config), EXPRESSION: experiment.strategy.expression}
        if experiment.choice:
            settings[CHOICE] = experiment.choice._asdict()
        warnings = list(recipe_warnings(config, experiment.source, experiment.steps_per_epoch, experiment.total_steps))
        processes, source, tests = experiment.processes, experiment.source, experiment.tests
        primary, ranks = processes.primary, processes.cluster.mpi
        if processes.cluster.process_count > 1 and not ranks:
            told.notice()  # from here on SIGTERM ends a run in order; before, and without the trainer, at once

        # ---- Workdir: held by this run alone; what was compiled before lies there -----------------------------
        place = during.enter_context(
            opened(workdir, config, processes, ledger, watchdog.begins, allow_config_change=allow_config_change)
        )
        directory, fence, watchdog.before_leaving = place.path, place.fence, place.sent

        # ---- State: restored from the newest good checkpoint, or made on the mesh while the step is compiled --
        checkpoints = open_checkpoints(experiment, place)
        during.enter_context(written_on_error(checkpoints, processes, watchdog.begins))
        restored = newest(experiment, checkpoints)
        compiled = compiling(experiment, during.enter_context(ThreadPoolExecutor(1, "compile")))
        begins = start(experiment, restored)
        best = BestEvaluation(config.task, config.early_stopping, begins.best)
        first_step, ended = begins.step, best.ended
        unfinished = begins.step < experiment.total_steps and not ended

        if primary:
            for warning in warnings:
                say_warning(warning)
        step = compiled(begins.state, ledger)

        # ---- What a person sees, and what is written ----------------------------------------------------------
        if primary:
            if unfinished or not has_settings(directory / "config.json"):
                write_whole(directory / "config.json", as_json(settings, indent=2) + "\n")
                write_whole(directory / "plan.json", as_json(plan_record(experiment)) + "\n")
            if config.log.hlo:
                write_programs(directory, step.given, step.made)
        silent = quiet or not primary
        display = Display(experiment.total_steps, first_step, silent=silent, bar=not ranks)
        during.enter_context(display)
        display.say(first_screen(experiment, begins, best, step, place.name))

        # ---- Observers: they watch the steps, and compute none ------------------------------------------------
        peers = Peers(processes.cluster, source, ledger, display.say, platform_of(processes.mesh))
        gathered = [ranks.all_gather_object] if ranks else []
        guard = Recovery(config.guard, experiment, checkpoints, begins.guard, display.say, *gathered)
        inputs = inputs_of(tests) if has_classes(tests) else None
        saver = Saver(experiment, checkpoints, inputs, lambda: guard.past, best, ledger)
        profile = ProfileWindow(config.profile, directory, processes.shard.index)
        watching: list[Observer] = [profile, display, watchdog, ledger, peers, best, saver, *observers]
        if primary:
            metrics = MetricsWriter(directory, tensorboard=config.log.tensorboard, fence=fence)
            watching.insert(0, during.enter_context(closing(metrics)))
            if config.log.trackers:
                begun = tracking(config.log.trackers, directory, Path(place.name).name, settings, display.say)
                watching += during.enter_context(begun)

        # ---- Loop: batch, step, log, guard, evaluate, save, stop on a signal ----------------------------------
        def evaluated(state: Any) -> dict[str, dict[str, Any]]:
            found = {split: experiment.evaluate(state, split) for split in experiment.evaluated_splits}
            damaged = peers.gather().damaged
            return {**found, "test": {**found["test"], **({"damaged_records": damaged} if damaged else {})}}

        loop = Loop(experiment, step.run, evaluated, saver.save, guard, watching)
        ledger.began(first_step)
        with closing(experiment.batches(first_step)) as batches, ledger.during("step"):
            stop = StopSignal(ranks.flag() if ranks else None)
            outcome = loop.run(
                begins.state, batches, first_step, stop, owes_evaluation=begins.owes_evaluation, ended=ended
            )
        if best.ended and outcome.signal == type(best).__name__:
            outcome = outcome._replace(signal=None)  # that is an end, and no interruption
            display.say(f"ended early after step {outcome.step}: {best.reason}")
        finished = outcome.step >= experiment.total_steps or best.ended
        if outcome.signal is not None:
            display.say(f"stopped by {outcome.signal} after step {outcome.step}; run again to continue")
        ledger.enter("other")
        met = peers.gather()
        checkpoints.close()

        # ---- Summary ------------------------------------------------------------------------------------------
        path = directory / "summary.json"
        nothing_left = outcome.step == first_step
        if nothing_left and (
            kept := processes.broadcast_object(lambda: kept_summary(path, first_step, finished=finished))
        ):
            return Run(config, directory, kept, experiment, outcome.state, step.check)
        if not outcome.evaluation and outcome.signal is None:
            outcome = outcome._replace(evaluation=evaluated(outcome.state), evaluated=outcome.step)
        seconds = time.perf_counter() - began
        summary = summarize(experiment, outcome, best, first_step, met, seconds=seconds, not_saved=checkpoints.unsaved)
        account = ledger.close()
        if primary:
            with writing(path):
                fence()
            write_whole(path, as_json(summary, indent=2) + "\n")
        display.close()
        if not silent:
            texts = (ensemble_table(summary), ending_text(account) if account else "", last_screen(summary, place.name))
            say("\n".join(filter(None, texts)), sys.stdout)
        return Run(config, directory, summary, experiment, outcome.state, step.check)
