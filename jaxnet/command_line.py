"""What the kinds of `jaxnet launch` and `jaxnet lab` share: the command after `--`, its variables, `--dry-run`."""

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from jaxnet.errors import InputError

# ---- An argument parser whose mistakes are one line, as every other mistake of a user is --------------


_MOST_DEVICES = 1024  # each is emulated, with threads of its own


class Parser(argparse.ArgumentParser):
    """`argparse` with InputError in place of usage dumps, and the nearest name for an unknown sub-command."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)
        self._commands: dict[str, Parser] = {}
        self._chosen: Parser | None = None

    def add_commands(self, metavar: str) -> "argparse._SubParsersAction[Parser]":
        """Where sub-commands are added; one of them is then required."""
        commands = self.add_subparsers(metavar=metavar, title="commands", required=True)
        self._commands = commands.choices
        return commands

    def add_overrides(self) -> None:
        """Add changes to a config: `key.path=value`, any number, before, between and after the options."""
        self.add_argument("overrides", nargs="*", metavar="key.path=value", help="changes to the config")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As the base class does, after a look at the name of the sub-command."""
        if self._commands and args and not args[0].startswith("-") and args[0] not in self._commands:
            near = difflib.get_close_matches(args[0], self._commands, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(self._commands)}"
            self.error(f"{self.prog} has no command {args[0]!r}; {hint}")
        self._chosen = self._commands.get(args[0]) if args else None
        namespace, rest = super().parse_known_args(args, namespace)
        if hasattr(namespace, "overrides"):
            # The base class takes them from one place alone.
            namespace.overrides = [*namespace.overrides, *(word for word in rest if not word.startswith("-"))]
            rest = [word for word in rest if word.startswith("-")]
        return namespace, rest

    def error(self, message: str) -> NoReturn:
        """Raise what `exit_cleanly` prints."""
        if self._chosen is not None:  # the base class has the outermost parser complain of what none has taken
            self._chosen.error(message)
        unknown = re.match("unrecognized arguments: (-[^ =]+)", message)
        near = difflib.get_close_matches(unknown[1], self._option_string_actions, n=1) if unknown else []
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"{message}{hint} (see {self.prog} --help)")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""Where sub-commands are added; `argparse` has no public name for it."""


def positive(text: str) -> int:
    """A whole number of at least 1, for `type=`."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def given_path(text: str) -> Path:
    """A path that is not empty, as an unset variable of a shell would make it, for `type=`."""
    if not text:
        raise argparse.ArgumentTypeError("wanted a path, got nothing")
    return Path(text)


def mesh_sizes(text: str) -> tuple[int, int]:
    """HOSTSxDEVICES, such as 2x4, for `type=`."""
    sizes = text.split("x")
    if len(sizes) != 2 or not all(size.isascii() and size.isdigit() for size in sizes):
        raise InputError(f"--mesh {text}: wanted HOSTSxDEVICES, such as 2x4")
    hosts, devices = map(int, sizes)
    if not 1 <= hosts * devices <= _MOST_DEVICES:
        raise InputError(f"--mesh {text}: wanted 1 to {_MOST_DEVICES} devices in all")
    return hosts, devices


ENV = "pass this variable on, its value taken from here unless given; may be repeated"
HOSTFILE = "a file with a host a line: HOST [user=U] [port=P] [slots=N]"


def new_kind(kinds: Commands, name: str, brief: str, description: str, run: Callable[..., int]) -> Parser:
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
