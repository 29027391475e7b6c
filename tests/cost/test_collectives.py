"""Every transfer over every axis: right results, whole tables, and a peak that large plain transfers do not exceed."""

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.comm import KiB, MiB
from jaxnet.cost.collectives import (
    TRANSFERS,
    Transfer,
    communicating_axes,
    link_peak,
    make_program,
    measure_collectives,
)
from jaxnet.cost.tables import draw_collectives
from support.ranks import Ranks

SHAPES = [(2, 4), (1, 8), (3, 2), pytest.param((8, 1), marks=pytest.mark.slow)]
QUICK = [("all_reduce", 64 * KiB)]


def grid(shape):
    return comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", TRANSFERS)
def test_every_device_ends_with_what_it_must(name, shape):
    mesh = grid(shape)
    for axes in communicating_axes(mesh):
        program = make_program(TRANSFERS[name], axes, 1000, mesh)
        assert program.wrong_elements(program.call(program.message)) == 0
        assert program.elements * 4 >= 1000


@pytest.mark.parametrize(
    ("kind", "move"),
    [
        ("all-reduce", lambda message, axes: jax.lax.psum(message, "device")),
        ("collective-permute", lambda message, axes: message),
        ("all-gather", lambda message, axes: jax.lax.all_gather(message[::-1], axes, tiled=True)),
        ("reduce-scatter", lambda message, axes: jax.lax.psum_scatter(message, axes, tiled=True) + 1),
    ],
)
def test_what_is_wrong_is_counted(kind, move):
    mesh = grid((2, 4))
    program = make_program(Transfer("wrong", kind, move), comm.AXES, 64 * 4, mesh)
    result = program.call(program.message)
    own = np.concatenate([np.ravel(shard.data) for shard in result.addressable_shards])
    assert len(own) // 2 < program.wrong_elements(result) <= len(own)


def test_one_wrong_element_is_one():
    mesh = grid((1, 2))
    move = lambda message, axes: jax.lax.psum(message, axes).at[3].add(1)  # noqa: E731
    program = make_program(Transfer("wrong", "all-reduce", move), ("device",), 64 * 4, mesh)
    assert program.wrong_elements(program.call(program.message)) == 2  # one on each device


def test_the_axes_that_carry_anything():
    assert communicating_axes(grid((2, 4))) == [("host",), ("device",), ("host", "device")]
    assert communicating_axes(grid((1, 8))) == [("device",)]
    assert communicating_axes(grid((8, 1))) == [("host",)]
    assert communicating_axes(grid((1, 1))) == []


def test_the_table_has_a_row_for_every_transfer_axis_and_size():
    mesh = grid((2, 4))
    chosen = [TRANSFERS["all_reduce"], TRANSFERS["all_gather"]]
    rows, peaks = measure_collectives(mesh, [100, 4 * KiB], [("host",), ("device",)], chosen, 3, QUICK)
    assert [(row.axis, row.algorithm, row.bytes) for row in rows] == [
        ("host", "all_reduce", 100),
        ("host", "all_reduce", 4096),
        ("host", "all_gather", 104),
        ("host", "all_gather", 4096),
        ("device", "all_reduce", 100),
        ("device", "all_reduce", 4096),
        ("device", "all_gather", 112),
        ("device", "all_gather", 4096),
    ]
    assert list(peaks) == ["host", "device"]
    for row in rows:
        assert row.wrong == 0
        assert 0 < row.min_us <= row.p50_us <= row.p99_us
        assert row.percent_of_peak == pytest.approx(100 * row.busbw * 1e9 / peaks[row.axis])


def test_the_rates_are_drawn():
    pytest.importorskip("matplotlib")
    chosen = [TRANSFERS["all_reduce"], TRANSFERS["all_gather"]]
    rows, peaks = measure_collectives(grid((2, 4)), [100, 4 * KiB], [("host",), ("device",)], chosen, 3, QUICK)
    panels = draw_collectives(rows, peaks, {"host": 2, "device": 4}).axes
    assert [panel.get_title(loc="left") for panel in panels] == ["over host", "over device"]
    for panel, axis in zip(panels, ("host", "device"), strict=True):
        *curves, peak = panel.lines
        assert peak.get_ydata()[0] == peaks[axis] / 1e9
        drawn = [(x, y) for curve in curves for x, y in zip(*curve.get_data(), strict=True)]
        assert drawn == [(row.bytes, row.busbw) for row in rows if row.axis == axis]


def test_no_large_plain_transfer_exceeds_the_peak():
    """It is part of what the peak is taken from, so that 100 % means something."""
    chosen = [TRANSFERS["all_reduce"], TRANSFERS["permute"]]
    rows, peaks = measure_collectives(grid((2, 1)), [1 * MiB], [("host",)], chosen, 3, QUICK)
    assert max(row.percent_of_peak for row in rows) <= 100 * (1 + 1e-9)
    assert peaks["host"] > 0


def two_ranks(rank):
    mesh = comm.make_mesh()
    chosen = [TRANSFERS[name] for name in ("all_reduce", "permute", "scattered", "ring")]
    rows, peaks = measure_collectives(mesh, [1000], communicating_axes(mesh), chosen, 2, QUICK)
    return (
        [(row.algorithm, row.axis, row.bytes, row.p50_us, row.wrong) for row in rows],
        peaks,
        link_peak(mesh, ("host",), QUICK),
    )


@pytest.mark.processes
def test_two_processes_agree_on_every_figure():
    with Ranks(two_ranks, 2) as ranks:
        first, second = ranks.results()
    assert first == second
    assert {row[1] for row in first[0]} == {"host", "device", "host+device"}
    assert all(row[-1] == 0 for row in first[0])
