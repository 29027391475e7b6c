"""Read from a trace what `jax.profiler.ProfileData` does not show: the compiled programs, and when it began.

A trace is an XSpace message (xplane.proto of XLA's profiler). It holds every program that ran as an HloProto beside the
program's name, so no other file is needed to understand it.
"""

from collections.abc import Container, Iterator
from typing import NamedTuple

from jaxlib.xla_client import hlo  # type: ignore[attr-defined]

# ---- Protocol buffers -----------------------------------------------------------------------------------

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ProtoMessage:
    """The fields of a serialized message, by number; their content is decoded when it is asked for.

    Raises ValueError for bytes that are no message.

    >>> point = ProtoMessage(b"\\x08\\x96\\x01\\x12\\x02hi")
    >>> point.number(1), point.text(2), point.number(3)
    (150, 'hi', 0)
    """

    def __init__(self, content: bytes | memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        for field, value in _fields(memoryview(content)):
            self._fields.setdefault(field, []).append(value)

    def number(self, field: int) -> int:
        """Return a field's unsigned number; 0 if it is absent."""
        value = self._last(field, 0)
        return value if isinstance(value, int) else 0

    def bytes(self, field: int) -> bytes:
        """Return a field's bytes; none if it is absent."""
        value = self._last(field, memoryview(b""))
        return b"" if isinstance(value, int) else bytes(value)

    def text(self, field: int) -> str:
        """Return a field's text."""
        return self.bytes(field).decode(errors="replace")

    def message(self, field: int) -> "ProtoMessage":
        """Return the message in a field; an empty one if it is absent."""
        return ProtoMessage(self.bytes(field))

    def numbers(self, field: int) -> Iterator[int]:
        """Return the unsigned numbers in a repeated field, packed or not."""
        for value in self._fields.get(field, []):
            if isinstance(value, int):
                yield value
                continue
            place = 0
            while place < len(value):
                number, place = _varint(value, place)
                yield number

    def messages(self, field: int) -> "Iterator[ProtoMessage]":
        """Return the messages in a repeated field."""
        return (ProtoMessage(value) for value in self._fields.get(field, []) if not isinstance(value, int))

    def _last(self, field: int, default: int | memoryview) -> int | memoryview:
        return self._fields.get(field, [default])[-1]


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        if key & 7 == _VARINT:
            value, place = _varint(content, place)
            yield key >> 3, value
            continue
        size, place = _size(content, place, key & 7)
        if place + size > len(content):
            raise ValueError(f"a field of {size} bytes at byte {place} of {len(content)}")
        yield key >> 3, content[place : place + size]
        place += size


def _size(content: memoryview, place: int, wire_type: int) -> tuple[int, int]:
    if wire_type == _BYTES:
        return _varint(content, place)
    if wire_type not in (_FIXED64, _FIXED32):
        raise ValueError(f"no such wire type: {wire_type}, at byte {place}")
    return 8 if wire_type == _FIXED64 else 4, place


def _varint(content: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(content):
        byte = content[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ValueError(f"the message ends within a number, at byte {place}")


# ---- The fields of an XSpace ----------------------------------------------------------------------------

_SPACE_PLANES = 1
_PLANE_NAME, _PLANE_EVENT_METADATA, _PLANE_STAT_METADATA, _PLANE_STATS = 2, 4, 5, 6
_ENTRY_VALUE = 2
_METADATA_ID, _METADATA_NAME, _METADATA_STATS = 1, 2, 5
_STAT_METADATA_ID, _STAT_UINT64, _STAT_BYTES = 1, 3, 6
_HLO_MODULE = 1
_MODULE_COMPUTATIONS = 3
_COMPUTATION_INSTRUCTIONS, _COMPUTATION_ID, _COMPUTATION_ROOT = 2, 5, 6
_INSTRUCTION_NAME, _INSTRUCTION_OPCODE, _INSTRUCTION_ID, _INSTRUCTION_CALLED = 1, 2, 35, 38


class KeptProgram(NamedTuple):
    """A compiled program as a trace keeps it.

    Attributes:
        text: its optimized HLO.
        starts: the instruction that starts an operation, by the name that a GPU's trace gives the operation: that of
            the root of the computation that `async-start` calls, which the text leaves out.
    """

    text: str
    starts: dict[str, str]


def read_start(content: bytes) -> int:
    """When a serialized XSpace began, in nanoseconds of the host's clock since 1970; 0 if it does not say.

    Raises ValueError if `content` is none.
    """
    return max((_start(plane) for plane in _planes(content, "Task Environment")), default=0)


def read_programs(content: bytes, names: Container[str]) -> dict[str, KeptProgram]:
    """These programs, by `name(program id)`; a trace holds all that its process has loaded.

    Raises ValueError if `content` is no XSpace.
    """
    return {name: kept for plane in _planes(content, "/host:metadata") for name, kept in _programs(plane, names)}


def _planes(content: bytes, name: str) -> Iterator[ProtoMessage]:
    return (plane for plane in ProtoMessage(content).messages(_SPACE_PLANES) if plane.text(_PLANE_NAME) == name)


def _programs(plane: ProtoMessage, names: Container[str]) -> Iterator[tuple[str, KeptProgram]]:
    stat_names = _stat_names(plane)
    for entry in plane.messages(_PLANE_EVENT_METADATA):
        program = entry.message(_ENTRY_VALUE)
        name = program.text(_METADATA_NAME)
        for stat in program.messages(_METADATA_STATS) if name in names else ():
            if stat_names.get(stat.number(_STAT_METADATA_ID)) == "Hlo Proto":
                module = stat.message(_STAT_BYTES).bytes(_HLO_MODULE)
                text = hlo.HloModule.from_serialized_hlo_module_proto(module).to_string()
                yield name, KeptProgram(text, dict(_starts(module)))


def _starts(module: bytes) -> Iterator[tuple[str, str]]:
    """The name of the root of each computation that an `async-start` calls, and the name of the start."""
    if b"async-start" not in module:
        return
    roots, starts = {}, []
    for computation in ProtoMessage(module).messages(_MODULE_COMPUTATIONS):
        for instruction in computation.messages(_COMPUTATION_INSTRUCTIONS):
            if instruction.number(_INSTRUCTION_ID) == computation.number(_COMPUTATION_ROOT):
                roots[computation.number(_COMPUTATION_ID)] = instruction.text(_INSTRUCTION_NAME)
            if instruction.text(_INSTRUCTION_OPCODE) == "async-start":
                starts.append(instruction)
    for start in starts:
        yield from ((roots[called], start.text(_INSTRUCTION_NAME)) for called in start.numbers(_INSTRUCTION_CALLED))


def _start(plane: ProtoMessage) -> int:
    names = _stat_names(plane)
    stats = {names.get(stat.number(_STAT_METADATA_ID)): stat for stat in plane.messages(_PLANE_STATS)}
    return stats["profile_start_time"].number(_STAT_UINT64) if "profile_start_time" in stats else 0


def _stat_names(plane: ProtoMessage) -> dict[int, str]:
    values = [entry.message(_ENTRY_VALUE) for entry in plane.messages(_PLANE_STAT_METADATA)]
    return {value.number(_METADATA_ID): value.text(_METADATA_NAME) for value in values}
