"""Collectives are found in every spelling of the compilers, with what is computed while they travel."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jaxnet import comm
from jaxnet.comm import Collective, collectives_in, programs_in, schedule

SIZES = {"host": 2, "device": 4}
EVERYONE = "replica_groups={{0,1,2,3,4,5,6,7}}"


def program(*entry, computations="", header=""):
    lines = "\n".join(f"  {line}" for line in entry)
    return f"HloModule step, is_scheduled=true{header}\n\n{computations}\nENTRY %main () -> f32[8] {{\n{lines}\n}}\n"


# ---- One spelling each: lines before what is computed meanwhile, lines behind it, computations --------------------


def plain(n):
    return [f"%a{n} = f32[{n}]{{0}} all-reduce(%x), {EVERYONE}, to_apply=%add"], [], ""


def pair(n):
    """A GPU's."""
    return (
        [f"%a{n} = f32[{n}]{{0}} all-reduce-start(%x), channel_id=1, {EVERYONE}, to_apply=%add"],
        [f"%d{n} = f32[{n}]{{0}} all-reduce-done(%a{n})"],
        "",
    )


def generic(n):
    """The general form, in which the start calls a computation."""
    inside = f"%c{n} (p: f32[{n}]) -> f32[{n}] {{\n  ROOT %r{n} = f32[{n}]{{0}} all-reduce(%p), {EVERYONE}\n}}\n"
    started = f"%a{n} = ((f32[{n}]{{0}}), f32[{n}]{{0}}, u32[]) async-start(%x), calls=%c{n}"
    passed = f"%u{n} = ((f32[{n}]{{0}}), f32[{n}]{{0}}, u32[]) async-update(%a{n})"
    return [started], [passed, f"%d{n} = f32[{n}]{{0}} async-done(%u{n})"], inside


def chained(n):
    """A TPU's: fusions, each with a part, the middle one beside a product."""
    part = f'f32[{n}]{{0:T(1024)S(1)}} all-reduce(%p), {EVERYONE}, frontend_attributes={{chain_id="{n}"}}'
    held = "".join(
        f"%{name}{n} (p: f32[{n}]) -> f32[{n}] {{\n{product}  ROOT %r{name}{n} = {part}\n}}\n"
        for name, product in (
            ("s", ""),
            ("m", "  %q = f32[4,4]{1,0} dot(%p, %p), lhs_contracting_dims={1}\n"),
            ("e", ""),
        )
    )
    return (
        [f"%a{n} = (f32[{n}]{{0:T(1024)S(1)}}, u32[]{{:S(2)}}) fusion(%x), kind=kCustom, calls=%s{n}"],
        [
            f"%b{n} = (f32[4,4]{{1,0}}, f32[{n}]{{0}}) fusion(%a{n}), kind=kOutput, calls=%m{n}",
            f"%d{n} = f32[{n}]{{0}} fusion(%b{n}), kind=kCustom, calls=%e{n}",
        ],
        held,
    )


SPELLINGS = {plain: 0, pair: 0, generic: 0, chained: 1}  # and the products that stand beside it in any case
WORK = "%w{n} = f32[4]{{0}} fusion(%x), kind=kLoop, calls=%loop"
NAMES = "%g{n} = f32[4]{{0}} bitcast(%x)"


@given(st.lists(st.tuples(st.sampled_from(list(SPELLINGS)), st.integers(0, 3), st.integers(0, 2)), max_size=6))
def test_every_spelling_is_one_collective_with_what_is_computed_meanwhile(drawn):
    lines, computations, wanted = [], "%loop (p: f32[4]) -> f32[4] {\n  ROOT %n = f32[4]{0} negate(%p)\n}\n", []
    for index, (spelling, busy, idle) in enumerate(drawn):
        elements = 8 * (index + 1)
        before, behind, inside = spelling(elements)
        meanwhile = [WORK.format(n=f"{index}.{i}") for i in range(busy)]
        meanwhile += [NAMES.format(n=f"{index}.{i}") for i in range(idle)]
        lines += [*before, *meanwhile, *behind]
        computations += inside
        wanted.append(("all-reduce", (("float32", elements),), SPELLINGS[spelling] + (busy if behind else 0)))
    found = collectives_in(program(*lines, computations=computations))
    assert [(each.kind, each.arrays, each.compute_during) for each in found] == wanted


def test_two_under_way_at_once_are_told_apart():
    (first, first_done, _), (second, second_done, _) = pair(8), pair(16)
    work = [WORK.format(n=index) for index in range(3)]
    text = program(*first, work[0], *second, work[1], *first_done, work[2], *second_done)
    one, two = collectives_in(text)
    assert (one.compute_during, two.compute_during) == (2, 2)
    names = [step.name for step in schedule(next(programs_in(text)))]
    assert (names[one.start], names[one.done], names[two.start], names[two.done]) == ("a8", "d8", "a16", "d16")


def test_between_tpu_slices_a_sum_is_sent_and_received():
    attributes = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="psum_0",'
        '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    text = program(
        "%near = f32[4,128]{1,0} reduce-scatter(%x), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add",
        f"%send = (f32[4,128]{{1,0:T(4,128)}}, u32[], token[]) send(%near, %after), channel_id=3, {attributes}",
        f"%recv = (f32[4,128]{{1,0:T(4,128)}}, u32[], token[]) recv(%after), channel_id=2, {attributes}",
        WORK.format(n=0),
        "%send-done = token[] send-done(%send), channel_id=3, is_host_transfer=true",
        "%recv-done = (f32[4,128]{1,0}, token[]) recv-done(%recv), channel_id=2, is_host_transfer=true",
        "%got = f32[4,128]{1,0} get-tuple-element(%recv-done), index=0",
        "%all = f32[2048]{0} all-gather(%got), replica_groups={{0,1,2,3}}, dimensions={0}",
        header=", num_partitions=4",
    )
    near, far, gather = collectives_in(text)
    assert (far.kind, far.transport, far.arrays, far.compute_during) == ("all-reduce", "dcn", (("float32", 512),), 1)
    assert (near.kind, gather.kind) == ("reduce-scatter", "all-gather")
    planned = [
        Collective("reduce-scatter", ("device",), 4, 2048, "float32"),
        Collective("all-reduce", ("host",), 2, 500, "float32"),  # filled up to a tile
        Collective("all-gather", ("device",), 4, 2048, "float32"),
    ]
    check = comm.verify(text, planned, SIZES)
    assert check.ok
    assert check.extra == ()
    assert [collective.elements for collective, _ in check.recoded] == [500]
    everywhere = Collective("all-reduce", ("host", "device"), 8, 2000, "float32")  # whose stages XLA chose itself
    assert comm.verify(text, [everywhere], SIZES).extra == ()
    assert not comm.verify(text, [replace(everywhere, elements=7000)], SIZES).ok
    assert not comm.verify(text, [replace(everywhere, elements=2000, dtype="int32")], SIZES).ok


def test_equal_messages_leave_xlas_own_stages_together():
    """Between slices, a planned sum is not found in that of a sum over all devices, which XLA cuts itself."""

    def far(name, of):
        attributes = (
            f'is_host_transfer=true, frontend_attributes={{_xla_host_transfer_rendezvous="{name}",'
            '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
        )
        buffer = "(f32[4,128]{1,0:T(4,128)}, u32[], token[])"
        return [
            f"%send-{name} = {buffer} send({of}, %after), channel_id=3, {attributes}",
            f"%recv-{name} = {buffer} recv(%after), channel_id=2, {attributes}",
            f"%send-done-{name} = token[] send-done(%send-{name}), channel_id=3, is_host_transfer=true",
            f"%recv-done-{name} = (f32[4,128]{{1,0}}, token[]) recv-done(%recv-{name}), channel_id=2",
            f"%got-{name} = f32[4,128]{{1,0}} get-tuple-element(%recv-done-{name}), index=0",
        ]

    inside = "replica_groups={{0,1,2,3}}"
    text = program(
        f"%near = f32[1920]{{0}} all-reduce(%x), {inside}, to_apply=%add",
        "%part = f32[4,128]{1,0} bitcast(%near)",
        *far("own", "%part"),
        f"%all = f32[2048]{{0}} all-gather(%got-own), {inside}, dimensions={{0}}",
        f"%scattered = f32[4,128]{{1,0}} reduce-scatter(%x), {inside}, dimensions={{0}}, to_apply=%add",
        *far("planned", "%scattered"),
        f"%whole = f32[2048]{{0}} all-gather(%got-planned), {inside}, dimensions={{0}}",
        header=", num_partitions=4",
    )
    planned = [
        Collective("reduce-scatter", ("device",), 4, 2048, "float32"),
        Collective("all-reduce", ("host",), 2, 512, "float32"),
        Collective("all-gather", ("device",), 4, 2048, "float32"),
        Collective("all-reduce", ("host", "device"), 8, 1900, "float32"),
    ]
    check = comm.verify(text, planned, SIZES)
    assert (check.missing, check.extra) == ((), ())
    assert [check.found[place].of for place in check.places] == ["", "scattered", "send-planned", "near"]


def planned_as(dtype, elements):
    return [Collective("all-reduce", ("host", "device"), 8, elements, dtype)]


def test_a_message_in_other_words_is_found_and_said():
    packed = program(f"%a = u32[500]{{0}} all-reduce(%x), {EVERYONE}")
    narrower = program(f"%a = bf16[500]{{0}} all-reduce(%x), {EVERYONE}")
    for text, dtype, elements in ((packed, "float16", 1000), (narrower, "float32", 500)):
        check = comm.verify(text, planned_as(dtype, elements), SIZES)
        assert (check.ok, len(check.recoded), check.extra) == (True, 1, ())
        assert "1 of them in other words" in check.explain()


def test_a_message_of_another_size_or_wider_is_missing():
    text = program(f"%a = f32[500]{{0}} all-reduce(%x), {EVERYONE}")
    assert not comm.verify(text, planned_as("bfloat16", 500), SIZES).ok
    assert not comm.verify(text, planned_as("float32", 499), SIZES).ok
    assert comm.verify(text, planned_as("float32", 500), SIZES).recoded == ()


def test_in_a_loop_it_counts_once_and_what_is_computed_around_the_loop_counts():
    body = f"%body (p: f32[8]) -> f32[8] {{\n  %a = f32[8]{{0}} all-reduce(%p), {EVERYONE}\n}}\n"
    dot = "%q{n} = f32[4,4]{{1,0}} dot(%x, %x), lhs_contracting_dims={{1}}"
    loop = "%l = f32[8]{0} while(%x), condition=%until, body=%body"
    text = program(dot.format(n=0), loop, dot.format(n=1), *plain(16)[0], computations=body)
    assert [(each.name, each.compute_before) for each in collectives_in(text)] == [("a", 1), ("a16", 1)]
