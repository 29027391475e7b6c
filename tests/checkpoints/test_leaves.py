"""Leaves have unique names, which nest without loss; two descriptions are compared by name."""

from typing import NamedTuple

import jax
import numpy as np
import optax
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.checkpoints.leaves import Replaceable, described, differences, named_leaves, nested


class Pair(NamedTuple):
    first: object
    second: object


def test_names_follow_the_containers():
    tree = Pair({"conv.1": {"kernel/a": 1}}, [2, (3, None), Pair(4, {})])
    assert named_leaves(tree) == {
        "first/conv%2E1/kernel%2Fa": 1,
        "second/0": 2,
        "second/1/0": 3,
        "second/2/first": 4,
    }


def test_an_optimizer_state_has_names_and_loses_no_leaf():
    params = {"dense": {"kernel": np.zeros((3, 2)), "bias": np.zeros(2)}}
    state = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9)).init(params)
    assert list(named_leaves(state).values()) == jax.tree.leaves(state)


words = st.text("a./%é ", max_size=3)
trees = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(words, inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
)


@given(trees.filter(lambda tree: not isinstance(tree, int)))
def test_names_are_unique_and_nest_without_loss(tree):
    leaves = named_leaves(tree)
    assert list(leaves.values()) == jax.tree.leaves(tree)
    flat = jax.tree_util.tree_flatten_with_path(nested(leaves))[0]
    assert {"/".join(entry.key for entry in path): leaf for path, leaf in flat} == leaves
    assert not any("." in name for name in leaves)


def test_described_and_differences():
    saved = described({"a": np.zeros((2, 3), np.float32), "b": np.int32(1), "c": np.zeros(1)})
    assert saved == {"a": "float32[2, 3]", "b": "int32[]", "c": "float64[1]"}
    wanted = {**saved, "a": "float32[3, 2]", "d": "int32[]"}
    del wanted["c"]
    assert differences(saved, saved) == []
    assert differences(saved, wanted) == [
        "a is float32[2, 3], not float32[3, 2]",
        "c (float64[1]) is not wanted",
        "d (int32[]) is absent",
    ]


def test_a_state_of_one_array_is_replaceable_too():
    own, others = Replaceable("comm/", dict).split({"comm": 1, "comm/a": 2, "common": 3})
    assert (own, others) == ({"comm": 1, "comm/a": 2}, {"common": 3})
