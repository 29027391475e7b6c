"""The `jaxnet` command: each sub-command is a module with `add_parser`, which names what it runs."""

import sys
from collections.abc import Sequence
from typing import NoReturn

from jaxnet.cli import launch, plan, strategies
from jaxnet.cli.parser import Parser
from jaxnet.errors import exit_cleanly

# Modules here must not import JAX before they run: `jaxnet --help` has to answer at once.
_COMMANDS = (launch, plan, strategies)

_EXAMPLES = """\
examples:
  jaxnet launch local --processes 2 -- train.py --config configs/digits.py
  jaxnet launch local --help
  jaxnet plan --config configs/digits.py strategy=hierarchical
  jaxnet strategies
"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    given = sys.argv[1:] if argv is None else argv
    exit_cleanly(lambda: run(given))


def run(argv: Sequence[str]) -> int:
    """Run one command line; the result is the exit status."""
    parser = Parser(
        prog="jaxnet",
        description="Tools around training with jaxnet; training itself is train.py.",
        epilog=_EXAMPLES,
    )
    commands = parser.add_commands("COMMAND")
    for module in _COMMANDS:
        module.add_parser(commands)
    args = parser.parse_args(argv)
    status: int = args.run(args)
    return status
