"""Messages about processes that differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.cluster import coordination
from jaxnet.cluster.agreement import check_agreement, describe_difference
from jaxnet.cluster.environment import name_ranks
from jaxnet.cluster.start import Cluster
from jaxnet.errors import InputError

FINGERPRINTS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]))


@given(st.lists(FINGERPRINTS, min_size=1, max_size=5))
def test_a_difference_is_described_exactly_when_there_is_one(fingerprints):
    described = describe_difference(fingerprints)
    assert (described is None) == all(fingerprint == fingerprints[0] for fingerprint in fingerprints)
    for key in "abc":
        differs = len({fingerprint.get(key) for fingerprint in fingerprints}) > 1
        assert (f"{key} is " in (described or "")) == differs


def test_a_key_that_some_lack():
    assert describe_difference([{"a": "1"}, {}]) == (
        "the processes differ: a is '1' on rank 0, '(not given)' on rank 1; give all the same"
    )


@given(st.sets(st.integers(0, 30), min_size=2))
def test_ranks_names_exactly_the_name_ranks(indices):
    named = set()
    for part in name_ranks(sorted(indices)).removeprefix("ranks ").split(", "):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == indices


def test_a_single_process_agrees():
    check_agreement(Cluster(), {"jax": "1"})


@pytest.mark.parametrize(
    "said",
    ["[" * 100000, "x", '{"jax": 1}', "[]", "null", '{"jax": ["1"]}', None],
    ids=["nested", "no JSON", "a number", "a list", "null", "a list inside", "nothing"],
)
def test_who_says_something_else_is_named(monkeypatch, said):
    given = {"0": '{"jax": "1"}', "1": said, "9": "?"}
    monkeypatch.setattr(coordination, "publish", lambda key, value: None)
    monkeypatch.setattr(coordination, "wait_for_all", lambda name, seconds: True)
    monkeypatch.setattr(
        coordination, "read_all", lambda folder: {rank: text for rank, text in given.items() if text is not None}
    )
    monkeypatch.setattr(coordination, "forget", lambda folder: None)
    with pytest.raises(
        InputError, match=r"rank 1 said .*, which this version of jaxnet does not say: install the same"
    ):
        check_agreement(Cluster(0, 2), {"jax": "1"})
