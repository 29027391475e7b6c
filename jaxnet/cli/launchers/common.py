"""What the kinds of `jaxnet launch` and `jaxnet lab` share: the command after `--`, its variables, `--dry-run`."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxnet.cli.parser import Parser, positive

if TYPE_CHECKING:
    Kinds = argparse._SubParsersAction[Parser]

ENV = "pass this variable on, its value taken from here unless given; may be repeated"
HOSTFILE = "a file with a host a line: HOST [user=U] [port=P] [slots=N]"


def new_kind(kinds: "Kinds", name: str, brief: str, description: str, run: Callable[..., int]) -> Parser:
    """Add a kind; `description` ends with its examples, which begin with a line `examples:`."""
    said, _, examples = description.partition("examples:\n")
    parser = kinds.add_parser(
        name,
        help=brief,
        usage=f"jaxnet launch {name} [OPTIONS] -- COMMAND...",
        description=said.strip(),
        epilog="examples:\n" + examples.rstrip(),
    )
    parser.set_defaults(run=run)
    return parser


def add_command(parser: Parser, what_is_shown: str) -> None:
    """Add what comes last: `--env`, `--dry-run` and the command."""
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help=ENV)
    parser.add_argument("--dry-run", action="store_true", help=f"print {what_is_shown}; start nothing")
    add_words(parser)


def add_words(parser: Parser) -> None:
    """Add the command, which `command_of` gives."""
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="after --: a .py file or a program"
    )


def add_devices(parser: Parser) -> None:
    """Add `--devices-per-process`."""
    parser.add_argument(
        "--devices-per-process", type=positive, metavar="D", help="let each process emulate D devices on the CPU"
    )


def command_of(args: argparse.Namespace) -> list[str]:
    """The command as given, without the `--` before it."""
    words: list[str] = args.command
    return words[1:] if words[:1] == ["--"] else words


def not_negative(text: str) -> int:
    """A whole number of at least 0, for `type=`."""
    return 0 if text == "0" else positive(text)


def show(text: str) -> int:
    """Print what `--dry-run` shows."""
    print(text, end="")
    return 0
