"""Vision transformers compute what their definition says, under timm's names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet.errors import InputError
from jaxnet.models import ViT, from_linen
from jaxnet.models.attention import Attention
from jaxnet.models.vit import PatchEmbedding, vit_small, vit_tiny


def shapes(module, side=224):
    return jax.eval_shape(from_linen(module).init, jax.random.key(0), jnp.zeros((1, side, side, 3))).params


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_attention_one_head_and_one_query_at_a_time():
    x = np.random.RandomState(0).standard_normal((2, 5, 12)).astype(np.float32)
    module = Attention(heads=3, dropout=0.0, dtype="float32")
    ours, variables = module.init_with_output(jax.random.key(0), x, train=False, keys=None)
    params = jax.tree.map(np.asarray, variables["params"])
    wanted = np.zeros_like(x)
    for example in range(2):
        qkv = x[example] @ params["qkv"]["kernel"] + params["qkv"]["bias"]
        query, key, value = np.split(qkv, 3, -1)
        for head in range(3):
            at = slice(4 * head, 4 * head + 4)
            for token in range(5):
                scores = key[:, at] @ query[token, at] / 2
                weights = np.exp(scores) / np.exp(scores).sum()
                wanted[example, token, at] = weights @ value[:, at]
    wanted = wanted @ params["proj"]["kernel"] + params["proj"]["bias"]
    np.testing.assert_allclose(ours, wanted, atol=1e-5)


def test_patches_are_taken_row_by_row():
    images = jnp.arange(2.0 * 4 * 6).reshape(2, 4, 6, 1)
    module = PatchEmbedding(patch=2, dim=1, dtype="float32")
    params = {"proj": {"kernel": jnp.ones((2, 2, 1, 1)), "bias": jnp.zeros(1)}}
    sums = module.apply({"params": params}, images)
    plain = [[images[n, y : y + 2, x : x + 2].sum() for y in (0, 2) for x in (0, 2, 4)] for n in range(2)]
    np.testing.assert_allclose(sums[..., 0], plain)


def test_names_are_those_of_timm():
    params = shapes(vit_tiny())
    assert set(params) == {"cls_token", "pos_embed", "patch_embed", "norm", "head", *(f"blocks_{i}" for i in range(12))}
    assert {name: set(layer) for name, layer in params["blocks_0"].items()} == {
        "norm1": {"scale", "bias"},
        "attn": {"qkv", "proj"},
        "norm2": {"scale", "bias"},
        "mlp": {"fc1", "fc2"},
    }
    assert params["pos_embed"].shape == (1, 197, 192)


@pytest.mark.parametrize(("build", "dim"), [(vit_tiny, 192), (vit_small, 384)])
def test_parameters_by_hand(build, dim):
    embedding = 16 * 16 * 3 * dim + dim + dim + 197 * dim
    block = 2 * 2 * dim + (3 * dim * dim + 3 * dim) + (dim * dim + dim) + (8 * dim * dim + 5 * dim)
    assert count(shapes(build())) == embedding + 12 * block + 2 * dim + dim * 1000 + 1000


def test_the_mean_over_patches_needs_no_token():
    params = shapes(vit_tiny(pool="mean"))
    assert params["pos_embed"].shape == (1, 196, 192)
    assert "cls_token" not in params
    assert {"fc_norm"} < set(params)


@pytest.mark.parametrize("width", [0.1, 0.3, 0.5, 0.77, 1.5])
def test_any_width_keeps_the_heads(width):
    params = shapes(vit_small(width=width, depth=1))
    assert params["pos_embed"].shape[-1] % (6 * 8) == 0


def test_images_that_cannot_be_cut_are_refused():
    with pytest.raises(InputError, match="images of 28x28 cannot be cut into patches of 16x16"):
        shapes(vit_tiny(), 28)
    with pytest.raises(InputError, match="dim must be a multiple of heads, got 10 and 3"):
        ViT(10, dim=10, heads=3)


def test_images_of_another_size_than_trained_on_are_refused():
    model = from_linen(ViT(10, patch=4, dim=16, depth=1, heads=2))
    params, stats = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
    with pytest.raises(InputError, match="the positions of this ViT are those of 5 tokens, and its images make 10"):
        jax.eval_shape(
            lambda *given: model.apply(*given, jnp.zeros((1, 12, 12, 1)), train=False, keys=None), params, stats
        )
