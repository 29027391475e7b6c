"""What a model of a step gets wrong, as a picture."""

import pytest

from jaxnet.report import Pair, draw_residuals

pytest.importorskip("matplotlib")


def test_bars_are_as_long_as_predictions_are_off_and_points_as_high():
    steps = {"xla": Pair(0.9, 1.0), "ddp": Pair(2.2, 2.0, learned=True)}
    figure = draw_residuals("dense", {"all-reduce over host": {1024: Pair(0.5, 0.4), 4096: Pair(1.0, 1.0)}}, steps)
    by_bytes, by_plan = figure.axes
    assert [bar.get_width() for bar in by_plan.patches] == pytest.approx([-0.1, 0.1])
    assert [bar.get_facecolor()[3] for bar in by_plan.patches] == pytest.approx([1, 1 / 3])
    curve = by_bytes.lines[0]
    assert list(curve.get_xdata()) == [1024, 4096]
    assert list(curve.get_ydata()) == pytest.approx([0.25, 0])


def test_nothing_timed_and_nothing_sent_is_drawn():
    by_bytes, by_plan = draw_residuals("alone", {}, {}).axes
    assert not by_plan.patches
    assert len(by_bytes.lines) == 1
