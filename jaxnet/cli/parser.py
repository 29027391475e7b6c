"""An argument parser whose mistakes are one line, as every other mistake of a user is."""

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxnet.errors import InputError


class Parser(argparse.ArgumentParser):
    """`argparse` with InputError in place of usage dumps, and the nearest name for an unknown sub-command."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)
        self._commands: dict[str, argparse.ArgumentParser] = {}

    def add_commands(self, metavar: str) -> "argparse._SubParsersAction[Parser]":
        """Where sub-commands are added; one of them is then required."""
        commands = self.add_subparsers(metavar=metavar, title="commands", required=True)
        self._commands = commands.choices  # type: ignore[assignment]
        return commands

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As the base class does, after a look at the name of the sub-command."""
        if self._commands and args and not args[0].startswith("-") and args[0] not in self._commands:
            near = difflib.get_close_matches(args[0], self._commands, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(self._commands)}"
            self.error(f"{self.prog} has no command {args[0]!r}; {hint}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise what `exit_cleanly` prints."""
        raise InputError(f"{message} (see {self.prog} --help)")


def positive(text: str) -> int:
    """A whole number of at least 1, for `type=`."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)
