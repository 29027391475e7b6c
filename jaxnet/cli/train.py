"""`jaxnet train`: train a model as a config says. `python train.py` is the same."""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from jaxnet.command_line import Commands, Parser, check_device_variable, given_path
from jaxnet.errors import InputError, causes_shown, exit_cleanly, say, show_warnings

_DESCRIPTION = """\
Train a model as a config says; run again with the same workdir, it continues. `jaxnet new FILE` writes a config to
begin with, and `jaxnet strategies` lists how gradients can travel."""

_EXAMPLES = """\
examples:
  {prog} --config configs/digits.py
  {prog} --config configs/digits.py --workdir runs/slow strategy=ddp optimizer.learning_rate=0.0005
  {prog} --config configs/digits.py --json
  JAX_NUM_CPU_DEVICES=8 {prog} --config configs/digits.py      (eight emulated devices)
"""


def add_train(commands: Commands) -> None:
    """Add `train` to the commands of `jaxnet`."""
    examples = _EXAMPLES.format(prog="jaxnet train")
    parser = commands.add_parser("train", help="train a model", description=_DESCRIPTION, epilog=examples)
    _add_arguments(parser)
    parser.set_defaults(run=_run_and_leave)


def _add_arguments(parser: Parser) -> None:
    parser.add_config("a Python file with get_config(), such as configs/digits.py; FILE is run", required=True)
    parser.add_argument(
        "--workdir",
        type=given_path,
        help="where the run writes: a directory, gs://BUCKET/NAME or s3://BUCKET/NAME; default runs/NAME",
    )
    parser.add_argument("--allow-config-change", action="store_true", help="continue a run although its config differs")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, and nothing else")
    parser.add_overrides()


def _run_and_leave(args: argparse.Namespace) -> int:
    """Run as `main` does, and end the process as one of a job must."""
    from jaxnet.cluster.start import leave

    exit_cleanly(lambda: run_train(args), leave, verbose=args.verbose)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of train.py, the process's own by default; the result is the exit status."""
    args = _parsed(sys.argv[1:] if argv is None else argv)
    with causes_shown(args.verbose):
        return run_train(args)


def program() -> NoReturn:
    """Be the program train.py."""
    exit_cleanly(lambda: _run_and_leave(_parsed(sys.argv[1:])))


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="train.py", description=_DESCRIPTION, epilog=_EXAMPLES.format(prog="python train.py"))
    _add_arguments(parser)
    args = parser.parse_args(argv)
    check_device_variable(os.environ)
    return args


def run_train(args: argparse.Namespace) -> int:
    """Train; the result is the exit status."""
    gc.set_threshold(100_000, 20, 20)  # of what is imported and traced, most stays: looking at it often takes 0.2 s

    from jaxnet.cluster.progress import noted, sign_of_life, stopped_status
    from jaxnet.cluster.start import start
    from jaxnet.config.file import load_config
    from jaxnet.training.ledger import Ledger, process_start
    from jaxnet.training.records import as_json
    from jaxnet.training.trainer import train
    from jaxnet.training.watchdog import Watchdog

    show_warnings()
    config = load_config(args.config, *args.overrides)
    if_stopped = stopped_status(os.environ)
    with Watchdog(config.watchdog, noted(os.environ), sign_of_life(os.environ)) as watchdog:
        run = train(
            config,
            args.workdir or Path("runs") / Path(args.config).stem,
            allow_config_change=args.allow_config_change,
            quiet=args.json,
            watchdog=watchdog,
            ledger=Ledger(process_start()),
        )
    if args.json and start().process_index == 0:  # the processes have been joined above
        say(as_json(run.summary), sys.stdout)
    if run.summary.get("not_saved"):
        raise InputError(f"the last checkpoint is missing: {run.summary['not_saved']}")
    return 0 if run.summary["finished"] else if_stopped
