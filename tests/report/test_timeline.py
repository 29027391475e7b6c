"""The figures of a timeline, from synthetic events with known answers."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.errors import InputError
from jaxnet.report import timeline, timeline_json, timeline_text
from jaxnet.report.show import lanes
from support.traces import HLO, made_up

# Milliseconds. psum.0 travels under dot.2 for 3 of its 4 ms; psum.1 under nothing; the loop holds a collective.
STEP = [
    ("dot.1", 10, 14),
    ("psum.0", 14, 18),
    ("dot.2", 15, 20),
    ("psum.1", 20, 21),
    ("while.1", 22, 26),
    ("psum.9", 23, 25),
]
OPS = ["dot.1", "dot.2", "psum.0", "psum.1", "psum.9"]


def at(start, step=STEP):
    return [(op, start + begin, start + end) for op, begin, end in step]


def one_device(steps=1, annotated=()):
    return made_up(0, [at(100 * number) for number in range(steps)], annotated)


def test_the_totals_of_a_device():
    [device] = timeline([one_device()]).devices
    assert device.span == pytest.approx((0, 15e-3))
    assert device.compute_seconds == pytest.approx(9e-3)  # the loop around a collective is not compute
    assert device.communication_seconds == pytest.approx(7e-3)
    assert device.exposed_seconds == pytest.approx(4e-3)
    assert device.overlap == pytest.approx(3 / 7)


def test_each_collective():
    [device] = timeline([one_device()], axis_sizes={"host": 2, "device": 1}).devices
    first, second, third = device.collectives
    assert (first.bucket, first.kind, first.bytes, first.axes) == (0, "all-reduce", 400, ("host",))
    assert first.span == pytest.approx((4e-3, 8e-3))
    assert first.hidden_fraction == pytest.approx(3 / 4)
    assert (second.bucket, second.bytes, second.hidden) == (1, 200, 0)
    assert (third.bucket, third.scope) == (None, "while/body")


@given(st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=12))
def test_the_figures_equal_those_of_counting_milliseconds(drawn):
    """Slow and plain: for each millisecond, is there compute, is there a collective?"""
    step = [("psum.0", 0, 1), *((op, start, start + length) for op, start, length in drawn)]
    [device] = timeline([made_up(0, [step])]).devices
    computing, communicating = np.zeros(60, bool), np.zeros(60, bool)
    for op, start, end in step:
        (computing if op.startswith("dot") else communicating)[start:end] = True
    assert device.compute_seconds == pytest.approx(computing.sum() / 1e3)
    assert device.communication_seconds == pytest.approx(communicating.sum() / 1e3)
    assert device.exposed_seconds == pytest.approx((communicating & ~computing).sum() / 1e3, abs=1e-9)
    for timed in device.collectives:
        start, end = (round(1e3 * seconds) for seconds in timed.span)
        assert timed.hidden == pytest.approx(computing[start:end].sum() / 1e3, abs=1e-9)
    rows = lanes(device.collectives)
    for lane in set(rows):
        spans = [timed.span for timed, row in zip(device.collectives, rows, strict=True) if row == lane]
        assert all(before.end <= after.start for before, after in pairwise(spans))


def test_steps_are_numbered_from_the_end_and_cut_ones_are_left_out():
    cut = made_up(0, [STEP[3:], at(100), at(200)], steps=[41, 42])
    assert timeline([cut]).steps == (41, 42)
    in_flight = made_up(0, [at(0), at(100), at(200)], steps=[41, 42])
    assert timeline([in_flight]).steps == (40, 41, 42)
    assert timeline([made_up(0, [STEP[3:], at(100)])]).steps == (1,)


def test_without_a_number_the_step_of_median_length_is_taken():
    longer = [[*at(100 * n), ("dot.1", 100 * n + 30, 100 * n + 40 + 10 * n)] for n in (2, 0, 1)]
    assert timeline([made_up(0, longer, steps=[5, 6, 7])]).step == 7
    assert timeline([made_up(0, longer, steps=[5, 6, 7])], 5).step == 5


def test_processes_share_the_step_and_its_origin():
    late = [(op, start + 0.5, end + 0.5) for op, start, end in STEP]
    made = timeline([made_up(0, [STEP], [7]), made_up(1, [late], [7])])
    assert [(device.process, device.device) for device in made.devices] == [(0, 0), (1, 2048)]
    assert [device.span.start for device in made.devices] == pytest.approx([0, 0.5e-3])
    assert made.notes == ()


def test_processes_without_numbers_are_matched_from_the_end():
    made = timeline([made_up(0, [STEP[2:], at(100)]), made_up(1, [at(100)])])
    assert made.steps == (1,)


def test_clocks_that_cannot_agree_are_noted():
    """The other's whole all-reduce comes 50 ms after ours has ended."""
    made = timeline([made_up(0, [STEP], [7]), made_up(1, [at(50)], [7])])
    [note] = made.notes
    assert "differ by 49.000 ms or more" in note


def test_processes_that_are_missing_are_noted():
    [note] = timeline([one_device()]).notes
    assert "1 of 2 devices" in note


def test_collectives_that_did_not_run_are_noted():
    notes = timeline([made_up(0, [STEP[:4]])]).notes
    assert any("1 of the program's 3 collectives did not run" in note for note in notes)


@pytest.mark.parametrize(
    ("traces", "step", "words"),
    [
        ([one_device(2, [3, 4])], 9, "step 9 is not whole in the trace; it holds 3 to 4"),
        ([made_up(0, [STEP], [3]), made_up(1, [STEP], [4])], None, "no step is whole in the traces of all processes"),
        ([made_up(0, [])], None, "no instructions of compiled programs"),
        ([made_up(0, [STEP], hlo=HLO.replace("all-reduce", "negate"))], None, "holds a collective (it ran jit_step)"),
    ],
)
def test_refusals(traces, step, words):
    with pytest.raises(InputError) as refused:
        timeline(traces, step)
    assert words in str(refused.value)


def test_text_and_json_tell_the_same():
    made = timeline([one_device(2, [3, 4])], 4)
    text = timeline_text(made)
    assert text.startswith("jit_step, step 4 (the trace holds 3 to 4)")
    assert "43%" in text
    [device] = json.loads(json.dumps(timeline_json(made)))["devices"]
    assert device["overlap"] == pytest.approx(3 / 7)
    assert [timed["bucket"] for timed in device["collectives"]] == [0, 1, None]
    assert device["collectives"][0]["span"] == pytest.approx([4e-3, 8e-3])
