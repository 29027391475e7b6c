"""What a codec sends of float32, written down by hand."""

import pytest

from jaxnet.comm import codecs

every_share = pytest.mark.parametrize(
    ("codec", "share"),
    [
        (codecs.float16, 1 / 2),
        (codecs.bfloat16, 1 / 2),
        (codecs.int8(block=256), 1 / 4 + 1 / 256),
        (codecs.one_bit(block=1024), 1 / 32 + 2 / 1024),
        (codecs.two_bit(0.5), 1 / 16),
        (codecs.top_k(1 / 128), 2 / 128),
    ],
    ids=["float16", "bfloat16", "int8", "one_bit", "two_bit", "top_k"],
)
