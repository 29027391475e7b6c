"""Networks of tokens read those before a place and never those after it."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet.errors import InputError
from jaxnet.models import TextLSTM, Transformer, abstract_variables, from_linen
from jaxnet.models.attention import Attention, gelu

TOKENS = np.random.RandomState(0).randint(0, 7, (3, 6)).astype(np.int32)
NETS = [Transformer(7, positions=8, dim=16, depth=2, heads=2), TextLSTM(7, hidden=8, layers=2)]


def test_causal_attention_is_attention_to_a_prefix():
    """The output at a place is that of attention without a mask, over the tokens up to it."""
    x = np.random.RandomState(0).standard_normal((2, 5, 12)).astype(np.float32)
    causal, full = (Attention(heads=3, dropout=0.0, dtype="float32", causal=of) for of in (True, False))
    told = {"train": False, "keys": None}
    ours, variables = jax.jit(functools.partial(causal.init_with_output, **told))(jax.random.key(0), x)
    attend = jax.jit(functools.partial(full.apply, **told))
    for place in range(5):
        wanted = attend(variables, x[:, : place + 1])[:, -1]
        np.testing.assert_allclose(ours[:, place], wanted, atol=1e-5)


@pytest.mark.parametrize("net", NETS, ids=lambda net: type(net).__name__)
def test_a_token_changes_what_follows_and_nothing_before(net):
    model = from_linen(net)
    variables = jax.jit(model.init)(jax.random.key(1), TOKENS)
    evaluate = jax.jit(lambda tokens: model.apply(*variables, tokens, train=False, keys=None)[0])
    other = TOKENS.copy()
    other[:, 3] = (other[:, 3] + 1) % 7
    before, after = evaluate(TOKENS), evaluate(other)
    assert before.shape == (3, 6, 7)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (abs(before[:, 3:] - after[:, 3:]).max((0, 2)) > 0).all()


@pytest.mark.parametrize("net", NETS, ids=lambda net: type(net).__name__)
def test_dropout_belongs_to_the_example(net):
    model = from_linen(net.clone(dropout=0.5))
    variables = jax.jit(model.init)(jax.random.key(1), TOKENS)
    train = jax.jit(lambda tokens, keys: model.apply(*variables, tokens, train=True, keys=keys)[0])
    keys = jax.random.split(jax.random.key(2), 3)
    together = train(TOKENS, keys)
    for row in range(3):
        np.testing.assert_allclose(train(TOKENS[row : row + 1], keys[row : row + 1])[0], together[row], atol=1e-5)
    assert abs(together - train(TOKENS, keys[::-1])).max() > 1e-3


def test_half_precision_computes_in_it_and_gives_float32():
    model = from_linen(NETS[0].clone(dtype="bfloat16"))
    variables = abstract_variables(model, jax.ShapeDtypeStruct((1, 6), "int32"))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(variables.params)} == {"float32"}
    run = lambda params: model.apply(params, {}, TOKENS, train=False, keys=None)[0]  # noqa: E731
    assert jax.eval_shape(run, variables.params).dtype == jnp.float32
    assert "bf16" in str(jax.make_jaxpr(run)(variables.params))


def test_the_parameters_of_gpt2():
    """124 million, of which the tied embedding of GPT-2 is counted twice here."""
    net = Transformer(50257, positions=1024, dim=768, depth=12, heads=12)
    params = abstract_variables(from_linen(net), jax.ShapeDtypeStruct((1, 8), "int32")).params
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 124_439_808 + 50257 * 768 + 50257


def test_what_does_not_fit_is_named():
    with pytest.raises(InputError, match=r"sequences of 9 tokens: set model.positions to at least 9"):
        abstract_variables(from_linen(NETS[0]), jax.ShapeDtypeStruct((1, 9), "int32"))
    with pytest.raises(InputError, match=r"dim must be a multiple of heads, got 10 and 4"):
        Transformer(dim=10)


def test_gelu_and_its_gradient_are_those_of_the_error_function():
    x = np.linspace(-6, 6, 101, dtype=np.float32)
    of_half = 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5))
    np.testing.assert_allclose(gelu(x), x * of_half, atol=2e-6)
    slope = of_half + x * np.exp(-(x**2) / 2) / (2 * np.pi) ** 0.5
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(gelu)))(x), slope, atol=2e-5)


@pytest.mark.parametrize(("platform", "again"), [("cpu", True), ("tpu", False), ("cuda", False)])
def test_backward_computes_gelu_once_more_on_cpus_alone(platform, again):
    gradient = jax.jit(jax.grad(lambda x: gelu(x).sum())).trace(jax.ShapeDtypeStruct((8,), "float32"))
    text = gradient.lower(lowering_platforms=(platform,)).as_text()
    assert ("optimization_barrier" in text) == again
