"""Text as bytes, in windows: what a language model of bytes learns from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar
from zlib import crc32

import numpy as np

from jaxnet.data.source import require_split
from jaxnet.errors import InputError
from jaxnet.files import expanded
from jaxnet.limits import Fraction, Limit

PADDING = -1


@dataclass(frozen=True, eq=False)
class TextSource:
    """Windows of `length` + 1 bytes, each beginning with the last byte of the one before: 'tokens', int16.

    So every byte but the first is predicted once. With a length of 4:

        text        T h e _ c a t _ s a t
        example 0   T h e _ c
        example 1           c a t _ s
        example 2                   s a t . .     filled up with -1

    In training each window begins up to `length` - 1 bytes later, at random, so that a byte is not always predicted
    from the same number of others.

    >>> source = TextSource(np.frombuffer(b"The cat sat", np.uint8), length=4)
    >>> source.num_examples, bytes(source.rows(np.array([1]))["tokens"][0].tolist())
    (3, b'cat s')
    """

    vocabulary: ClassVar[int] = 256

    text: np.ndarray = field(repr=False)
    length: int

    @property
    def num_examples(self) -> int:
        """How many windows there are."""
        return -(-(len(self.text) - 1) // self.length)

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return windows as they lie."""
        return self._windows(indices.astype(np.int64) * self.length)  # of more than 2 GiB, too

    def random_rows(self, indices: np.ndarray, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Return windows that begin at random places."""
        shift = (draws % np.uint64(self.length)).astype(np.int64)
        last = max(0, len(self.text) - self.length - 1)
        return self._windows(np.minimum(indices.astype(np.int64) * self.length + shift, last))

    def hold_out(self, count: int) -> tuple[TextSource, TextSource]:
        """Return the text without its last `count` windows, and these: no window of training reaches into them."""
        edge = (self.num_examples - count) * self.length + 1
        return replace(self, text=self.text[:edge]), replace(self, text=self.text[edge - 1 :])

    def _windows(self, starts: np.ndarray) -> dict[str, np.ndarray]:
        places = starts[:, None] + np.arange(self.length + 1)
        inside = self.text.take(np.minimum(places, len(self.text) - 1)).astype(np.int16)
        return {"tokens": np.where(places < len(self.text), inside, np.int16(PADDING))}


_Length = Annotated[
    int, Limit("1 to 1048576 bytes, more than a model reads at once", lambda value: 1 <= value <= 2**20)
]


@dataclass(frozen=True)
class Text:
    """A text file, byte by byte; its end is the test split.

    Attributes:
        path: of the file.
        length: bytes that the model sees.
        test_share: part of the file that is for testing.
    """

    path: str
    length: _Length = 256
    test_share: Fraction = 0.1

    def load(self, split: str) -> TextSource:
        """Return 'train' or 'test', in memory."""
        require_split(split)
        path = expanded(self.path)
        try:
            text = np.frombuffer(path.read_bytes(), np.uint8)
        except OSError as error:
            raise InputError(f"data.path={self.path}: {error.strerror}; wanted a text file") from error
        edge = round(len(text) * (1 - self.test_share))
        return _source(text[:edge] if split == "train" else text[edge:], self.length, f"{path}, {split}")


@dataclass(frozen=True)
class PythonTopics:
    """The topics of Python's `help()`, 460 kB of English that come with every Python; a tenth is for testing.

    A topic is in the test split if the checksum of its name says so, so a new version of Python moves no topic from one
    split to the other. The texts themselves change a little between versions.

    Attributes:
        length: bytes that the model sees.

    >>> PythonTopics(length=128).load("test").vocabulary
    256
    """

    length: _Length = 256

    def load(self, split: str) -> TextSource:
        """Return 'train' or 'test', in memory."""
        require_split(split)
        from pydoc_data.topics import topics  # here, as few runs need it

        tests = {name for name in topics if crc32(name.encode()) % 10 == 0}
        chosen = [topics[name] for name in sorted(topics) if (name in tests) == (split == "test")]
        return _source(np.frombuffer("\n".join(chosen).encode(), np.uint8), self.length, f"Python's topics, {split}")


def _source(text: np.ndarray, length: int, origin: str) -> TextSource:
    if len(text) < 2:
        raise InputError(f"data: {origin}: {len(text)} bytes; wanted at least 2, to predict one from the other")
    return TextSource(text, length)
