"""Protocol buffers as they are on disk, for the few fields that one wants to look at."""

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Message:
    """The fields of a serialized message, by number; what is inside them is decoded when asked for.

    Raises ValueError for bytes that are no message.

    >>> point = Message(b"\\x08\\x96\\x01\\x12\\x02hi")
    >>> point.number(1), point.text(2), point.number(3)
    (150, 'hi', 0)
    """

    def __init__(self, content: bytes | memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        for field, value in _fields(memoryview(content)):
            self._fields.setdefault(field, []).append(value)

    def number(self, field: int) -> int:
        """A field's unsigned number; 0 if it is not there."""
        value = self._last(field, 0)
        return value if isinstance(value, int) else 0

    def bytes(self, field: int) -> bytes:
        """A field's bytes; none if it is not there."""
        value = self._last(field, memoryview(b""))
        return b"" if isinstance(value, int) else bytes(value)

    def text(self, field: int) -> str:
        """A field's text."""
        return self.bytes(field).decode(errors="replace")

    def message(self, field: int) -> "Message":
        """The message in a field; an empty one if it is not there."""
        return Message(self.bytes(field))

    def messages(self, field: int) -> "Iterator[Message]":
        """The messages in a repeated field."""
        return (Message(value) for value in self._fields.get(field, []) if not isinstance(value, int))

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
