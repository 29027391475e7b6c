"""The hosts of a job, as users write them in a list or a file."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxnet.errors import InputError

_NAME = r"(?:\[[0-9a-fA-F:.]+(?:%[A-Za-z0-9_.-]+)?\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)"
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*"
_MOST_SLOTS = 1024


@dataclass(frozen=True)
class Host:
    """A host of a job.

    Attributes:
        name: how to reach it.
        user: who logs in; None: as ssh's own configuration says.
        port: of its ssh server; None likewise.
        slots: how many processes run there.
    """

    name: str
    user: str | None = None
    port: int | None = None
    slots: int = 1


def parse_list(text: str, number: str = "port") -> list[Host]:
    """Hosts from `[USER@]HOST[:NUMBER],...`, where `number` says what the number is: `port` or `slots`.

    >>> parse_list("node1,ada@node2:2222")
    [Host(name='node1', user=None, port=None, slots=1), Host(name='node2', user='ada', port=2222, slots=1)]
    >>> parse_list("node1:4", number="slots")
    [Host(name='node1', user=None, port=None, slots=4)]
    """
    return _different([_parse_host(part, "--hosts", number) for part in text.split(",")], "--hosts")


def read_file(path: Path) -> list[Host]:
    """Hosts from a file with one host a line: `HOST [user=U] [port=P] [slots=N]`. A `#` starts a comment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--hostfile {path}: {getattr(error, 'strerror', None) or error}") from None
    hosts = []
    for count, line in enumerate(lines, start=1):
        if words := line.partition("#")[0].split():
            hosts.append(_parse_line(words, f"{path}:{count}"))
    if not hosts:
        raise InputError(f"--hostfile {path}: there is no host in it; write one a line")
    return _different(hosts, f"--hostfile {path}")


def _parse_line(words: Sequence[str], where: str) -> Host:
    host = _parse_host(words[0], where, "port")
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "user" and re.fullmatch(_USER, value, re.ASCII):
            host = replace(host, user=value)
        elif key in _NUMBERS:
            host = _NUMBERS[key](host, value, where)
        else:
            raise InputError(f"{where}: {word!r} is not one of user=U, port=P and slots=N")
    return host


def _parse_host(text: str, where: str, number: str) -> Host:
    found = re.fullmatch(rf"(?:({_USER})@)?({_NAME})(?::(.*))?", text.strip(), re.ASCII)
    if not found:
        raise InputError(f"{where}: {text!r} is no host; wanted [USER@]HOST[:{number.upper()}], as in ada@node1")
    host = Host(found[2].strip("[]"), found[1])
    return host if found[3] is None else _NUMBERS[number](host, found[3], where)


def _with_port(host: Host, text: str, where: str) -> Host:
    if not (_is_number(text) and 0 < int(text) < 65536):
        raise InputError(f"{where}: the port of {host.name} is {text!r}; wanted a number from 1 to 65535")
    return replace(host, port=int(text))


def _with_slots(host: Host, text: str, where: str) -> Host:
    if not (_is_number(text) and 0 < int(text) <= _MOST_SLOTS):
        raise InputError(f"{where}: the slots of {host.name} are {text!r}; wanted a number from 1 to {_MOST_SLOTS}")
    return replace(host, slots=int(text))


def _is_number(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None


_NUMBERS: dict[str, Callable[[Host, str, str], Host]] = {"port": _with_port, "slots": _with_slots}


def _different(hosts: list[Host], where: str) -> list[Host]:
    seen: set[tuple[str, int | None]] = set()
    for host in hosts:
        if (host.name, host.port) in seen:
            raise InputError(f"{where}: {host.name} is there twice; give it once, with slots for several processes")
        seen.add((host.name, host.port))
    return hosts
