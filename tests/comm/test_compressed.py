"""Compressed sums: sent plus residuals is what was given, in the planned bytes, with the same bits on all devices."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import AXES, bucketed, codecs, compressed, compressed_scattered, scattered
from support import laws
from support.laws import Trees, run_reducer, trees

SIZE, STEPS = 1000, 3  # no multiple of the blocks, nor of six devices
CODECS = {
    "float16": codecs.float16,
    "bfloat16": codecs.bfloat16,
    "int8": codecs.int8(64),
    "one_bit": codecs.one_bit(64),
    "two_bit": codecs.two_bit(0.8),
    "top_k": codecs.top_k(0.1),
}
STEPS_THERE_HALVES_BACK = compressed_scattered(*AXES, codec=codecs.two_bit(0.8), sum_codec=codecs.float16)
MESHES = [(1, 8), (2, 4), pytest.param((4, 2), marks=pytest.mark.slow), (3, 2), (1, 1)]
every_mesh = pytest.mark.parametrize("shape", MESHES, ids=lambda shape: "x".join(map(str, shape)))
every_codec = pytest.mark.parametrize("codec", CODECS)
FORMS = {"gathered": compressed, "scattered": compressed_scattered}
every_form = pytest.mark.parametrize("form", FORMS)


def grid(shape):
    return comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])


class Trial(NamedTuple):
    """Three steps of one reducer on one mesh."""

    given: list[np.ndarray]  # [hosts, devices, SIZE] for each step
    sums: list[np.ndarray]  # as given: what each device got
    states: list[object]
    hlo: str


@functools.cache
def compiled(reducer, shape):
    return laws.lowered(reducer, grid(shape), np.zeros((*shape, SIZE), np.float32), gather=True).compile()


@functools.cache
def trial(reducer, shape):
    draw, program = np.random.RandomState(0), compiled(reducer, shape)
    given = [draw.standard_normal((*shape, SIZE)).astype(np.float32) for _ in range(STEPS)]
    states, sums = [laws.stacked_state(reducer, grid(shape), given[0])], []
    for values in given:
        total, state = jax.device_get(program(values, states[-1]))
        sums.append(total)
        states.append(state)
    return Trial(given, sums, states, program.as_text())


@functools.cache
def flat(form, codec, feedback=True):
    return FORMS[form](*AXES, codec=CODECS[codec], feedback=feedback)


@functools.cache
def across_hosts(form):
    return scattered("device", FORMS[form]("host", codec=CODECS["one_bit"]))


@functools.cache
def halves(codec):
    """Compiled: step by step, every operation would be."""
    return jax.jit(codec.encode), jax.jit(codec.decode, static_argnums=1)


def there_and_back(codec, message):
    encode, decode = halves(codec)
    return np.asarray(decode(encode(jnp.asarray(message)), message.size))


def gathered_by_hand(codec, given, feedback):
    """Plain reference: [steps, devices, size] of messages to the sums of what the codec leaves of them."""
    left = np.zeros_like(given[0])
    for messages in given:
        wanted = messages + left if feedback else messages
        decoded = np.stack([there_and_back(codec, message) for message in wanted])
        left = wanted - decoded
        yield decoded.sum(0)


def scattered_by_hand(codec, given, feedback):
    """Plain reference: each device owns a shard."""
    devices, size = given[0].shape
    shard = -(-size // devices)
    padding = ((0, 0), (0, devices * shard - size))
    left, left_of_sums = np.zeros_like(given[0]), np.zeros((devices, shard), np.float32)
    for messages in given:
        wanted = np.pad(messages + left if feedback else messages, padding).reshape(devices, devices, shard)
        decoded = np.stack([[there_and_back(codec, p) for p in message] for message in wanted])
        left = (wanted - decoded).reshape(devices, -1)[:, :size]
        sums = decoded.sum(0) + (left_of_sums if feedback else 0)
        sent = np.stack([there_and_back(codec, p) for p in sums])
        left_of_sums = sums - sent
        yield sent.reshape(-1)[:size]


BY_HAND = {"gathered": gathered_by_hand, "scattered": scattered_by_hand}


@pytest.mark.parametrize("feedback", [True, False])
@every_codec
@every_form
def test_equals_the_reference_that_encodes_and_adds_by_hand(form, codec, feedback):
    shape = (2, 4)
    run = trial(flat(form, codec, feedback), shape)
    given = [values.reshape(8, SIZE) for values in run.given]
    wanted = BY_HAND[form](CODECS[codec], given, feedback)
    for got, want in zip(run.sums, wanted, strict=True):
        np.testing.assert_allclose(got[0, 0], want, rtol=1e-4, atol=1e-5)


@every_mesh
@every_codec
@every_form
def test_every_device_ends_with_the_same_bits(form, codec, shape):  # L3
    for total in trial(flat(form, codec), shape).sums:
        assert (total == total[:1, :1]).all()


def residual(form, state):
    """What all devices together have not sent yet."""
    if form == "gathered":
        return state.sum((0, 1), dtype=np.float64)
    own, of_sums = state
    return own.sum((0, 1), dtype=np.float64) + of_sums.reshape(-1)[:SIZE]


@every_mesh
@every_codec
@every_form
def test_what_was_sent_and_what_is_left_is_what_was_given(form, codec, shape):  # L7
    run = trial(flat(form, codec), shape)
    given = sum(values.sum((0, 1), dtype=np.float64) for values in run.given)
    sent = sum(total[0, 0].astype(np.float64) for total in run.sums)
    left = residual(form, run.states[-1]) if shape != (1, 1) else 0
    np.testing.assert_allclose(sent + left, given, atol=3e-5)
    assert shape == (1, 1) or np.abs(left).max() > 1e-6


@every_mesh
@every_form
def test_compressed_across_hosts_only(form, shape):  # L3, L6 and L7 of the nested form
    reducer = across_hosts(form)
    run = trial(reducer, shape)
    assert_as_planned(reducer, shape, run.hlo)
    assert all((total == total[:1, :1]).all() for total in run.sums)
    given = sum(values.sum((0, 1), dtype=np.float64) for values in run.given)
    sent = sum(total[0, 0].astype(np.float64) for total in run.sums)
    hosts, devices = shape
    left = 0
    if hosts > 1 and form == "gathered":
        left = run.states[-1].sum(0).reshape(-1)
    elif hosts > 1:
        own, of_sums = run.states[-1]  # [hosts, devices, shard], [hosts, devices, the owner's share of that shard]
        of_sums = of_sums.swapaxes(0, 1).reshape(devices, -1)[:, : SIZE // devices]
        left = (own.sum(0) + of_sums).reshape(-1)
    np.testing.assert_allclose(sent + left, given, atol=3e-5)


def assert_as_planned(reducer, shape, hlo):
    axis_sizes = grid(shape).shape
    planned = reducer.plan(jax.ShapeDtypeStruct((SIZE,), "float32"), axis_sizes).collectives
    check = comm.verify(hlo, planned, axis_sizes)
    assert check.ok, check.explain()
    assert not check.extra


@every_mesh
@every_codec
@every_form
def test_the_compiled_program_sends_the_planned_bytes_and_no_others(form, codec, shape):  # L6
    reducer = flat(form, codec)
    assert_as_planned(reducer, shape, trial(reducer, shape).hlo)


@pytest.mark.parametrize(
    ("codec", "dtype", "bytes_sent"),
    [
        ("float16", "float16", 2 * SIZE),
        ("bfloat16", "uint16", 2 * SIZE),
        ("int8", "uint8", SIZE + 4 * 16),
        ("one_bit", "uint8", SIZE / 8 + 8 * 16),
        ("two_bit", "uint8", SIZE / 4),
        ("top_k", "uint8", 8 * SIZE / 10),
    ],
)
def test_what_is_found_in_the_program_is_as_narrow_as_promised(codec, dtype, bytes_sent):
    """Read from the compiled program alone, without the plan."""
    run = trial(flat("gathered", codec), (2, 4))
    [found] = comm.verify(run.hlo, (), {"host": 2, "device": 4}).found
    [(found_dtype, elements)] = found.arrays
    assert found_dtype == dtype
    assert elements * np.dtype(dtype).itemsize == 8 * bytes_sent


@every_mesh
def test_sums_may_travel_by_another_codec(shape):  # L6 and L7
    """MXNet's way: steps of two bits to the owners, half precision back."""
    reducer = STEPS_THERE_HALVES_BACK
    run = trial(reducer, shape)
    assert_as_planned(reducer, shape, run.hlo)
    given = sum(values.sum((0, 1), dtype=np.float64) for values in run.given)
    sent = sum(total[0, 0].astype(np.float64) for total in run.sums)
    left = residual("scattered", run.states[-1]) if shape != (1, 1) else 0
    np.testing.assert_allclose(sent + left, given, atol=3e-5)


@every_form
@every_codec
def test_one_device_alone_gets_its_own_message_and_sends_nothing(form, codec):  # L4
    run = trial(flat(form, codec), (1, 1))
    assert comm.verify(run.hlo, (), {"host": 1, "device": 1}).found == ()
    for values, total in zip(run.given, run.sums, strict=True):
        np.testing.assert_array_equal(total, values)
    assert jax.tree.leaves(run.states) == []


@every_codec
@every_form
def test_the_state_keeps_its_type_and_init_needs_no_values(form, codec):  # L8
    reducer, shape = flat(form, codec), (2, 4)
    spec = jax.ShapeDtypeStruct((SIZE,), "float32")
    abstract = jax.eval_shape(lambda: reducer.init(spec, grid(shape).shape))
    for state in trial(reducer, shape).states:
        per_device = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[2:], s.dtype), state)
        assert jax.tree.structure(per_device) == jax.tree.structure(abstract)
        assert jax.tree.leaves(per_device) == jax.tree.leaves(abstract)


@every_codec
@every_form
def test_same_run_twice_gives_the_same_bits(form, codec):  # L9
    run = trial(flat(form, codec), (2, 4))
    again = trial.__wrapped__(flat(form, codec), (2, 4))
    for a, b in zip(jax.tree.leaves(run[1:3]), jax.tree.leaves(again[1:3]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("codec", ["float16", "bfloat16"])
@settings(max_examples=10)
@given(tree=trees())
def test_any_tree_in_buckets(codec, tree: Trees):
    """Small integers are exact in both, so the sums are too; shapes and dtypes are the leaves' own."""
    values = tree.values((2, 2))
    reducer = bucketed(compressed_scattered(*AXES, codec=CODECS[codec]), 64)
    got, _ = run_reducer(reducer, grid((2, 2)), values)
    for leaf, value in zip(jax.tree.leaves(got), jax.tree.leaves(values), strict=True):
        assert leaf.dtype == value.dtype
        np.testing.assert_array_equal(leaf, value.sum((0, 1)))


@every_form
def test_pmap_gives_the_same_bits(form):  # L10
    """As the step binds the axes: the devices by pmap, the host by vmap."""
    reducer, shape = flat(form, "one_bit"), (1, 8)
    run = trial(reducer, shape)
    one_host = jax.vmap(reducer.reduce, axis_name="host", axis_size=1)
    step = jax.pmap(one_host, "device", in_axes=1, out_axes=1)
    total, _ = jax.jit(step)(run.given[0], run.states[0])
    np.testing.assert_array_equal(total, run.sums[0])


@every_form
@every_codec
def test_an_empty_message_sends_nothing(form, codec):
    values = np.zeros((2, 4, 0), np.float32)
    total, state = run_reducer(flat(form, codec), grid((2, 4)), values)
    assert total.shape == (0,)
    assert jax.tree.leaves(state) == []
    assert flat(form, codec).plan(total, {"host": 2, "device": 4}).collectives == ()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@every_codec
@every_form
def test_what_is_not_finite_on_one_device_shows_on_all(form, codec, bad):
    values = np.ones((2, 4, SIZE), np.float32)
    values[1, 2, 7] = bad
    reducer, shape = flat(form, codec), (2, 4)
    state = laws.stacked_state(reducer, grid(shape), values)
    total, _ = jax.device_get(compiled(reducer, shape)(values, state))
    assert not np.isfinite(total[:, :, 7]).any()


@every_form
def test_a_message_that_is_already_summed_is_refused(form):
    reducer = flat(form, "int8")
    wrong = jax.shard_map(lambda x: reducer.reduce(x, ())[0], mesh=grid((2, 4)), in_specs=P(), out_specs=P())
    with pytest.raises(TypeError, match=r"already the same on every device.*pcast"):
        wrong(jnp.ones(8))


@every_form
def test_whole_numbers_are_refused(form):
    with pytest.raises(TypeError, match=r"floating-point messages, got int32.*all_reduce"):
        run_reducer(flat(form, "int8"), grid((1, 2)), np.ones((1, 2, 8), np.int32))
