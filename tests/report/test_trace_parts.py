"""Parts of a trace: messages, marks of ends, programs."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.comm import collectives_in
from jaxnet.report.programs import axes_of, bucket_of, read_program, scope_of
from jaxnet.report.trace import Thread
from jaxnet.report.xspace import ProtoMessage
from support.traces import HLO


def varint(number):
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


@given(st.integers(1, 2**20), st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_a_message_gives_back_what_was_put_in(field, number, content):
    inner = varint(field << 3) + varint(number)
    outer = varint(field << 3 | 2) + varint(len(inner)) + inner + varint((field + 1) << 3 | 2)
    message = ProtoMessage(outer + varint(len(content)) + content + varint((field + 2) << 3 | 1) + bytes(8))
    assert message.message(field).number(field) == number
    assert [one.number(field) for one in message.messages(field)] == [number]
    assert message.bytes(field + 1) == content
    assert message.bytes(field + 2) == bytes(8)
    assert message.number(field + 3) == 0


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_a_value_error(content):
    with contextlib.suppress(ValueError):
        ProtoMessage(content)


@pytest.mark.parametrize("content", [b"\x08", b"\x0a\x05ab", b"\x0b", b"\x80"])
def test_cut_messages_are_refused(content):
    with pytest.raises(ValueError, match="byte"):
        ProtoMessage(content)


def test_an_end_is_marked_after_what_the_thread_resumed():
    """Flow 1 ran from 10; its last part, on another thread, ended at 30 and went on with the program until 90."""
    thread = Thread(marks=[(1, 91)], resumed=[(90, 30)], tasks=[20, 92])
    assert dict(thread.ends({1: 10})) == {1: 30}


def test_an_end_after_another_task_is_where_it_is_marked():
    thread = Thread(marks=[(1, 91)], resumed=[(80, 30)], tasks=[20, 85])
    assert dict(thread.ends({1: 10})) == {1: 91}


def test_what_a_thread_resumed_before_the_instruction_is_not_its_end():
    thread = Thread(marks=[(1, 60)], resumed=[(40, 30)], tasks=[20])
    assert dict(thread.ends({1: 50})) == {1: 60}


def test_a_program():
    program = read_program(HLO)
    assert program.name == "jit_step"
    assert set(program.collectives) == {"psum.0", "psum.1", "psum.9"}
    assert program.enclosing == {"while.1"}
    assert program.devices == 2
    assert {name: bucket_of(found) for name, found in program.collectives.items()} == {
        "psum.9": None,
        "psum.0": 0,
        "psum.1": 1,
    }


@pytest.mark.parametrize(
    ("attributes", "axes"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", ("device",)),
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", ("host",)),
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", ("device",)),
        ("replica_groups={}", ("host", "device")),
        ("source_target_pairs={{0,4},{4,0}}", ("host",)),
    ],
)
def test_the_axes_of_a_collective(attributes, axes):
    op = "collective-permute" if "pairs" in attributes else "all-reduce"
    [found] = collectives_in(f"  %c.1 = f32[8]{{0}} {op}(%x), {attributes}\n")
    assert axes_of(found, {"host": 2, "device": 4}) == axes
    assert axes_of(found, {"host": 1, "device": 1}) == ()


def test_mpi_carries_across_hosts():
    """Each device's own call is one of the program's collectives."""
    call = '  %{} = (f32[8]{{0}}, token[]) custom-call(%x, %t), custom_call_target="mpi_allreduce_ffi"'
    lines = [
        "%one (p: f32[8]) -> f32[8] {",
        call.format("a"),
        "}",
        "%two (p: f32[8]) -> f32[8] {",
        call.format("b"),
        "}",
    ]
    lines += ["ENTRY %main (x: f32[8]) -> f32[8] {"]
    lines += ["  %s = f32[8]{0} conditional(%i, %x, %x), branch_computations={%one, %two}", "}"]
    program = read_program("\n".join(lines))
    assert set(program.collectives) == {"a", "b"}
    assert program.enclosing == {"s"}
    assert {axes_of(found, {"host": 1, "device": 2}) for found in program.collectives.values()} == {("host",)}


@pytest.mark.parametrize(
    ("op_name", "scope", "bucket"),
    [
        ("jit(f)/shard_map/bucket_12/psum", "bucket_12", 12),
        ("jit(f)/shard_map/metrics/bucket_0/psum", "metrics/bucket_0", 0),
        ("jit(f)/shard_map/bucket_3/bucket_0/psum", "bucket_3/bucket_0", 3),
        ("jit(f)/shard_map/jvp(CNN)/norm_0/psum", "jvp(CNN)/norm_0", None),
        ("", "", None),
    ],
)
def test_scope_and_bucket(op_name, scope, bucket):
    [found] = collectives_in(f'  %c.1 = f32[8] all-reduce(%x), replica_groups={{}}, metadata={{op_name="{op_name}"}}\n')
    assert (scope_of(found), bucket_of(found)) == (scope, bucket)
