"""What every launcher is given: a command, where it runs, and the variables that travel with it."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NoReturn

from jaxnet.cluster.environment import BIND, COORDINATOR, COUNT, INDEX
from jaxnet.errors import InputError

# ---- Parts of the shell scripts that launchers make. Every value in them is quoted --------------------


FORGET = f"unset {COORDINATOR} {COUNT} {INDEX} {BIND}  # those of another job"


def exports(environment: Mapping[str, str]) -> str:
    """One line a variable.

    >>> print(exports({"A": "1", "B": "it's"}))
    export A=1
    export B='it'"'"'s'
    """
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())


def array(name: str, words: Sequence[str]) -> str:
    """A bash array, one word a line; its elements are exactly `words`.

    >>> print(array("command", ["echo", "a b"]))
    command=(
      echo
      'a b'
    )
    """
    return "\n".join([f"{name}=(", *(f"  {_element(word)}" for word in words), ")"])


def _element(word: str) -> str:
    quoted = shlex.quote(word)
    return f"'{word}'" if "," in word and quoted == word else quoted  # bash needs it not; readers and shellcheck do


def task(index: str, count: str) -> str:
    """What each process of the starter runs before the command: its place, from the starter's variables."""
    return (
        "# shellcheck disable=SC2016  # each process expands these, not this script\n"
        f"""task='export {INDEX}="${index}" {COUNT}="${count}"; exec "$@"'"""
    )


def become(script: str) -> NoReturn:
    """Run `script` with bash in the place of this process, which signals then reach."""
    found = need("bash", "install it")
    try:
        os.execv(found, ["bash", "-c", script])
    except OSError as error:
        raise InputError(
            f"cannot run the script ({error.strerror}); --dry-run prints it, to run it from a file"
        ) from None


def feed(text: str, program: str, *arguments: str, missing: str) -> int:
    """Run `program` with `text` as its input; the result is its exit status. `missing` says how to get it."""
    return subprocess.run([need(program, missing), *arguments], input=text, text=True).returncode


def need(program: str, missing: str) -> str:
    """The path of `program`, or an InputError that ends with `missing`."""
    found = shutil.which(program)
    if found is None:
        raise InputError(f"there is no program {program} on the PATH here; {missing}, or print with --dry-run")
    return found


PORT = 12321
"""Where process 0 waits for the others, on a host that is the job's own, unless another is given."""

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
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)
"""The variables that travel unasked to hosts that share this one's files. All others have to be named."""

_SET_BY_LAUNCHERS = (COORDINATOR, COUNT, INDEX, BIND)


def whole_command(command: Sequence[str], python: str) -> list[str]:
    """What to execute on the hosts: a Python file runs with their interpreter `python`.

    >>> whole_command(["train.py", "seed=1"], "/usr/bin/python3")
    ['/usr/bin/python3', 'train.py', 'seed=1']
    """
    if not command:
        raise InputError("no command to launch; give it after --, as in -- train.py --config configs/digits.py")
    return [python, *command] if command[0].endswith(".py") else list(command)


def passed_environment(
    environ: Mapping[str, str], asked: Sequence[str], unasked: Sequence[str] = (), devices: int | None = None
) -> dict[str, str]:
    """The variables of the job, sorted: those of `unasked` that are set, and what `--env` asked for.

    `asked` holds NAME, whose value is taken from `environ`, or NAME=VALUE. With `devices`, each process
    emulates that many CPU devices.
    """
    own = {name: environ[name] for name in unasked if name in environ} | {"PYTHONUNBUFFERED": "1"}
    if devices is not None:
        own["JAX_NUM_CPU_DEVICES"] = str(devices)
        own.setdefault("JAX_PLATFORMS", "cpu")  # else hosts with an accelerator would not use them
    for text in asked:
        name, given, value = text.partition("=")
        _check_name(name, text)
        if not given and name not in environ:
            raise InputError(f"--env {name}: there is no such variable here; set it, or give --env {name}=VALUE")
        own[name] = value if given else environ[name]
    return dict(sorted(own.items()))


def _check_name(name: str, text: str) -> None:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        raise InputError(f"--env {text}: wanted NAME or NAME=VALUE, with a name of letters, digits and _")
    if name in _SET_BY_LAUNCHERS:
        raise InputError(f"--env {name}: the launcher sets that one, for each process; leave it out")


def check_label(flag: str, text: str, longest: int = 63) -> str:
    """`text`, if it is a DNS label (RFC 1123), as names in Kubernetes and of TPUs have to be.

    >>> check_label("--name", "digits-2")
    'digits-2'
    """
    if not re.fullmatch("[a-z0-9]([a-z0-9-]*[a-z0-9])?", text) or len(text) > longest:
        raise InputError(
            f"{flag} {text}: wanted at most {longest} lower-case letters, digits and -, with neither end a -"
        )
    return text


def check_word(flag: str, text: str) -> str:
    """`text`, if it needs no quoting anywhere and is no option: what names, times and sizes are made of.

    >>> check_word("--time", "1-12:00:00")
    '1-12:00:00'
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.,:/@+=%\[\]-]*", text, re.ASCII):
        raise InputError(f"{flag} {text!r}: wanted letters, digits and any of _ . , : / @ + = % [ ] - alone")
    return text
