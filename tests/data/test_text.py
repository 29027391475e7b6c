"""Text in windows: every byte is predicted once, at random places in training, the same on any number of processes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.data import PythonTopics, Shard, Text, TextSource, hold_out, train_batches
from jaxnet.errors import InputError


@given(st.integers(2, 60), st.integers(1, 20))
def test_every_byte_but_the_first_is_predicted_once(size, length):
    text = np.random.RandomState(size).randint(0, 256, size).astype(np.uint8)
    source = TextSource(text, length)
    tokens = source.rows(np.arange(source.num_examples))["tokens"]
    targets = tokens[:, 1:].ravel()
    np.testing.assert_array_equal(targets[targets >= 0], text[1:])
    np.testing.assert_array_equal(tokens[1:, 0], tokens[:-1, -1])
    assert (tokens[:-1] >= 0).all()


@given(st.integers(2, 60), st.integers(1, 20), st.integers(0, 2**64 - 1))
def test_random_windows_are_of_the_text(size, length, draw):
    text = np.arange(size, dtype=np.uint8)
    source = TextSource(text, length)
    indices = np.arange(source.num_examples)
    tokens = source.random_rows(indices, np.full(len(indices), draw, np.uint64))["tokens"]
    assert tokens.shape == (len(indices), length + 1)
    inside = tokens[tokens >= 0].reshape(len(indices), -1) if size > length else tokens[tokens >= 0][None]
    np.testing.assert_array_equal(np.diff(inside, axis=1), 1)
    assert (tokens[:, 0] >= np.minimum(indices * length, max(0, size - length - 1))).all()


def test_batches_are_the_same_on_any_number_of_processes():
    source = PythonTopics(length=32).load("train")
    options = {"batch_size": 8, "seed": 1, "start_step": 3}
    whole = next(train_batches(source, shard=Shard(0, 1), **options))
    halves = [next(train_batches(source, shard=Shard(index, 2), **options)) for index in range(2)]
    np.testing.assert_array_equal(whole["tokens"], np.concatenate([half["tokens"] for half in halves]))


def test_pythons_topics_are_split_by_topic():
    train, test = (bytes(PythonTopics().load(split).text).decode() for split in ("train", "test"))
    assert len(train) > 350_000
    assert len(test) > 25_000
    assert 'The "assert" statement' in train
    assert "Format String Syntax" in test
    assert "Format String Syntax\n*****" not in train


def test_a_file_is_cut_before_its_end(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(200)))
    train, test = (Text(str(path), length=8, test_share=0.25).load(split) for split in ("train", "test"))
    np.testing.assert_array_equal(np.concatenate([train.text, test.text]), np.arange(200))
    assert len(test.text) == 50


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"data.path=.*/none.txt: No such file or directory; wanted a text file"):
        Text(str(tmp_path / "none.txt")).load("train")
    (tmp_path / "short.txt").write_text("abcd")
    with pytest.raises(InputError, match=r"short.txt, test: 0 bytes; wanted at least 2"):
        Text(str(tmp_path / "short.txt")).load("test")
    with pytest.raises(InputError, match=r"split 'dev' does not exist"):
        PythonTopics().load("dev")


@given(size=st.integers(20, 200), length=st.integers(2, 8), share=st.floats(0.3, 0.6), draw=st.integers(0, 2**64 - 1))
def test_what_is_held_back_is_the_end_and_no_window_of_training_reaches_into_it(size, length, share, draw):
    whole = TextSource(np.arange(size, dtype=np.uint8), length)
    train, held = hold_out(whole, share)
    assert train.num_examples + held.num_examples == whole.num_examples
    indices = np.arange(train.num_examples)
    seen = train.random_rows(indices, np.full(len(indices), draw, np.uint64))["tokens"]
    targets = held.rows(np.arange(held.num_examples))["tokens"][:, 1:]
    assert not set(seen.ravel().tolist()) & set(targets[targets >= 0].tolist())
    kept = train.rows(indices)["tokens"]
    assert sorted([*kept[:, 1:].ravel(), *targets[targets >= 0]]) == list(range(1, size))


def test_places_beyond_two_gibibytes_are_found():
    text = np.broadcast_to(np.uint8(7), 2**31 + 2**22)  # takes no memory
    source = TextSource(text, 2**20)
    last = np.array([source.num_examples - 2], np.int32)
    places = []
    source = replace(source, text=Recorded(places, len(text)))
    source.rows(last)
    source.random_rows(last, np.array([5], np.uint64))
    assert [place.min() >= 0 and place.max() < len(text) for place in places] == [True, True]
    assert places[0][0, 0] == int(last[0]) * 2**20


class Recorded:
    """In the place of a text that is too long for a test: keeps which places are asked for."""

    def __init__(self, places, length):
        self._places, self._length = places, length

    def __len__(self):
        return self._length

    def take(self, places):
        self._places.append(places)
        return np.zeros(places.shape, np.uint8)
