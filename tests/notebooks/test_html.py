"""What a notebook shows of plans, strategies and configs: HTML that is whole, and holds the figures."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import jax
import pytest
import treescope

import jaxnet
from jaxnet import comm

SIZES = {"host": 2, "device": 4}
CONFIG = jaxnet.Config(
    jaxnet.models.CNN(10, widths=(4,), hidden=16),
    jaxnet.data.Digits(),
    epochs=1,
    batch_size=64,
    hosts=2,
    strategy="ddp",
    bucket_bytes=4096,
)


class Cells(HTMLParser):
    """The text of each cell, paragraph or piece of code, in their order; tags must nest."""

    def __init__(self, text):
        super().__init__()
        self.texts, self._open = [], []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self._open.append(tag)
        if tag in ("td", "th", "p", "code", "summary"):
            self.texts.append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        assert self._open, f"{data!r} is in no tag"
        self.texts[-1] += data


def texts(value):
    return Cells(value._repr_html_()).texts


def test_a_plan_shows_each_kind_of_collective_and_all_bytes():
    shapes = [jax.ShapeDtypeStruct((1024,), "float32")] * 8
    reducer = comm.bucketed(comm.scattered("device", comm.all_reduce("host")), bucket_bytes=8192)
    plan = reducer.plan(shapes, SIZES)
    shown = texts(plan)
    assert shown[:5] == ["", "collective", "over", "dtype", "bytes"]
    assert shown[5:10] == ["1", "reduce-scatter", "device", "float32", "8,192"]
    sent = comm.wire_bytes_per_axis(plan.collectives)
    assert shown[-1] == (
        "buckets: 4; collectives: 12; bytes that the busiest device sends: "
        f"{sent['device']:,} over device, {sent['host']:,} over host"
    )
    alike = texts(comm.bucketed(comm.all_reduce("host"), bucket_bytes=4096).plan(shapes, SIZES))
    assert alike[5:10] == ["8", "all-reduce", "host", "float32", "4,096"]
    assert texts(comm.Plan(()))[-1] == "collectives: 0; bytes that the busiest device sends: none"


def test_a_long_plan_is_cut():
    collective = comm.Collective("all-reduce", ("host",), 2, 1, "float32")
    plan = comm.Plan(tuple(replace(collective, elements=1 + index) for index in range(500)))
    assert "300 more" in texts(plan)


@pytest.mark.parametrize("name", comm.STRATEGIES)
def test_a_strategy_shows_its_expression(name):
    strategy = comm.named_strategy(name)
    assert texts(strategy) == [repr(strategy), f"{name}: {strategy.summary}"]
    if strategy.reducer is not None:
        assert texts(strategy.reducer) == [repr(strategy.reducer)]


def test_what_users_write_is_escaped():
    strategy = comm.Strategy(comm.bucketed(comm.all_reduce("<b>"), 4096))
    assert texts(strategy) == ["Strategy(bucketed(all_reduce('<b>'), 4 * KiB))"]


def test_a_config_shows_first_what_was_chosen():
    first, everything = CONFIG._repr_html_().split("<details>")
    chosen, rest = Cells(first).texts, Cells(f"<details>{everything}").texts
    pairs = dict(zip(chosen[::2], chosen[1::2], strict=True))
    assert pairs["strategy"] == "ddp"
    assert pairs["model.widths"] == "[4]"
    assert "seed" not in pairs
    assert rest[0].endswith("with those left at their defaults")
    values = dict(zip(rest[1::2], rest[2::2], strict=True))
    assert pairs.items() <= values.items()
    assert values["seed"] == "0"


def test_a_config_that_cannot_be_shown_is_left_to_its_text():
    class Odd:
        def __repr__(self):
            raise RuntimeError("no")

        __str__ = __repr__

    assert replace(CONFIG, data=Odd())._repr_html_() is None


def test_a_state_is_a_tree_that_needs_no_network(monkeypatch):
    whole = treescope.render_to_html
    monkeypatch.setattr(treescope, "render_to_html", lambda tree: whole(tree, compressed=False))
    shown = jaxnet.prepare(CONFIG).init()._repr_html_()
    assert all(name in shown for name in ("params", "optimizer", "kernel", "float32"))
    assert not re.search(r"https?://(?!www\.w3\.org)", shown)


def test_an_experiment_shows_its_plan_and_a_plan_its_check():
    experiment = jaxnet.prepare(CONFIG)
    shown = texts(experiment)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(experiment.variables.params))
    assert shown[0] == f"22 steps of 64 examples, {parameters:,} parameters"
    assert shown[1].startswith("strategy ddp (during backward), mode shard_map, mesh 2 hosts x 4 devices")
    plan = experiment.plan
    assert shown[1:] == texts(plan)
    assert [f"{bucket['bytes']:,}" in shown for bucket in plan.buckets] == [True] * len(plan.buckets)
    assert f"{plan.wire_bytes_per_axis['host+device']:,}" in shown
    checked = plan.verified()
    assert checked.check.explain() in texts(checked)
    found = checked.check.found[0]
    dtype, elements = found.arrays[0]
    assert any(text.startswith(f"{found.kind} {elements:,} {dtype}") for text in texts(checked))
