"""`jaxnet strategies`: the ways in which gradients can travel."""

import argparse
import json
from typing import TYPE_CHECKING

from jaxnet.cli.parser import Parser

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]

_EXAMPLES = """\
examples:
  jaxnet strategies
  jaxnet strategies --json
"""


def add_parser(commands: "Commands") -> None:
    """Add `strategies` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "strategies", help="list the communication strategies", description=__doc__, epilog=_EXAMPLES
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every strategy with its schedule and source."""
    from jaxnet.comm import STRATEGIES

    made = [make() for make in STRATEGIES.values()]
    if args.json:
        rows = [{"name": s.name, "schedule": s.schedule, "summary": s.summary} for s in made]
        print(json.dumps(rows, indent=2))
    else:
        for strategy in made:
            print(f"{strategy.name:<14} {strategy.schedule:<7} {strategy.summary}")
    return 0
