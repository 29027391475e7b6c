"""`jaxnet doctor`: find what would stop or spoil a run on these hosts, before it starts."""

import argparse
import functools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jaxnet.command_line import Commands, given_path, positive
from jaxnet.errors import InputError, exit_cleanly, printable

if TYPE_CHECKING:
    from jaxnet.config.run import Config
    from jaxnet.operations.doctor.examine import Examination


_DOCTOR_DESCRIPTION = """\
Check this machine, or, if started as a job would be, all hosts of the job: names, addresses and ports, whether every
rank comes, versions, code, config, clocks, the shared directory, each link between hosts, devices, an all-reduce.
Every step has a time limit, and whoever does not answer is named. Process 0 prints one table, then one line with a
cure for each problem. The exit status is 0 if nothing failed, 1 if something did, and 2 for wrong options."""

_DOCTOR_EXAMPLES = """\
examples:
  jaxnet doctor
  jaxnet doctor --config configs/digits.py --workdir runs/digits
  jaxnet launch local --processes 2 -- jaxnet doctor
  jaxnet launch ssh --hosts node1,node2 -- jaxnet doctor --workdir /shared/run --expect-rate 10gbit
  srun --nodes 2 --ntasks-per-node 1 jaxnet doctor --config configs/imagenet_resnet50.py --json
"""


def add_doctor(commands: Commands) -> None:
    """Add `doctor` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "doctor",
        help="find what would stop a run on these hosts",
        description=_DOCTOR_DESCRIPTION,
        epilog=_DOCTOR_EXAMPLES,
    )
    parser.add_config("a Python file with get_config(), which is run; check that all ranks have the same, and its data")
    parser.add_argument(
        "--workdir",
        type=given_path,
        help="directory of the run; check its free space and that all hosts share it; default with --config: runs/NAME",
    )
    parser.add_argument(
        "--expect-rate", metavar="RATE", help="rate that each link between hosts should have, such as 10gbit"
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=30,
        metavar="SECONDS",
        help="how long to wait for other ranks at each step; default 30",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_overrides()
    parser.set_defaults(run=_run_in_job)


def _run_in_job(args: argparse.Namespace) -> int:
    from jaxnet.cluster.start import leave

    exit_cleanly(lambda: run_doctor(args), leave, verbose=args.verbose)


def run_doctor(args: argparse.Namespace) -> int:
    """Make all checks and print what they found."""
    from jaxnet.operations.doctor.examine import diagnosis_json, diagnosis_text, examine
    from jaxnet.operations.doctor.waiting import any_left

    diagnosis = examine(_examination(args))
    if diagnosis.speaks:
        text = (diagnosis_json if args.json else diagnosis_text)(diagnosis)
        print(printable(text, keep="\n"), flush=True)
    status = 0 if diagnosis.healthy else 1
    if any_left():  # a thread that hangs would keep the process alive
        sys.stderr.flush()
        os._exit(status)
    return status


def _examination(args: argparse.Namespace) -> "Examination":
    from jaxnet.operations.doctor.examine import Examination
    from jaxnet.operations.lab.network import parse_rate

    expected = None if args.expect_rate is None else parse_rate(args.expect_rate, "--expect-rate")
    whole = Examination(workdir=args.workdir, expected=expected, timeout_seconds=args.timeout)
    if args.config is None:
        if args.overrides:
            raise InputError(f"{args.overrides[0]}: this changes a config, and there is none; give one with --config")
        return whole
    from dataclasses import replace

    from jaxnet.config.file import load_config
    from jaxnet.config.keys import flatten
    from jaxnet.training.processes import decoder

    config = load_config(args.config, *args.overrides)
    workdir = args.workdir or Path("runs") / Path(args.config).stem  # as `jaxnet train`
    settings = {key: json.dumps(value) for key, value in flatten(config).items()}
    data = functools.partial(_open_data, config)
    return replace(whole, workdir=workdir, config=settings, installed=decoder(config), data=data)


def _open_data(config: "Config") -> str:
    """Read the last example of each split; return how many examples there are."""
    import numpy as np

    from jaxnet.data import open_split

    said = []
    for split in ("train", "test"):
        source = open_split(config.data, split)
        source.rows(np.arange(source.num_examples)[-1:])
        said.append(f"{source.num_examples:,} examples to {split}")
    return ", ".join(said)
