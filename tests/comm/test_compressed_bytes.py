"""Compressed sums: planned bytes beside an all-reduce in float32; `test_compressed.py` checks the programs."""

import jax

from jaxnet import comm
from jaxnet.comm import AXES, MiB, all_reduce, bucketed, codecs, compressed, compressed_scattered, scattered
from support.shares import every_share


def wire_bytes(reducer, axis_sizes, size=2**20):
    plan = reducer.plan({"w": jax.ShapeDtypeStruct((size,), "float32")}, axis_sizes)
    return comm.wire_bytes_per_axis(plan.collectives)


@every_share
def test_planned_bytes_as_a_share_of_an_all_reduce_in_float32(codec, share):
    for devices in (2, 8):
        sizes = {"host": 1, "device": devices}
        [full] = wire_bytes(bucketed(all_reduce(*AXES), None), sizes).values()
        [two_exchanges] = wire_bytes(bucketed(compressed_scattered(*AXES, codec=codec), None), sizes).values()
        [gathered] = wire_bytes(bucketed(compressed(*AXES, codec=codec), None), sizes).values()
        assert two_exchanges == share * full
        assert gathered == share * full * devices / 2


def test_across_hosts_only_the_compressed_share_travels():
    reducer = bucketed(scattered("device", compressed("host", codec=codecs.one_bit())), 25 * MiB)
    sent = wire_bytes(reducer, {"host": 2, "device": 4})
    assert sent["device"] == 2 * 3 * 2**20  # 2 (4-1)/4 of 4 MiB
    assert sent["host"] == 2**20 / 32 + 2**20 / 512  # of the quarter that is one device's: a bit an element, and means
