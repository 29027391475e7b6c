"""An argument parser whose mistakes are one line, as all mistakes of a user are, and the values that options take."""

import argparse
import difflib
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from jaxnet.errors import InputError
from jaxnet.figures import require_matplotlib

_MOST_DEVICES = 1024  # emulated devices cost threads, one set for each
_DEVICES = "JAX_NUM_CPU_DEVICES"


class Parser(argparse.ArgumentParser):
    """An `argparse` parser that raises InputError instead of printing usage, and suggests the nearest known name."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)
        self._commands: dict[str, Parser] = {}
        self._chosen: Parser | None = None
        self._given: Sequence[str] = ()

    def add_commands(self, metavar: str) -> "argparse._SubParsersAction[Parser]":
        """Require a sub-command; return where they are added."""
        commands = self.add_subparsers(metavar=metavar, title="commands", required=True)
        self._commands = commands.choices
        return commands

    def add_config(self, about: str, *, required: bool = False) -> None:
        """Add `--config FILE`, and `--verbose` for the errors of what is in it."""
        self.add_argument("--config", type=given_path, required=required, metavar="FILE", help=about)
        self.add_argument(
            "--verbose", action="store_true", help="show the traceback of an error in FILE or in what it imports"
        )

    def add_pictures(self, about: str) -> None:
        """Add `--png FILE` and `--svg FILE`; what is given lies in `pictures`, for `write_figure`."""
        for kind in ("png", "svg"):
            self.add_argument(
                f"--{kind}", type=_picture(f".{kind}"), action="append", dest="pictures", default=[], metavar="FILE",
                help=about if kind == "png" else "the same as SVG",
            )  # fmt: skip

    def add_picture(self, name: str, about: str) -> None:
        """Add `--NAME FILE` of one more picture, whose form the name of the file tells."""
        self.add_argument(f"--{name}", type=_picture(".png", ".svg"), metavar="FILE", help=about)

    def add_version(self) -> None:
        """Add `--version`."""
        self.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")

    def add_overrides(self) -> None:
        """Add `key.path=value`, any number of times, before, between and after the options."""
        self.add_argument("overrides", nargs="*", metavar="key.path=value", help="change these keys of the config")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse as the base class does, after checking the name of the sub-command."""
        if self._commands and args and not args[0].startswith("-") and args[0] not in self._commands:
            near = difflib.get_close_matches(args[0], self._commands, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(self._commands)}"
            self.error(f"{self.prog} has no command {args[0]!r}; {hint}")
        self._chosen = self._commands.get(args[0]) if args else None
        self._given = args or ()
        namespace, rest = super().parse_known_args(args, namespace)
        if hasattr(namespace, "overrides"):
            # The base class takes a run of positional words from one place only; the rest is left over here.
            namespace.overrides = [*namespace.overrides, *(word for word in rest if not word.startswith("-"))]
            rest = [word for word in rest if word.startswith("-")]
        return namespace, rest

    def error(self, message: str) -> NoReturn:
        """Raise InputError, which `exit_cleanly` prints."""
        if self._chosen is not None:  # the base class reports unknown options on the outermost parser
            self._chosen.error(message)
        if message.startswith("the following arguments are required: --config"):
            message += _config_hint(self._given)
        unknown = re.match("unrecognized arguments: (-[^ =]+)", message)
        near = difflib.get_close_matches(unknown[1], self._option_string_actions, n=1) if unknown else []
        hint = f"; did you mean {near[0]}?" if near else ""
        is_name = unknown and unknown[1].lstrip("-").replace(".", "_").isidentifier()
        if unknown and is_name and not near and any(each.dest == "overrides" for each in self._actions):
            hint = f"; a key of the config is given as {unknown[1].lstrip('-')}=VALUE"
        raise InputError(f"{message}{hint} (see {self.prog} --help)")


def _config_hint(args: Sequence[str]) -> str:
    """What was probably meant by a command line without --config.

    >>> _config_hint(["--confg", "a.py"]), _config_hint(["configs/a.py", "epochs=2"])
    ('; did you mean --config in place of --confg?', '; did you mean --config configs/a.py?')
    """
    for word in args:
        if word.startswith("-") and difflib.get_close_matches(word, ["--config"], cutoff=0.75):
            return f"; did you mean --config in place of {word}?"
    file = next((word for word in args if word.endswith(".py")), None)
    return f"; did you mean --config {file}?" if file else ""


def show_progress() -> None:
    """On a terminal, show what the logger 'jaxnet.progress' is told: a line on stderr, in place of the one before."""
    progress = logging.getLogger("jaxnet.progress")
    if sys.stderr.isatty() and not progress.handlers:
        progress.propagate = False
        progress.setLevel(logging.INFO)
        handler = logging.StreamHandler()
        handler.terminator = ""
        handler.setFormatter(logging.Formatter("\r\x1b[K%(message)s"))
        progress.addHandler(handler)


def say_progress(words: str) -> None:
    """Show, as `show_progress` does, what is under way."""
    show_progress()
    logging.getLogger("jaxnet.progress").info(words)


def end_progress() -> None:
    """Clear the line, before results are printed; an error clears it by itself."""
    logging.getLogger("jaxnet.progress").info("")


class _Version(argparse.Action):
    """Prints the version. The metadata is read only when asked for, because reading it takes time."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"jaxnet {version('jaxnet')}")
        except PackageNotFoundError:
            raise InputError(
                "jaxnet is not installed, so it has no version: install it, as with make install"
            ) from None
        parser.exit()


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""Where sub-commands are added; `argparse` has no public name for this type."""


# ---- Values of options ---------------------------------------------------------------------------------


def whole(least: int, most: int, why: str) -> Callable[[str], int]:
    """A function that reads a whole number of `least` to `most`, for `type=`; `why` not more.

    >>> whole(1, 65535, "ports end there")("8080")
    8080
    """

    def read(text: str) -> int:
        digits = text if text.isascii() and text.isdigit() else ""
        if not digits or (len(digits) <= _DIGITS and int(digits) < least):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} must be a whole number of at least {least}")
        if len(digits) > _DIGITS or int(digits) > most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} must be a whole number of at most {most}: {why}")
        return int(digits)

    return read


_DIGITS = 30  # Python reads no number of thousands
_MOST = 10**9

positive = whole(1, _MOST, "nothing here counts further")
"""A whole number of at least 1."""

not_negative = whole(0, _MOST, "nothing here counts further")
"""A whole number of at least 0."""

processes_here = whole(1, 1024, "each is a Python with JAX in the memory of one machine")
"""A number of processes on one machine."""

hosts_in_all = whole(1, 100_000, "all are written down, and all call process 0")
"""A number of hosts, or of processes over hosts."""

devices_here = whole(1, _MOST_DEVICES, "each emulated device has threads of its own")
"""A number of devices that a process emulates."""

batch_size = whole(1, 65_536, "a batch lies in memory")
"""A number of examples in a batch."""

image_side = whole(1, 65_535, "no JPEG file has a longer side")
"""The side of an image in pixels."""

port = whole(1, 65_535, "ports end there")
"""The number of a TCP port."""

threads = whole(1, 1024, "no machine has so many cores for one process")
"""A number of threads."""


def given_path(text: str) -> Path:
    """A path, for `type=`; not empty, as an unset shell variable would make it."""
    if not text:
        raise argparse.ArgumentTypeError("wanted a path, got nothing")
    return Path(text)


def _picture(*suffixes: str) -> Callable[[str], Path]:
    """Where a picture is to be written, for `type=`: a name that ends so, in a directory that is there.

    Whether it can be drawn is found here, before anything is measured.
    """

    def parsed(text: str) -> Path:
        path = given_path(text)
        if path.suffix not in suffixes:
            raise argparse.ArgumentTypeError(f"{text!r} must end in {' or '.join(suffixes)}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"there is no directory {path.parent} for {text!r}")
        require_matplotlib()
        return path

    return parsed


def emulate_devices(hosts: int, devices: int) -> None:
    """Have the CPU stand for so many hosts with so many devices each; call it before any device is used."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", hosts * devices)


def check_device_variable(environ: Mapping[str, str]) -> None:
    """Refuse a number of emulated devices that JAX cannot read, or make; call it before JAX is imported."""
    text = environ.get(_DEVICES, "-1")  # JAX's own default
    if text == "-1":
        return
    try:
        devices_here(text)
    except argparse.ArgumentTypeError as error:
        raise InputError(f"{_DEVICES}: {error}; unset it, and JAX takes what there is") from error


def mesh_sizes(text: str) -> tuple[int, int]:
    """HOSTSxDEVICES, such as 2x4, for `type=`."""
    sizes = text.split("x")
    if len(sizes) != 2 or not all(size.isascii() and size.isdigit() for size in sizes):
        raise InputError(f"--mesh {text}: wanted HOSTSxDEVICES, such as 2x4")
    hosts, devices = map(int, sizes)
    if not 1 <= hosts * devices <= _MOST_DEVICES:
        raise InputError(f"--mesh {text}: wanted 1 to {_MOST_DEVICES} devices in all")
    return hosts, devices
