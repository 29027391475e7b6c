"""Work is counted as XLA counts it, and a schedule in time hides what is computed beside it, and nothing else."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxnet.comm import programs_in
from jaxnet.cost.accelerators import ACCELERATORS, Cluster
from jaxnet.cost.scheduled import modelled, roofline
from jaxnet.cost.work import Counter, Work
from jaxnet.errors import InputError

H100 = Cluster.named("h100:2x8")


# ---- Names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "devices", "near"),
    [("h100:2x8", 16, 8), ("v5e:4x4", 16, 16), ("v6e:4x4/2", 32, 16), ("v5p:2x2x4", 16, 16), ("a100-40:1x4", 4, 4)],
)
def test_a_cluster_has_the_devices_of_its_name(name, devices, near):
    cluster = Cluster.named(name)
    assert (cluster.devices, cluster.near_devices) == (devices, near)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h100", "wanted KIND:SIZES"),
        ("z9:2x8", "kinds are a100-40"),
        ("h100:2x8x2", "wanted h100:HOSTSxDEVICES, got 3 sizes"),
        ("v5p:4x4", "wanted v5p:XxYxZ, got 2 sizes"),
        ("h100:2x8/2", "GPUs have no slices"),
        ("v5e:0x4", "wanted 1 to 16384 devices, got 0"),
        ("v5e:999999x999999", "wanted 1 to 16384 devices"),
        ("h100:٢x8", "wanted KIND:SIZES"),
    ],
)
def test_what_is_no_cluster_is_refused(name, words):
    with pytest.raises(InputError, match="--on") as error:
        Cluster.named(name)
    assert words in str(error.value)


def test_a_torus_whose_links_close_no_ring_sends_at_half_the_rate():
    assert Cluster.named("v5e:4x4").near_rate * 2 == Cluster.named("v5e:16x16").near_rate


# ---- Work --------------------------------------------------------------------------------------------------------


def flops(function, *shapes):
    """Those that are counted, and those that XLA says."""
    compiled = jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)).compile()
    [program] = programs_in(compiled.as_text())
    counter = Counter(program)
    counted = sum((counter.work(step) for step in program.entry), Work())
    return sum(counted.flops.values()), compiled.cost_analysis()["flops"]


def convolution(stride=1, groups=1):
    def function(images, kernel):
        return lax.conv_general_dilated(
            images,
            kernel,
            (stride, stride),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    return function


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (jnp.dot, [(64, 32), (32, 16)]),
        (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), [(8, 64, 32), (8, 32, 16)]),
        (convolution(), [(2, 16, 16, 8), (3, 3, 8, 16)]),
        (convolution(stride=2), [(2, 17, 17, 8), (3, 3, 8, 16)]),
        (convolution(groups=4), [(2, 16, 16, 8), (3, 3, 2, 16)]),
    ],
)
def test_products_count_as_xla_counts_them(function, shapes):
    counted, said = flops(function, *shapes)
    assert counted > 0
    assert counted == pytest.approx(said, rel=0.05)


def test_a_loop_counts_all_its_rounds():
    """XLA's own figure counts one."""
    counted, _ = flops(lambda a: lax.fori_loop(0, 7, lambda _, x: x @ x, a), (32, 32))
    assert counted == 7 * 2 * 32**3


def test_bytes_are_those_of_operands_and_results_and_of_slices_alone():
    text = """
%taken (p: f32[1000000]) -> f32[10] {
  %p = f32[1000000]{0} parameter(0)
  ROOT %s = f32[10]{0} slice(%p), slice={[0:10]}
}
ENTRY %main () -> f32[10] {
  %x = f32[1000000]{0} parameter(0)
  %whole = f32[1000000]{0} negate(%x)
  ROOT %part = f32[10]{0} fusion(%whole), kind=kLoop, calls=%taken
}
"""
    [program] = programs_in(text)
    counter = Counter(program)
    _, whole, part = program.entry
    assert (counter.work(whole).bytes, counter.work(part).bytes) == (8e6, 80)


def test_of_an_operand_that_is_written_in_part_only_the_part_counts():
    """Compilers put messages together so: piece after piece, in place."""
    text = """
%put (p: f32[1000000], q: f32[10]) -> f32[1000000] {
  %p = f32[1000000]{0} parameter(0)
  %q = f32[10]{0} parameter(1)
  %c = s32[] constant(0)
  ROOT %u = f32[1000000]{0} dynamic-update-slice(%p, %q, %c)
}
ENTRY %main () -> f32[1000000] {
  %x = f32[1000000]{0} parameter(0)
  %y = f32[10]{0} parameter(1)
  %i = s32[] parameter(2)
  %fused = f32[1000000]{0} fusion(%x, %y), kind=kLoop, calls=%put
  ROOT %plain = f32[1000000]{0} dynamic-update-slice(%fused, %y, %i)
}
"""
    [program] = programs_in(text)
    counter = Counter(program)
    *_, fused, plain = program.entry
    assert (counter.work(fused).bytes, counter.work(plain).bytes) == (80, 84)


def test_a_buffer_that_is_read_besides_counts_whole():
    text = """
%put (p: f32[1000000], q: f32[10]) -> (f32[1000000], f32[1000000]) {
  %p = f32[1000000]{0} parameter(0)
  %q = f32[10]{0} parameter(1)
  %c = s32[] constant(0)
  %n = f32[1000000]{0} negate(%p)
  ROOT %u = f32[1000000]{0} dynamic-update-slice(%p, %q, %c)
}
ENTRY %main () -> f32[1000000] {
  %x = f32[1000000]{0} parameter(0)
  %y = f32[10]{0} parameter(1)
  ROOT %fused = f32[1000000]{0} fusion(%x, %y), kind=kLoop, calls=%put
}
"""
    [program] = programs_in(text)
    assert Counter(program).work(program.entry[-1]).bytes == 2 * 4e6 + 40


def test_a_tpu_takes_the_cycles_that_its_compiler_says_if_they_are_more():
    loop = """
%body (p: f32[10]) -> f32[10] {
  %p = f32[10]{0} parameter(0)
  ROOT %n = f32[10]{0} negate(%p), backend_config={"estimated_cycles":"1500000"}
}
ENTRY %main () -> f32[10] {
  %x = f32[10]{0} parameter(0)
  ROOT %w = f32[10]{0} while(%x), body=%body, backend_config={"known_trip_count":{"n":"3"}}
}
"""
    [program] = programs_in(loop)
    work = Counter(program).work(program.entry[1])
    assert work.cycles == 3 * 1.5e6
    assert roofline(work, Cluster.named("v5e:4x4")) == 3e-3
    assert roofline(work, H100) == work.bytes / H100.accelerator.memory_rate


def test_library_calls_of_gpus_are_products():
    """Their convolutions name forward's dims whichever direction they are."""
    conv = 'window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$conv'
    text = f"""
ENTRY %main () -> f32[10] {{
  %x = f32[4,8,8,32]{{3,2,1,0}} parameter(0)
  %w = f32[64,3,3,32]{{3,2,1,0}} parameter(1)
  %g = f32[4,8,8,64]{{3,2,1,0}} parameter(2)
  %f = (f32[4,8,8,64]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%x, %w), {conv}Forward"
  %i = (f32[4,8,8,32]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%g, %w), {conv}BackwardInput"
  %k = (f32[64,3,3,32]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%x, %g), {conv}BackwardFilter"
}}
"""
    [program] = programs_in(text)
    counter = Counter(program)
    assert [counter.work(step).flops for step in program.entry[3:]] == [{"float32": 2 * 4 * 64 * 64 * 9 * 32}] * 3


# ---- Time --------------------------------------------------------------------------------------------------------


def test_an_operation_takes_as_long_as_its_products_or_its_bytes():
    kind = ACCELERATORS["h100"]
    assert roofline(Work({"bfloat16": 989e12}, 1.0), H100) == 1.0
    assert roofline(Work({}, kind.memory_rate), H100) == 1.0


MiB_OF_F32 = 2**18


def step(between, elements=64 * MiB_OF_F32, groups="{{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}}"):
    """A sum, beside which so many products of 8192 are computed, and one behind it."""
    products = [f"%q{i} = bf16[8192,8192]{{1,0}} dot(%m, %m), lhs_contracting_dims={{1}}" for i in range(between + 1)]
    start = f"%a = f32[{elements}]{{0}} all-reduce-start(%x), channel_id=1, replica_groups={groups}, to_apply=%add"
    done = f"%d = f32[{elements}]{{0}} all-reduce-done(%a)"
    lines = ["%m = bf16[8192,8192]{1,0} parameter(0)", start, *products[:between], done, products[between]]
    return "ENTRY %main () -> f32[8] {\n" + "\n".join(f"  {line}" for line in lines) + "\n}\n"


PRODUCT = 2 * 8192**3 / 989e12
SUM = 3e-6 + 2 * 7 / 8 * 4 * 64 * MiB_OF_F32 / 450e9  # latency, and what a device sends over NVLink


def test_what_is_computed_beside_a_sum_hides_it_and_the_rest_is_waited_for():
    for between, exposed in ((0, SUM), (1, max(0, SUM - PRODUCT)), (2, max(0, SUM - 2 * PRODUCT))):
        timeline = modelled(step(between), H100)
        [travel] = timeline.travels
        assert (travel.link, travel.seconds) == ("near", pytest.approx(SUM))
        assert travel.exposed == pytest.approx(exposed)
        assert timeline.compute == pytest.approx((between + 1) * PRODUCT)
        assert timeline.seconds == pytest.approx((between + 1) * PRODUCT + exposed)
        assert travel.beside.flops.get("bfloat16", 0) == between * 2 * 8192**3


def test_across_hosts_the_network_is_the_slower_link():
    pairs = ",".join(f"{{{i},{i + 8}}}" for i in range(8))
    [far] = modelled(step(0, groups=f"{{{pairs}}}"), H100).travels
    assert (far.link, far.seconds) == ("far", pytest.approx(10e-6 + 4 * 64 * MiB_OF_F32 / 50e9))
    everyone = ",".join(map(str, range(16)))
    [flat] = modelled(step(0, groups=f"{{{{{everyone}}}}}"), H100).travels
    assert flat.seconds == pytest.approx(10e-6 + 2 * 15 / 16 * 4 * 64 * MiB_OF_F32 / min(450e9, 8 * 50e9))


def test_two_sums_on_one_link_follow_each_other():
    group = "{{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}}"
    lines = [
        f"  %{name} = f32[{64 * MiB_OF_F32}]{{0}} all-reduce-start(%x), channel_id=1, replica_groups={group}"
        for name in "ab"
    ]
    lines += [f"  %done{name} = f32[{64 * MiB_OF_F32}]{{0}} all-reduce-done(%{name})" for name in "ab"]
    timeline = modelled("ENTRY %main () -> f32[8] {\n" + "\n".join(lines) + "\n}\n", H100)
    assert timeline.seconds == pytest.approx(2 * SUM)
    assert [travel.exposed for travel in timeline.travels] == [pytest.approx(SUM)] * 2
