"""Writing YAML: mappings, lists, numbers, booleans and strings, which any parser reads back as they were."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Words that no version of YAML takes for anything but a string; the rest is quoted.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_/.-]*")
_NOT_STRINGS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}
# What JSON leaves as it is and YAML does not allow, takes for the end of a line, or may take for a byte-order mark.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]|[^\x00-\uffff]")
_BLOCK_LINE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?|")


def to_yaml(value: Any) -> str:
    """The text of a mapping or a list.

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
        return [f"{start} |", *("  " + line if line else "" for line in value.removesuffix("\n").split("\n"))]
    if isinstance(value, (Mapping, list, tuple)) and value:
        return [start, *("  " + line if line else "" for line in _lines(value))]
    return [f"{start} {_scalar(value)}"]


def _item(value: Any) -> list[str]:
    if isinstance(value, (Mapping, list, tuple)) and value:
        first, *rest = _lines(value)
        return [f"- {first}", *("  " + line if line else "" for line in rest)]
    return [f"- {_scalar(value)}"]


def _is_block(value: Any) -> bool:
    """Whether `value` is a text of printable lines, which read best one below the other."""
    if not (isinstance(value, str) and value.endswith("\n") and not value.startswith("\n")):
        return False
    lines = value.removesuffix("\n").split("\n")
    indented = lines[0].startswith(" ")
    return len(lines) > 1 and bool(lines[-1]) and not indented and all(_is_block_line(line) for line in lines)


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
