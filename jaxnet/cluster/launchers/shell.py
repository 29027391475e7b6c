"""Parts of the shell scripts that launchers make. Every value in them is quoted."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NoReturn

from jaxnet.cluster.environment import BIND, COORDINATOR, COUNT, INDEX
from jaxnet.errors import InputError

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
