"""Messages about processes that differ."""

from hypothesis import given
from hypothesis import strategies as st

from jaxnet.cluster.agreement import check_agreement, describe_difference
from jaxnet.cluster.environment import name_ranks
from jaxnet.cluster.start import Cluster

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
