"""`strategy=auto`: what is chosen where, and what is kept of it."""

import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxnet.comm import MiB, make_mesh
from jaxnet.cost import choice
from jaxnet.cost.accelerators import Cluster
from jaxnet.cost.choice import choice_of, choose, described, kept_for
from jaxnet.cost.workloads import named_workload

GIVEN = {"mesh": "2 x 4 cpu devices, 1 processes", "strategy": "ddp", "bucket_bytes": 4 * MiB, "why": "tried"}


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize(
    ("size", "label", "why"), [(10**9, "per_leaf:after=true", "no link"), (4 * MiB, "ddp:4MiB", "no gradient is cut")]
)
def test_one_process_measures_nothing(hosts, size, label, why, monkeypatch):
    monkeypatch.delattr(choice, "measured_row")
    found = choose(make_mesh(hosts), size)
    assert found.label == label
    assert why in found.why
    assert kept_for(make_mesh(hosts), found._asdict()) == found


def test_one_device_says_that_nothing_travels():
    assert "nothing travels" in choose(make_mesh(1, jax.devices()[:1]), 10**6).why


def test_one_device_a_process_cuts_no_gradient(monkeypatch):
    monkeypatch.delattr(choice, "measured_row")
    monkeypatch.setattr(choice, "_processes", lambda mesh: 8)
    found = choose(make_mesh(8), 10**9)
    assert found.label == "ddp:4MiB+pieces"
    assert "no gradient is cut" in found.why
    assert choose(make_mesh(8), 4 * MiB).label == "ddp:4MiB"  # one message, beside which nothing is computed


@pytest.mark.parametrize(
    ("milliseconds", "flops", "chosen"),
    [
        (36, 250e9, "priority:4MiB"),  # 10 messages: 360 ms, and 8 devices with 10^11 operations a second: 312
        (36, 300e9, "ddp:4MiB+pieces"),  # computation takes longer
        (36, 1e9, "priority:4MiB"),  # the link takes 290 times as long
        (36, 0, "ddp:4MiB+pieces"),  # there is none
        (36, math.inf, "ddp:4MiB+pieces"),  # nobody knows how long it is
        (20, 1e9, "ddp:4MiB+pieces"),  # a fast link: what crossing costs is more than it hides
        (36, None, "ddp:4MiB+pieces"),  # forbidden
    ],
)
def test_messages_cross_the_end_of_a_step_where_the_link_takes_longer(milliseconds, flops, chosen, monkeypatch):
    monkeypatch.setattr(choice, "measured_row", lambda *given: SimpleNamespace(min_us=1e3 * milliseconds))
    monkeypatch.setattr(choice, "_product_rate", lambda mesh: 1e11)
    monkeypatch.setattr(choice, "_processes", lambda mesh: 8)
    found = choose(make_mesh(8), 40 * MiB, None if flops is None else lambda: flops)
    assert found.label == chosen
    told = "4 MiB take 20.0 ms" if milliseconds == 20 else "gradients take some 360 ms of the link, computation "
    assert (told in found.why) == (flops is not None)
    assert kept_for(make_mesh(8), found._asdict()) == found


def test_one_message_is_not_measured(monkeypatch):
    monkeypatch.delattr(choice, "measured_row")
    monkeypatch.setattr(choice, "_processes", lambda mesh: 8)
    assert choose(make_mesh(8), 4 * MiB, lambda: 1).label == "ddp:4MiB"


def test_computation_is_counted_forward_and_backward():
    """A layer of 3 x 5 on 7 examples: its product, and that of its kernel's gradient; none of its inputs'."""
    batch = {"id": jax.ShapeDtypeStruct((7,), "uint32"), "x": jax.ShapeDtypeStruct((7, 3), "float32")}

    def loss(params, stats, batch, keys):
        assert keys.shape == (7,)
        return (batch["x"] @ params).sum(), stats

    def until_small(params, stats, batch, keys):
        value, _ = jax.lax.stop_gradient(loss(params, stats, batch, keys))
        halved = jax.lax.while_loop(lambda product: product.sum() > 1, lambda product: product @ product, jnp.eye(3))
        return value + halved.sum(), stats

    kernel = jax.ShapeDtypeStruct((3, 5), "float32")
    assert choice.gradient_flops(loss, kernel, (), batch) == 2 * (2 * 7 * 3 * 5)
    assert choice.gradient_flops(until_small, kernel, (), batch) == math.inf


@pytest.mark.parametrize("may_cross", [True, False])
def test_of_a_workload_it_is_what_a_run_would_choose(may_cross, monkeypatch):
    given = []
    monkeypatch.setattr(choice, "choose", lambda *arguments, tensors: given.append((*arguments, tensors)))
    workload = replace(named_workload("dense", make_mesh(2)), may_cross=may_cross)
    choice_of(workload)
    [(mesh, gradient_bytes, flops, tensors)] = given
    assert (mesh, gradient_bytes, tensors) == (workload.mesh, 8 * 1024 * 1024 * 4, 8)
    layers = 8 * 3 - 1  # products: forward and two backward, but for the gradient of the first layer's inputs
    if may_cross:
        assert flops() == layers * 2 * 1024 * 1024 * workload.global_batch["x"].shape[0]
    else:
        assert flops is None


def test_a_product_is_timed():
    assert 1e8 < choice._product_rate(make_mesh(1, jax.devices()[:1])) < 1e15


@pytest.mark.parametrize(
    ("size", "milliseconds", "chosen", "waits", "why"),
    [
        (MiB, 6.9, "hierarchical", "hierarchical", "1.0 MB take 6.9 ms by hierarchical, 10.0 by ddp"),
        (MiB, 7.1, "ddp", "ddp", "1.0 MB take 7.1 ms by hierarchical, 10.0 by ddp"),
        (9 * MiB, 1.9, "hierarchical", "hierarchical:after=true", "4.2 MB take 1.9 ms by hierarchical, 10.0 by ddp"),
        (9 * MiB, 2.1, "ddp", "hierarchical:after=true", "4.2 MB take 2.1 ms by hierarchical, 10.0 by ddp"),
        (9 * MiB, 4.9, "ddp", "hierarchical:after=true", "4.2 MB take 4.9 ms by hierarchical, 10.0 by ddp"),
        (9 * MiB, 5.1, "ddp", "ddp:after=true", "4.2 MB take 5.1 ms by hierarchical, 10.0 by ddp"),
    ],
)
def test_hierarchical_must_save_enough(size, milliseconds, chosen, waits, why, monkeypatch):
    """Where it is measured, by both ways on the same message, of at most a bucket: 2 ms a MiB, or 3; 1.25 a MiB where
    messages follow backward.
    """
    sizes = []

    def row(mesh, axes, way, size, times):
        del mesh, axes, times
        sizes.append(size)
        return SimpleNamespace(min_us=10_000.0 if way.name == "ddp" else 1e3 * milliseconds)

    monkeypatch.setattr(choice, "measured_row", row)
    monkeypatch.setattr(choice, "_ways_differ", lambda mesh: True)
    found = choose(make_mesh(2), size, tensors=10)
    assert (found.label, sizes) == (f"{chosen}:4MiB", [min(size, 4 * MiB)] * 2)
    assert found.why == f"over this link {why}; hierarchical pays from {3 if size == MiB else 8} ms less on"
    large = choose(make_mesh(2), size, tensors=9)  # of a MiB each, or one message, which leaves when backward ends
    assert large.label == f"{waits}:4MiB"
    assert f"pays from {3 if size == MiB else 5} ms less on" in large.why
    assert kept_for(make_mesh(2), large._asdict()) == large


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_both_ways_sum_the_message(hosts):
    """What is timed is right: else the time says nothing."""
    for way in choice._WAYS:
        row = choice.measured_row(make_mesh(hosts), choice.AXES, way, 4000, 2)
        assert (row.wrong, row.size) == (0, 8)


def test_kept_is_what_was_chosen_for_such_a_mesh():
    mesh = make_mesh(2)
    assert described(mesh) == GIVEN["mesh"]
    kept = kept_for(mesh, GIVEN)
    assert (kept.strategy, kept.bucket_bytes, kept.why) == ("ddp", 4 * MiB, "tried")
    assert kept_for(mesh, choose(mesh, 10**6)._asdict()) == choose(mesh, 10**6)


@pytest.mark.parametrize(
    "kept",
    [
        None,
        [],
        "ddp",
        {},
        {**GIVEN, "mesh": "4 x 2 cpu devices, 1 processes"},
        {**GIVEN, "strategy": "no_such_strategy"},
        {**GIVEN, "bucket_bytes": "4 MiB"},
        {**GIVEN, "bucket_bytes": -1},
        {**GIVEN, "strategy": "flat"},  # which has no buckets
        {key: value for key, value in GIVEN.items() if key != "why"},
    ],
)
def test_what_is_kept_otherwise_is_left_out(kept):
    assert kept_for(make_mesh(2), kept) is None


@pytest.mark.parametrize(("cluster", "strategy"), [("v5e:2x2", "ddp"), ("h100:2x2", "hierarchical")])
def test_accelerators_are_chosen_for_by_their_compilers(cluster, strategy, monkeypatch):
    monkeypatch.delattr(choice, "measured_row")
    kind = Cluster.named(cluster).accelerator.platform
    monkeypatch.setattr(choice, "platform_of", lambda mesh: kind)
    assert not choice._ways_differ(make_mesh(2))
    found = choose(make_mesh(2), 10**9)
    assert (found.strategy, found.bucket_bytes) == (strategy, None)
    assert kind.upper() in found.why
