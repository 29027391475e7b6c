"""PNG files that Pillow does not write."""

import struct
import zlib

ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def packed(pixels, *, rows=None, interlaced=False):
    """A PNG whose data are well formed, but may hold only the first rows; a grey picture."""
    height, width = pixels.shape
    passes = [pixels[y::down, x::right] for y, x, down, right in ADAM7] if interlaced else [pixels]
    lines = [b"\0" + row.tobytes() for part in passes for row in part if row.size]
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, interlaced)
    data = zlib.compress(b"".join(lines[:rows]))
    chunks = ((b"IHDR", header), (b"tEXt", b"a\0b"), (b"IDAT", data[:9]), (b"IDAT", data[9:]), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(inside)) + kind + inside + struct.pack(">I", zlib.crc32(kind + inside))
        for kind, inside in chunks
    )
