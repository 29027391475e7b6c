"""Codecs: the error of a message that was encoded and decoded, its bytes, and that a NaN always shows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxnet.comm import codecs
from jaxnet.comm.codecs import pack_bits, packed_size, unpack_bits
from support.shares import every_share

BLOCK = 16
CODECS = {
    "float16": codecs.float16,
    "bfloat16": codecs.bfloat16,
    "int8": codecs.int8(BLOCK),
    "one_bit": codecs.one_bit(BLOCK),
    "two_bit": codecs.two_bit(0.5),
    "top_k": codecs.top_k(0.1),
}
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
# A few sizes only: each is compiled anew. None, one, around a block, several blocks and a rest.
sizes = st.sampled_from([0, 1, 15, 16, 17, 40])
messages = arrays(np.float32, sizes, elements=st.floats(-100, 100, width=32, allow_subnormal=False))
few = settings(max_examples=20)


@functools.cache
def compiled(codec):
    """Its two halves, one program each for a size: step by step, every operation would be compiled."""
    return jax.jit(codec.encode), jax.jit(codec.decode, static_argnums=1)


@functools.cache
def in_one_message(codec):
    return codecs.one_message(codec)


def there_and_back(codec, message):
    encode, decode = compiled(codec)
    return np.asarray(decode(encode(jnp.asarray(message)), message.size))


def step_by_step(codec, message):
    return np.asarray(codec.decode(codec.encode(jnp.asarray(message)), message.size))


def blocks(message):
    return [message[start : start + BLOCK] for start in range(0, message.size, BLOCK)]


@every_codec
@few
@given(message=messages)
def test_a_message_comes_back_as_float32_of_the_same_length(codec, message):
    for wire in (codec, in_one_message(codec)):
        again = there_and_back(wire, message)
        assert again.dtype == np.float32
        assert again.shape == message.shape


@every_codec
@few
@given(message=messages)
def test_the_written_spec_is_what_encode_makes(codec, message):
    spec = jax.ShapeDtypeStruct(message.shape, np.float32)
    for wire in (codec, in_one_message(codec)):
        assert wire.spec(spec) == jax.eval_shape(wire.encode, spec)


@every_codec
@few
@given(message=messages)
def test_side_by_side_as_bytes_nothing_changes(codec, message):
    wire = in_one_message(codec)
    np.testing.assert_array_equal(there_and_back(wire, message), there_and_back(codec, message))
    assert len(compiled(wire)[0](jnp.asarray(message))) == 1


@every_codec
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17])
def test_zeros_stay_zeros(codec, size):
    np.testing.assert_array_equal(there_and_back(codec, np.zeros(size, np.float32)), np.zeros(size))


@few
@given(messages)
def test_float16_is_numpys(message):
    np.testing.assert_array_equal(there_and_back(codecs.float16, message), message.astype(np.float16))


@few
@given(messages)
def test_bfloat16_is_within_two_to_the_minus_eight_and_travels_as_two_bytes(message):
    [sent] = compiled(codecs.bfloat16)[0](jnp.asarray(message))
    assert sent.dtype == jnp.uint16
    np.testing.assert_allclose(there_and_back(codecs.bfloat16, message), message, rtol=2**-8, atol=1e-37)


@few
@given(messages)
def test_int8_is_within_half_a_level_of_its_blocks_largest_which_is_exact(message):
    """Exact step by step: compiled, XLA may multiply by 1/127, which is off by one last bit in one of twenty."""
    again = step_by_step(CODECS["int8"], message)
    for block, decoded in zip(blocks(message), blocks(again), strict=True):
        peak = np.abs(block).max()
        assert (np.abs(decoded - block) <= peak / 254 * (1 + 1e-5) + 1.5e-36).all()
        largest = np.abs(block).argmax()
        if peak > 1e-30:
            assert decoded[largest] == block[largest]


@few
@given(messages)
def test_one_bit_is_the_mean_of_each_sign_in_its_block(message):
    """Against a plain reference, and its consequence: the sum of a block survives."""
    again = there_and_back(CODECS["one_bit"], message)
    for block, decoded in zip(blocks(message), blocks(again), strict=True):
        for chosen in (block >= 0, block < 0):
            mean = block[chosen].astype(np.float64).mean() if chosen.any() else 0
            np.testing.assert_allclose(decoded[chosen], mean, rtol=1e-5, atol=1e-30)
        np.testing.assert_allclose(decoded.sum(dtype=np.float64), block.sum(dtype=np.float64), atol=1e-3)
        assert np.linalg.norm(decoded - block) <= np.linalg.norm(block) * (1 + 1e-5) + 1e-30


@few
@given(messages)
def test_two_bit_takes_a_step_where_the_threshold_is_reached(message):
    want = np.where(message >= 0.5, 0.5, np.where(message <= -0.5, -0.5, 0))
    np.testing.assert_array_equal(there_and_back(CODECS["two_bit"], message), want)


@few
@given(messages)
def test_top_k_keeps_the_largest_as_they_are(message):
    again = there_and_back(CODECS["top_k"], message)
    kept = again != 0
    np.testing.assert_array_equal(again[kept], message[kept])
    assert kept.sum() <= np.ceil(0.1 * message.size)
    largest = np.sort(np.abs(message))[::-1][: int(np.ceil(0.1 * message.size))]
    np.testing.assert_array_equal(np.sort(np.abs(again))[::-1][: largest.size], largest)


@every_codec
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e30])
def test_tiny_and_huge_messages_are_not_lost_in_silence(codec, scale):
    """What is out of a codec's range is 0 when too small, for feedback to gather, and infinite when too large."""
    message = (scale * np.random.RandomState(0).uniform(0.5, 1, 40)).astype(np.float32)
    again = there_and_back(codec, message)
    if codec is codecs.float16 and scale > 65504:
        assert np.isinf(again).all()
    else:
        assert np.isfinite(again).all()
        assert (np.abs(again) <= max(np.abs(message).max() * (1 + 2**-8), 0.5)).all()
    scale_free = codec in (codecs.bfloat16, CODECS["int8"], CODECS["one_bit"], CODECS["top_k"])
    assert (np.abs(again).max() > 0.4 * scale) or not scale_free


@pytest.mark.parametrize("name", ["int8", "one_bit"])
def test_the_largest_floats_do_not_overflow(name):
    message = np.full(40, np.finfo(np.float32).max, np.float32)
    np.testing.assert_allclose(there_and_back(CODECS[name], message), message, rtol=1e-6)


@every_codec
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@few
@given(place=st.integers(0, 39), seed=st.integers(0, 99))
def test_what_is_not_finite_stays_visible(codec, bad, place, seed):
    message = np.random.RandomState(seed).standard_normal(40).astype(np.float32)
    message[place] = bad
    again = there_and_back(codec, message)
    assert not np.isfinite(again[place])


@every_codec
def test_compiled_codecs_equal_those_run_step_by_step(codec):
    message = jnp.asarray(np.random.RandomState(0).standard_normal(50), jnp.float32)
    encode, decode = compiled(codec)
    encoded = codec.encode(message)
    programs, steps = [encode(message), decode(encoded, 50)], [encoded, codec.decode(encoded, 50)]
    for got, want in zip(jax.tree.leaves(programs), jax.tree.leaves(steps), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)


@every_share
def test_share_of_the_bytes_of_float32(codec, share):
    size = 2**16
    sent = codec.spec(jax.ShapeDtypeStruct((size,), "float32"))
    assert sum(array.size * array.dtype.itemsize for array in sent) == share * 4 * size


PACK = jax.jit(pack_bits, static_argnums=1)
UNPACK = jax.jit(unpack_bits, static_argnums=(1, 2))


@pytest.mark.parametrize("bits", [1, 2, 4])
@few
@given(codes=st.lists(st.integers(0, 1), max_size=9))
def test_bits_unpack_to_what_was_packed(bits, codes):
    codes = np.array(codes, np.uint8) * (2**bits - 1)
    packed = PACK(jnp.asarray(codes), bits)
    assert packed.shape == (packed_size(codes.size, bits),)
    np.testing.assert_array_equal(UNPACK(packed, bits, codes.size), codes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: codecs.int8(block=0), "block must be at least 1"),
        (lambda: codecs.one_bit(block=-1), "block must be at least 1"),
        (lambda: codecs.two_bit(0), "threshold must be above 0, got 0"),
        (lambda: codecs.two_bit(float("nan")), "threshold must be above 0, got nan"),
        (lambda: codecs.top_k(0.0), "fraction must be above 0 and at most 0.5, got 0.0"),
        (lambda: codecs.top_k(0.6), "fraction must be above 0 and at most 0.5, got 0.6"),
    ],
)
def test_arguments_without_a_meaning_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
