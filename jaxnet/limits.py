"""What a number in a config may be, said where the field is: `learning_rate: Positive = 0.1`.

    @dataclass(frozen=True)
    class Recipe:
        rate: Positive = 0.1
        steps: Count | None = None

`check_limits` refuses a value beyond its limit and names its key. None is always allowed where the type has it.
"""

import os
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple


class Limit(NamedTuple):
    """What a value must be.

    Attributes:
        wanted: in words, for an error.
        holds: whether a value is.
    """

    wanted: str
    holds: Callable[[Any], bool]

    def __repr__(self) -> str:
        """As `help` shows a type: Annotated[int, at least 1]."""
        return self.wanted


Positive = Annotated[float, Limit("a number above 0", lambda value: value > 0)]
NotNegative = Annotated[float, Limit("at least 0", lambda value: value >= 0)]
Fraction = Annotated[float, Limit("0 to 1", lambda value: 0 <= value <= 1)]
BelowOne = Annotated[float, Limit("at least 0 and below 1", lambda value: 0 <= value < 1)]
Seconds = Annotated[float, Limit("1 to 31536000, a year", lambda value: 1 <= value <= 31_536_000)]
Side = Annotated[int, Limit("1 to 65535, the longest side of a JPEG file", lambda value: 1 <= value <= 65_535)]
Threads = Annotated[int, Limit("1 to 1024, as many as a large machine has cores", lambda value: 1 <= value <= 1024)]
Count = Annotated[int, Limit("at least 1", lambda value: value >= 1)]
Whole = Annotated[int, Limit("at least 0", lambda value: value >= 0)]


def memory_bytes() -> int:
    """Bytes of memory of this machine: what takes more can never be held."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def broken_limit(kind: Any, value: Any) -> str | None:
    """What was wanted of a value of this type, if it is beyond a limit; None if it is within all.

    >>> broken_limit(Count | None, 0), broken_limit(Count | None, None)
    ('at least 1, or none', None)
    """
    if value is None:
        return None
    for limit in _limits(kind):
        if not limit.holds(value):
            return f"{limit.wanted}, or none" if type(None) in typing.get_args(kind) else limit.wanted
    return None


def _limits(kind: Any) -> Iterator[Limit]:
    if typing.get_origin(kind) is Annotated:
        yield from (note for note in kind.__metadata__ if isinstance(note, Limit))
    elif typing.get_origin(kind) in (types.UnionType, typing.Union):
        for part in typing.get_args(kind):
            yield from _limits(part)


def without_limits(kind: Any) -> Any:
    """The type alone.

    >>> without_limits(Count | None)
    int | None
    """
    if typing.get_origin(kind) is Annotated:
        return kind.__origin__
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        parts = [without_limits(part) for part in typing.get_args(kind)]
        plain = parts[0]
        for part in parts[1:]:
            plain = plain | part
        return plain
    return kind
