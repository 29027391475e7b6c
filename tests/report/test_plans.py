"""Pictures of what a step sends: as long as the bytes that the plan names, for every strategy."""

from dataclasses import replace

import jax
import pytest

from jaxnet import comm
from jaxnet.comm import STRATEGIES
from jaxnet.config.file import load_config
from jaxnet.report import draw_sent
from jaxnet.training.prepare import prepare
from support.programs import ROOT

pytest.importorskip("matplotlib")

CONFIG = load_config(ROOT / "configs/digits.py", "bucket_bytes=65536")


def lengths(axes):
    """By row, the length of its boxes together."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    return {
        name: sum(box.get_width() for box in axes.patches if round(box.get_y() + box.get_height() / 2) == row)
        for row, name in enumerate(names)
    }


FEW = ("xla", "hierarchical", "s_caffe_hr", "zero", "local_sgd")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FEW)) for n in STRATEGIES])
def test_a_row_is_as_long_as_its_bytes(name):
    plan = prepare(replace(CONFIG, strategy=name, bucket_bytes=None), comm.make_mesh(2, jax.devices()[:4])).plan
    [axes] = plan.draw().axes
    found = lengths(axes)
    sent = plan.wire_bytes_per_axis or {"all axes": plan.wire_bytes_per_step}
    assert {row: found[row] * 1024 for row in sent} == pytest.approx(sent, rel=1e-3)
    if plan.buckets:
        assert found["buckets"] * 1024 == pytest.approx(sum(bucket["bytes"] for bucket in plan.buckets))


def test_messages_are_in_order_of_issue():
    plan = prepare(replace(CONFIG, strategy="hierarchical"), comm.make_mesh(2, jax.devices()[:4])).plan
    [axes] = plan.draw().axes
    boxes = [box for box in axes.patches if round(box.get_y() + box.get_height() / 2) == 0]
    assert [box.get_width() * 1024 for box in boxes] == pytest.approx([bucket["bytes"] for bucket in plan.buckets])
    ends = [box.get_x() + box.get_width() for box in boxes]
    assert [box.get_x() for box in boxes] == pytest.approx([0, *ends[:-1]])
    numbered = {int(text.get_text()): text.get_position()[0] for text in axes.texts if text.get_text().isdigit()}
    assert len(numbered) > 2
    assert all(boxes[number].get_x() < place < ends[number] for number, place in numbered.items())


def test_bytes_beside_each_other():
    [axes] = draw_sent("two", {"flat": {"host+device": 3000}, "hierarchical": {"host": 500, "device": 4000}}).axes
    assert lengths(axes) == pytest.approx({"flat": 3000 / 1024, "hierarchical": 4500 / 1024})
    assert [bar.get_x() for bar in axes.patches if bar.get_width() > 3.5] == pytest.approx([500 / 1024])


def test_a_step_that_sends_nothing_is_drawn():
    [axes] = prepare(CONFIG, comm.make_mesh(1, jax.devices()[:1])).plan.draw().axes
    assert {name: length for name, length in lengths(axes).items() if name != "buckets"} in ({}, {"all axes": 0})
