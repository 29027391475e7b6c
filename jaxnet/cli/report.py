"""`jaxnet report`: where the time of a run went, over all its attempts."""

import argparse
import json
from typing import TYPE_CHECKING

from jaxnet.cli.parser import Parser, given_path
from jaxnet.errors import InputError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]

_DESCRIPTION = """\
Show where the time of a run went, from the ledger in its workdir: start-up, compile, data wait, step, evaluation,
checkpoint; work that was lost and done again, and the time from an attempt's last sign of life to the next start; what
each rank needs for a step, and which of them hold the others up.
goodput = time of steps that were not done again / time since the first start."""

_EXAMPLES = """\
examples:
  jaxnet report runs/digits
  jaxnet report runs/digits --json
"""


def add_parser(commands: "Commands") -> None:
    """Add `report` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "report", help="show where the time of a run went", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    parser.add_argument("workdir", type=given_path, metavar="WORKDIR", help="the directory of a run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the ledger, add up, print."""
    from jaxnet.report.goodput import goodput, goodput_json, goodput_text, read_ledger

    path = args.workdir / "ledger.jsonl"
    try:
        found = goodput(read_ledger(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; wanted the workdir of a run") from error
    print(json.dumps(goodput_json(found), indent=2) if args.json else goodput_text(found))
    return 0
