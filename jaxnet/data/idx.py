"""The IDX format, in which MNIST and the data sets made in its likeness are published."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from jaxnet.errors import InputError

_UINT8 = 0x08  # the format's code for the type of the elements


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes with `ndim` dims.

    The file is: two zero bytes, the type, `ndim`; the sizes as big-endian uint32; the elements.

    Raises:
        InputError: the file cannot be read, is damaged, or holds something else; it names the file.
    """
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {reason}") from error
    header = 4 + 4 * ndim
    magic = bytes([0, 0, _UINT8, ndim])
    if len(content) < header or content[:4] != magic:
        got = content[:4].hex() or "nothing"
        raise InputError(
            f"{path} is not an IDX file of bytes with {ndim} dims: it starts with {got}, not {magic.hex()}"
        )
    shape = struct.unpack(f">{ndim}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise InputError(
            f"{path} is damaged: its header says {shape}, which is {math.prod(shape)} bytes, "
            f"but {len(content) - header} follow"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
