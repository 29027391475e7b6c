"""nccl-tests' arithmetic against values worked out by hand."""

import numpy as np
import pytest

from jaxnet.comm import Collective
from jaxnet.cost.collectives import TRANSFERS, algbw, busbw_factor, make_row

KINDS = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute"]


@pytest.mark.parametrize(("kind", "factor"), list(zip(KINDS, [1.75, 0.875, 0.875, 0.875, 1.0], strict=True)))
def test_factors_for_eight_devices(kind, factor):
    assert busbw_factor(kind, 8) == factor


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 8])
def test_busbw_is_the_fewest_bytes_that_a_plan_counts(kind, size):
    """The plan and the benchmark must not have two ideas of what is sent."""
    collective = Collective(kind, ("host",), size, 24, "float32")
    assert busbw_factor(kind, size) * collective.bytes == collective.wire_bytes


def test_algbw_counts_gigabytes_of_ten_to_the_nine():
    assert algbw(4 * 10**9, 2.0) == 2.0


def test_a_row_of_the_table_by_hand():
    """Three iterations on two processes: the mean over processes first, then the median of the iterations."""
    times = np.array([[1e-3, 2e-3, 9e-3], [3e-3, 4e-3, 11e-3]])
    row = make_row(TRANSFERS["all_reduce"], ("host",), 4, 250_000, times, 0)
    assert row.bytes == 1_000_000
    assert row.min_us == pytest.approx(2000)
    assert row.p50_us == pytest.approx(3000)
    assert row.p99_us == pytest.approx(3000 + 0.98 * 7000)  # between the second and the third iteration
    assert row.algbw == pytest.approx(1 / 3)
    assert row.busbw == pytest.approx(1.5 / 3)
