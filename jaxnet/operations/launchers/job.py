"""What every launcher takes from the user: its options, the command after `--`, the variables of the job."""

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from jaxnet.cluster.environment import BIND, COORDINATOR, COUNT, INDEX
from jaxnet.command_line import Commands, Parser, devices_here, not_negative
from jaxnet.errors import InputError

PORT = 12321
"""Where process 0 listens, on hosts that serve one job at a time, unless the user names another port."""

HOSTFILE = "a file with one host a line: HOST [user=U] [port=P] [slots=N]"
"""The help of `--hostfile`."""


# ---- Options --------------------------------------------------------------------------------------------


def new_kind(kinds: Commands, name: str, brief: str, description: str, run: Callable[..., int]) -> Parser:
    """Add the sub-command `jaxnet launch NAME`; `description` ends with its examples, after a line `examples:`."""
    about, _, examples = description.partition("examples:\n")
    parser = kinds.add_parser(
        name,
        help=brief,
        usage=f"jaxnet launch {name} [OPTIONS] -- COMMAND...",
        description=about.strip(),
        epilog="examples:\n" + examples.rstrip(),
    )
    parser.set_defaults(run=run)
    return parser


def add_devices(parser: Parser) -> None:
    """Add `--devices-per-process`."""
    parser.add_argument(
        "--devices-per-process", type=devices_here, metavar="D", help="let each process emulate D devices on the CPU"
    )


def add_max_restarts(parser: Parser) -> None:
    """Add `--max-restarts`."""
    parser.add_argument(
        "--max-restarts",
        type=not_negative,
        default=0,
        metavar="R",
        help="start all again after a failure, at most R times without a new checkpoint between; default 0",
    )


def check_fewest(what: str, fewest: int | None, there: int, max_restarts: int) -> None:
    """Refuse a `--min-WHAT` that cannot act: without restarts, or above how many there are."""
    if fewest is None:
        return
    if max_restarts == 0:
        raise InputError(f"--min-{what} {fewest}: give --max-restarts too; without it nothing starts again")
    if fewest > there:
        raise InputError(f"--min-{what} {fewest}: there are {there} {what}; wanted at most that many")


def add_job_options(parser: Parser, printed: str) -> None:
    """Add what every kind for other hosts ends with: `--env`, `--dry-run` (which shows `printed`) and the command."""
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="give the job this variable, with its value here unless VALUE is given; may be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help=f"print {printed} and start nothing")
    add_command(parser)


def add_command(parser: Parser) -> None:
    """Add the command, which `command_of` returns."""
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="after --: a .py file, jaxnet, or a program"
    )


def command_of(args: argparse.Namespace) -> list[str]:
    """The command as the user gave it, without the `--` before it."""
    words: list[str] = args.command
    return words[1:] if words[:1] == ["--"] else words


def show(text: str) -> int:
    """Print what `--dry-run` shows; return the exit status."""
    print(text, end="")
    return 0


# ---- The command ----------------------------------------------------------------------------------------


def whole_command(command: Sequence[str], python: str) -> list[str]:
    """The command to execute on the hosts, whose interpreter is `python`: it runs .py files and `jaxnet`.

    The interpreter stands in for the program `jaxnet` because a remote shell rarely has a virtual environment's
    programs on its PATH.

    >>> whole_command(["train.py", "seed=1"], "/usr/bin/python3")
    ['/usr/bin/python3', 'train.py', 'seed=1']
    >>> whole_command(["jaxnet", "doctor"], "/usr/bin/python3")
    ['/usr/bin/python3', '-m', 'jaxnet', 'doctor']
    """
    if not command:
        raise InputError("no command to launch; give it after --, as in -- jaxnet train --config configs/digits.py")
    if command[0] == "jaxnet":
        return [python, "-m", *command]
    return [python, *command] if command[0].endswith(".py") else list(command)


def find_command(command: Sequence[str]) -> list[str]:
    """The command to execute on this machine. A file must exist, and a program must be on the PATH."""
    program, *arguments = whole = whole_command(command, sys.executable)
    if program != sys.executable:
        found = shutil.which(program)
        if found is None:
            raise InputError(f"no such program: {program}; give a Python file or a program on the PATH")
        return [found, *arguments]
    if command[0].endswith(".py") and not Path(command[0]).is_file():
        raise InputError(
            f"no such file: {command[0]} (looked for from {Path.cwd()}); give the path of a file, or train without one:"
            " -- jaxnet train --config FILE"
        )
    return whole


# ---- Variables ------------------------------------------------------------------------------------------

PASSED = (
    "GLIBC_TUNABLES",
    "JAXNET_HEARTBEAT_SECONDS",
    "JAXNET_NETWORK_INTERFACE",
    "JAXNET_TLS_CA",
    "JAXNET_TLS_CERT",
    "JAXNET_TLS_KEY",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_NUM_CPU_DEVICES",
    "JAX_PLATFORMS",
    "LIBTPU_INIT_ARGS",
    "NCCL_*",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)
"""The variables passed on unasked to hosts that share this one's files. All others need `--env`.

A name that ends with * stands for all that begin so.
"""

_SET_BY_LAUNCHERS = (COORDINATOR, COUNT, INDEX, BIND)


def passed_environment(
    environ: Mapping[str, str], asked: Sequence[str], unasked: Sequence[str] = (), devices: int | None = None
) -> dict[str, str]:
    """The variables of the job, sorted by name.

    Args:
        environ: the variables here.
        asked: the values of `--env`: NAME, whose value comes from `environ`, or NAME=VALUE.
        unasked: names, or patterns of names, passed on where `environ` has them.
        devices: CPU devices that each process emulates; None: JAX's default.
    """
    kept = (name for name in environ if any(fnmatchcase(name, pattern) for pattern in unasked))
    own = {name: environ[name] for name in kept} | {"PYTHONUNBUFFERED": "1"}
    own |= emulated_devices(own, devices)
    for text in asked:
        name, given, value = text.partition("=")
        _check_name(name, text)
        if not given and name not in environ:
            raise InputError(f"--env {name}: there is no such variable here; set it, or give --env {name}=VALUE")
        own[name] = value if given else environ[name]
    return dict(sorted(own.items()))


def emulated_devices(environ: Mapping[str, str], devices: int | None) -> dict[str, str]:
    """The variables by which a process emulates that many CPU devices; none for None.

    >>> emulated_devices({}, 4)
    {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '4'}
    """
    if devices is None:
        return {}
    # Unless the user chose a platform, name the CPU: JAX prefers an accelerator where a host has one.
    return {"JAX_PLATFORMS": environ.get("JAX_PLATFORMS", "cpu"), "JAX_NUM_CPU_DEVICES": str(devices)}


def _check_name(name: str, text: str) -> None:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        raise InputError(f"--env {text}: wanted NAME or NAME=VALUE, with a name of letters, digits and _")
    if name in _SET_BY_LAUNCHERS:
        raise InputError(f"--env {name}: the launcher sets that one, for each process; leave it out")


# ---- Words that cannot be quoted ------------------------------------------------------------------------
#
# An `#SBATCH` line and a name in Kubernetes have no quoting, so such values are refused unless they need none.


def check_label(flag: str, text: str, longest: int = 63) -> str:
    """Return `text` if it is a DNS label (RFC 1123), as names in Kubernetes and of TPUs must be.

    >>> check_label("--name", "digits-2")
    'digits-2'
    """
    if not re.fullmatch("[a-z0-9]([a-z0-9-]*[a-z0-9])?", text) or len(text) > longest:
        raise InputError(
            f"{flag} {text}: wanted at most {longest} lower-case letters, digits and -, with neither end a -"
        )
    return text


def check_word(flag: str, text: str) -> str:
    """Return `text` if it needs no quoting anywhere and is no option: a name, a time, a size.

    >>> check_word("--time", "1-12:00:00")
    '1-12:00:00'
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.,:/@+=%\[\]-]*", text, re.ASCII):
        raise InputError(f"{flag} {text!r}: wanted letters, digits and any of _ . , : / @ + = % [ ] - alone")
    return text
