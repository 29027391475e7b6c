"""Parts of the shell scripts that launchers write, and how a script or manifest is handed to a program.

Every value in a script is quoted, so no word of the user becomes shell.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NoReturn

from jaxnet.cluster.environment import BIND, COORDINATOR, COUNT, INDEX
from jaxnet.cluster.job_token import TOKEN
from jaxnet.errors import InputError

UNSET = f"unset {COORDINATOR} {COUNT} {INDEX} {BIND}  # those of another job"


def setup(directory: str, environment: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Two paragraphs: enter the directory and set the variables; define the array `command`."""
    return [f"cd -- {shlex.quote(directory)}\n{exports(environment)}\n{UNSET}", array("command", command)]


def exports(environment: Mapping[str, str]) -> str:
    """One `export` line for each variable.

    >>> print(exports({"A": "1", "B": "it's"}))
    export A=1
    export B='it'"'"'s'
    """
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())


def array(name: str, words: Sequence[str]) -> str:
    """A bash array whose elements are exactly `words`, one a line.

    >>> print(array("command", ["echo", "a b"]))
    command=(
      echo
      'a b'
    )
    """
    return "\n".join([f"{name}=(", *(f"  {_element(word)}" for word in words), ")"])


def _element(word: str) -> str:
    quoted = shlex.quote(word)
    # Bash needs no quotes around a comma, but a reader or shellcheck could take it for a separator.
    return f"'{word}'" if "," in word and quoted == word else quoted


def new_secret() -> str:
    """Lines that give the job a new token when the script runs; the script itself holds none."""
    return (
        "# A secret by which the processes of this start know each other.\n"
        f"{TOKEN}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')\n"
        f"export {TOKEN}"
    )


def define_task(index: str, count: str, more: Sequence[str] = ()) -> str:
    """Define `task`: it sets a process's place from the starter's variables, runs `more`, then the command."""
    place = f'export {INDEX}="${index}" {COUNT}="${count}"'
    lines = [place, *more, 'exec "$@"']
    task = "".join(f"\n  {line}" for line in lines) if more else "; ".join(lines)
    return f"# shellcheck disable=SC2016  # each process expands these, not this script\ntask='{task}'"


def exec_script(script: str) -> NoReturn:
    """Replace this process by bash running `script`, so that signals reach the script."""
    found = find_program("bash", "install it")
    try:
        os.execv(found, ["bash", "-c", script])
    except OSError as error:
        raise InputError(
            f"cannot run the script ({error.strerror}); --dry-run prints it, to run it from a file"
        ) from None


def feed(text: str, program: str, *arguments: str, cure: str) -> int:
    """Run `program` with `text` as its input and return its exit status; `cure` says how to get the program."""
    return subprocess.run([find_program(program, cure), *arguments], input=text, text=True).returncode


def find_program(program: str, cure: str) -> str:
    """The path of `program`, or an InputError that ends with `cure`."""
    found = shutil.which(program)
    if found is None:
        raise InputError(f"there is no program {program} on the PATH here; {cure}, or print with --dry-run")
    return found
