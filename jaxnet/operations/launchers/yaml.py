"""Write YAML that every parser reads back unchanged: mappings, lists, strings, numbers and booleans.

Kubernetes and SkyPilot need YAML, and a writer is small enough to spare users a dependency. Strings are quoted as in
JSON unless every version of YAML takes them for plain words.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_/.-]*")
_NOT_STRINGS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}
# JSON leaves these as they are. YAML forbids them, ends lines at them, or may take them for a byte-order mark.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]|[^\x00-\uffff]")
_BLOCK_LINE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?|")


def to_yaml(value: Any) -> str:
    """The YAML text of a mapping or a list.

    >>> print(to_yaml({"name": "a", "on": True, "args": ["x: y", "1"], "none": {}}), end="")
    name: a
    "on": true
    args:
      - "x: y"
      - "1"
    none: {}
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [line for key, inner in value.items() for line in _entry(f"{_string(key)}:", inner)]
    return [line for inner in value for line in _item(inner)]


def _entry(start: str, value: Any) -> list[str]:
    if _is_block(value):
        return [f"{start} |", *_indented(value.removesuffix("\n").split("\n"))]
    if isinstance(value, (Mapping, list, tuple)) and value:
        return [start, *_indented(_lines(value))]
    return [f"{start} {_scalar(value)}"]


def _item(value: Any) -> list[str]:
    if isinstance(value, (Mapping, list, tuple)) and value:
        first, *rest = _lines(value)
        return [f"- {first}", *_indented(rest)]
    return [f"- {_scalar(value)}"]


def _indented(lines: Sequence[str]) -> list[str]:
    return ["  " + line if line else "" for line in lines]


def _is_block(value: Any) -> bool:
    """Whether `value` is a text of several printable lines, which read best as a block."""
    if not (isinstance(value, str) and value.endswith("\n") and not value.startswith("\n")):
        return False
    lines = value.removesuffix("\n").split("\n")
    # A block takes its indentation from its first line, and drops empty lines at its end.
    starts_indented = lines[0].startswith(" ")
    return len(lines) > 1 and bool(lines[-1]) and not starts_indented and all(_is_block_line(line) for line in lines)


def _is_block_line(line: str) -> bool:
    return _BLOCK_LINE.fullmatch(line.lstrip(" ")) is not None and line == line.rstrip(" ")


def _scalar(value: Any) -> str:
    if isinstance(value, (Mapping, Sequence)) and not isinstance(value, str):
        return "{}" if isinstance(value, Mapping) else "[]"
    return _string(value) if isinstance(value, str) else json.dumps(value)


def _string(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_STRINGS:
        return text
    return _ESCAPED.sub(lambda found: f"\\U{ord(found[0]):08x}", json.dumps(text, ensure_ascii=False))
