"""Plans and compiled programs: buckets stay buckets, schedules hold, and `verify` reports where they do not."""

import re
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import KiB, all_reduce, bucketed, collectives_in, scattered
from jaxnet.comm.groups import groups_over, parse_groups
from support.laws import reducer_of

LAYERS, WIDTH = 4, 64
LAYER_BYTES = WIDTH * WIDTH * 4
MESH_SIZES = {"host": 2, "device": 4}


def mesh(sizes):
    return comm.make_mesh(sizes["host"], jax.devices()[: sizes["host"] * sizes["device"]])


def compiled(reducer, options=None, mesh_sizes=MESH_SIZES):
    """A deep network's step, as optimized HLO, and the collectives planned for it."""
    shapes = {f"layer_{i}": jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32") for i in range(LAYERS)}

    def loss(params, x):
        for i in range(LAYERS):
            x = jnp.tanh(x @ params[f"layer_{i}"])
        return (x**2).mean()

    x = jax.ShapeDtypeStruct((64, WIDTH), "float32")
    reducer = comm.in_order(comm.backward_order(jax.grad(loss), shapes, x), reducer)

    def step(params, x):
        varying = jax.tree.map(lambda p: lax.pcast(p, comm.AXES, to="varying"), params)
        grads = jax.grad(loss)(varying, x)
        sums, _ = reducer.reduce(grads, reducer.init(grads, mesh_sizes))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, sums)

    mapped = jax.shard_map(step, mesh=mesh(mesh_sizes), in_specs=(P(), P(comm.AXES)), out_specs=P())
    options = comm.compiler_options("cpu") if options is None else options
    hlo = jax.jit(mapped, compiler_options=options).lower(shapes, x).compile().as_text()
    return hlo, reducer.plan(shapes, mesh_sizes).collectives


FOUR_BUCKETS = bucketed(all_reduce(*comm.AXES), LAYER_BYTES)


def test_four_buckets_stay_four_all_reduces_with_backward_compute_between_them():
    hlo, planned = compiled(FOUR_BUCKETS)
    found = comm.verify(hlo, planned, MESH_SIZES).found
    assert [item.kind for item in found] == ["all-reduce"] * 4
    assert [item.arrays for item in found] == [(("float32", WIDTH * WIDTH),)] * 4
    assert sum(item.compute_before > 0 for item in found) >= 3


def test_by_default_xla_merges_them_and_the_check_says_so():
    hlo, planned = compiled(FOUR_BUCKETS, options={})
    check = comm.verify(hlo, planned, MESH_SIZES)
    assert not check.ok
    assert len(check.found) == 1
    assert len(check.found[0].arrays) == 4
    assert "lacks 4 of 4 planned collectives" in check.explain()
    assert "all-reduce of 4096 float32 + 4096 float32 + 4096 float32 + 4096 float32" in check.explain()


@pytest.mark.parametrize("inner", [all_reduce(*comm.AXES), scattered("device", all_reduce("host"))])
def test_after_lets_nothing_travel_before_the_end_of_backward(inner):
    hlo, planned = compiled(comm.after(bucketed(inner, LAYER_BYTES)))
    check = comm.verify(hlo, planned, MESH_SIZES)
    assert check.ok, check.explain()
    first, *rest = check.found
    assert first.compute_before > 0
    assert all(item.compute_before == 0 for item in rest)


def test_hierarchical_buckets_keep_their_three_stages():
    hlo, planned = compiled(bucketed(scattered("device", all_reduce("host")), LAYER_BYTES))
    check = comm.verify(hlo, planned, MESH_SIZES)
    assert check.ok, check.explain()
    assert sorted(item.kind for item in check.found) == ["all-gather"] * 4 + ["all-reduce"] * 4 + ["reduce-scatter"] * 4
    assert sum(item.compute_before > 0 for item in check.found) >= 3


def test_a_plan_for_other_axes_does_not_pass():
    hlo, _ = compiled(bucketed(all_reduce("host", "device"), 16 * KiB))
    other = bucketed(all_reduce("host"), 16 * KiB)
    shapes = [jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")] * LAYERS
    assert not comm.verify(hlo, other.plan(shapes, MESH_SIZES).collectives, MESH_SIZES).ok


@pytest.mark.parametrize("name", [name for name in comm.STRATEGIES if name != "xla"])
def test_named_strategies_survive(name):
    hlo, planned = compiled(reducer_of(name))
    check = comm.verify(hlo, planned, MESH_SIZES)
    assert check.ok, check.explain()
    assert not check.extra


@pytest.mark.parametrize("name", [name for name in comm.STRATEGIES if name != "xla"])
def test_one_device_leaves_no_collective_in_the_program(name):  # L4: XLA would make a copy of each
    hlo, planned = compiled(reducer_of(name), mesh_sizes={"host": 1, "device": 1})
    assert not planned
    assert not re.findall(r"(?:all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)\(", hlo)


def test_all_notations_of_groups_mean_the_same():
    over_host = groups_over(("host",), {"host": 2, "device": 3})
    assert over_host == {frozenset({0, 3}), frozenset({1, 4}), frozenset({2, 5})}
    for text in (
        "replica_groups={{0,3},{1,4},{2,5}}",
        "replica_groups=[3,2]<=[2,3]T(1,0)",
        "replica_groups=mesh['host'=2,'device'=3] {'host'}",
    ):
        assert parse_groups(text) == over_host
    assert parse_groups("replica_groups=[2,3]<=[6]") == groups_over(("device",), {"host": 2, "device": 3})
    assert parse_groups("channel_id=1, replica_groups={}") == frozenset()


def test_asynchronous_collectives_are_counted_once_by_their_results():
    hlo = """
ENTRY %main (p: f32[8]) -> f32[8] {
  %ars = f32[8]{0} all-reduce-start(%p), replica_groups={{0,1}}, to_apply=%add
  %ard = f32[8]{0} all-reduce-done(%ars)
  %ags = (f32[4]{0}, f32[8]{0}) all-gather-start(%x), replica_groups=[1,2]<=[2], dimensions={0}
  %agd = f32[8]{0} all-gather-done(%ags)
  %cps = (c64[8]{0}, c64[8]{0}, u32[], u32[]) collective-permute-start(%y), source_target_pairs={{0,1}}
  %cpd = c64[8]{0} collective-permute-done(%cps)
}
"""
    found = collectives_in(hlo)
    assert [(item.kind, item.arrays) for item in found] == [
        ("all-reduce", (("float32", 8),)),
        ("all-gather", (("float32", 8),)),
        ("collective-permute", (("complex64", 8),)),
    ]


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_this_jaxlib_knows_the_options(platform):
    """One options record serves all backends, so a name that has gone is noticed without the hardware."""
    compiled = jax.jit(lambda x: x + 1, compiler_options=comm.compiler_options(platform))
    assert compiled(1) == 2


def test_an_unknown_option_is_an_error():
    with pytest.raises(Exception, match="xla_no_such_option"):
        jax.jit(lambda x: x + 1, compiler_options={"xla_no_such_option": True})(1)


def test_what_a_plan_leaves_out_is_told_and_every_planned_one_has_its_place():
    hlo, planned = compiled(bucketed(scattered("device", all_reduce("host")), LAYER_BYTES))
    whole = comm.verify(hlo, planned, MESH_SIZES)
    assert sorted(whole.places) == list(range(len(planned)))
    assert [whole.found[place].kind for place in whole.places] == [each.kind for each in planned]
    part = comm.verify(hlo, [each for each in planned if each.kind != "all-gather"], MESH_SIZES)
    assert part.ok
    assert len(part.extra) == 4
    assert "it has 4 more, which nothing planned (first: all-gather of" in part.explain()
    other = comm.verify(hlo, [*planned, planned[0]], MESH_SIZES)
    assert (other.ok, other.places[-1]) == (False, None)


def two_sums(same, held=False):
    """A step that adds two branches and so has equal gradients of their biases; with `same` false, of unequal ones.

    Both are filled with zeros, as messages are, and with `held` one waits for something else.
    """

    def step(a, b, x):
        a, b = (lax.pcast(each, comm.AXES, to="varying") for each in (a, b))

        def loss(a, b):
            return (jnp.tanh(x + a + (b if same else 2 * b)) ** 2).sum()

        first, second = (jnp.concatenate([each, jnp.zeros_like(each)]) for each in jax.grad(loss, (0, 1))(a, b))
        if held:
            first, _ = lax.optimization_barrier((first, x))
        return [lax.psum(each, comm.AXES) for each in (first, second)]

    mapped = jax.shard_map(step, mesh=mesh(MESH_SIZES), in_specs=(P(), P(), P(comm.AXES)), out_specs=P())
    shapes = [jax.ShapeDtypeStruct((WIDTH,), "float32")] * 2
    traced = jax.jit(mapped, compiler_options=comm.compiler_options("cpu")).trace(
        *shapes, jax.ShapeDtypeStruct((8 * WIDTH,), "float32")
    )
    return traced.jaxpr, traced.lower().compile().as_text()


PLANNED = comm.Collective("all-reduce", comm.AXES, 8, 2 * WIDTH, "float32")


def test_equal_sums_are_one_in_the_program_and_none_is_missing():
    jaxpr, hlo = two_sums(same=True)
    check = comm.verify(hlo, [PLANNED] * 2, MESH_SIZES)
    assert len(check.found) == len(check.missing) == 1
    check = comm.verify(hlo, [PLANNED] * 2, MESH_SIZES, jaxpr)
    assert check.ok
    assert check.repeated == (1,)
    assert check.places == (0, None)
    assert check.explain() == (
        "all 2 planned collectives are in the compiled program, 1 of them as another one, which sends the same numbers"
    )


def test_a_message_that_waits_is_equal_all_the_same():
    assert len(comm.verify("", [PLANNED] * 2, MESH_SIZES).missing) == 2
    assert comm.verify("", [PLANNED] * 2, MESH_SIZES, two_sums(same=True, held=True)[0]).repeated == (1,)
    assert comm.verify("", [PLANNED] * 2, MESH_SIZES, two_sums(same=False, held=True)[0]).repeated == ()


def test_unequal_sums_of_one_size_are_no_excuse_for_each_other():
    jaxpr, hlo = two_sums(same=False)
    assert comm.verify(hlo, [PLANNED] * 2, MESH_SIZES, jaxpr).ok
    for traced in (None, jaxpr):
        assert comm.verify(hlo, [PLANNED] * 3, MESH_SIZES, traced).missing == (PLANNED,)
    jaxpr, hlo = two_sums(same=True)
    assert comm.verify(hlo, [PLANNED] * 3, MESH_SIZES, jaxpr).missing == (PLANNED,)


def test_what_is_left_out_takes_no_place_of_a_smaller_one_that_is_filled_up(monkeypatch):
    """Between two slices of four chips: two equal sums of 1,024 elements are one, and one of 1,000 is filled up."""

    def step(a, b):
        return [lax.psum(each, "host") for each in (a, a, b)]

    mapped = jax.shard_map(step, mesh=mesh(MESH_SIZES), in_specs=P("host"), out_specs=P())
    jaxpr = jax.jit(mapped).trace(jnp.zeros(2 * 1024), jnp.zeros(2 * 1000)).jaxpr
    planned = [comm.Collective("all-reduce", ("host",), 2, elements, "float32") for elements in (1024, 1024, 1000)]
    arrays = (("float32", 1024),)
    sent = comm.FoundCollective("all-reduce", frozenset(), arrays, 0, "", "", transport="dcn", partitions=4)
    module = sys.modules["jaxnet.comm.verify"]  # the name in `comm` is that of the function
    monkeypatch.setattr(module, "collectives_in", lambda hlo: [replace(sent, name=name) for name in ("a", "b")])
    check = comm.verify("", planned, MESH_SIZES, jaxpr)
    assert (check.missing, check.repeated, check.extra) == ((), (1,), ())
    assert check.places == (0, None, 1)
    assert [each.elements for each in comm.verify("", planned, MESH_SIZES).missing] == [1000]
