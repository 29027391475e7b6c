"""Batches are a function of (seed, step), however many processes share them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnet.data import ArraySource, Shard, eval_batches, example_ids, train_batches
from jaxnet.errors import InputError

WHOLE = Shard(0, 1)
slow_first = settings(deadline=None, max_examples=50)  # the first example imports Grain


def numbered(num_examples: int) -> ArraySource:
    """A source whose pixels are the number of the example."""
    pixels = np.arange(num_examples, dtype="<u4").view(np.uint8).reshape(-1, 1, 2, 2)
    return ArraySource(pixels, np.arange(num_examples, dtype=np.int32) % 7, num_classes=7)


def numbers(batch: dict[str, np.ndarray]) -> np.ndarray:
    return batch["image"].reshape(-1, 4).view("<u4")[:, 0]


def take(batches, count: int) -> list[dict[str, np.ndarray]]:
    return list(itertools.islice(batches, count))


def joined(parts) -> dict[str, np.ndarray]:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def assert_equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for key in left:
        assert left[key].dtype == right[key].dtype
        np.testing.assert_array_equal(left[key], right[key])


sizes = {
    "num_examples": st.integers(1, 60),
    "part": st.integers(1, 12),
    "count": st.integers(1, 4),
    "seed": st.integers(0, 2**64 - 1),
}


@given(**sizes, epochs=st.integers(1, 3))
@slow_first
def test_every_epoch_holds_every_example_once(num_examples, part, count, seed, epochs):
    batch_size = part * count
    steps = -(-num_examples * epochs // batch_size)
    batches = train_batches(numbered(num_examples), batch_size=batch_size, seed=seed, shard=WHOLE)
    ids = joined(take(batches, steps))["id"]
    for epoch in range(epochs):
        here = ids[epoch * num_examples : (epoch + 1) * num_examples]
        assert sorted(here) == list(range(num_examples))


@given(**sizes, start_step=st.integers(0, 9))
@slow_first
def test_the_parts_of_all_processes_are_the_whole_batch(num_examples, part, count, seed, start_step):
    source, batch_size = numbered(num_examples), part * count
    options = {"batch_size": batch_size, "seed": seed, "start_step": start_step}
    parts = [take(train_batches(source, shard=Shard(i, count), **options), 3) for i in range(count)]
    for step, whole in enumerate(take(train_batches(source, shard=WHOLE, **options), 3), start_step):
        assert_equal(joined([steps[step - start_step] for steps in parts]), whole)
        expected = example_ids(seed, num_examples, step * batch_size, (step + 1) * batch_size)
        np.testing.assert_array_equal(whole["id"], expected)


@given(**sizes, start_step=st.integers(0, 9), count_after=st.integers(1, 4))
@slow_first
def test_a_resume_goes_on_where_it_was(num_examples, part, count, seed, start_step, count_after):
    source, batch_size = numbered(num_examples), 12 * part
    before = train_batches(source, batch_size=batch_size, seed=seed, shard=WHOLE)
    expected = take(before, start_step + 2)[start_step:]
    resumed = [
        train_batches(source, batch_size=batch_size, seed=seed, shard=Shard(i, count_after), start_step=start_step)
        for i in range(count_after)
    ]
    for whole in expected:
        assert_equal(joined([next(part) for part in resumed]), whole)


@given(num_examples=sizes["num_examples"], part=sizes["part"], count=sizes["count"])
@slow_first
def test_evaluation_sees_every_example_once_and_in_order(num_examples, part, count):
    source, batch_size = numbered(num_examples), part * count
    shards = [list(eval_batches(source, batch_size=batch_size, shard=Shard(i, count))) for i in range(count)]
    assert {len(batches) for batches in shards} == {-(-num_examples // batch_size)}
    assert {len(batch["id"]) for batches in shards for batch in batches} == {part}
    whole = joined([joined(step) for step in zip(*shards, strict=True)])
    assert set(whole["weight"]) <= {0.0, 1.0}
    assert whole["weight"].dtype == np.float32
    assert whole["id"][whole["weight"] == 1].tolist() == list(range(num_examples))
    np.testing.assert_array_equal(numbers(whole), whole["id"])


def test_a_batch_holds_the_examples_that_it_names():
    source = numbered(50)
    batch = next(train_batches(source, batch_size=30, seed=3, shard=Shard(1, 3)))
    assert {key: (value.dtype.name, value.shape) for key, value in batch.items()} == {
        "image": ("uint8", (10, 1, 2, 2)),
        "label": ("int32", (10,)),
        "id": ("int32", (10,)),
    }
    np.testing.assert_array_equal(numbers(batch), batch["id"])
    np.testing.assert_array_equal(batch["label"], batch["id"] % 7)


def test_the_reader_may_write_into_a_batch():
    source = numbered(5)
    for batches in (
        train_batches(source, batch_size=5, seed=0, shard=WHOLE),
        eval_batches(source, batch_size=5, shard=WHOLE),
    ):
        for value in next(batches).values():
            value += np.ones((), value.dtype)
    np.testing.assert_array_equal(numbers({"image": source.image}), np.arange(5))
    assert sorted(take(train_batches(source, batch_size=5, seed=0, shard=WHOLE), 1)[0]["id"]) == [
        0,
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_nothing(threads):
    source = numbered(40)
    options = {"batch_size": 16, "seed": 1, "shard": Shard(1, 2), "start_step": 2}
    several = train_batches(source, threads=threads, **options)
    for left, right in zip(take(several, 20), take(train_batches(source, **options), 20), strict=True):
        assert_equal(left, right)
    several.close()
    options = {"batch_size": 16, "shard": Shard(1, 2)}
    for left, right in zip(
        eval_batches(source, threads=threads, **options), eval_batches(source, **options), strict=True
    ):
        assert_equal(left, right)


def test_an_error_of_the_source_reaches_the_reader():
    class Broken(ArraySource):
        def rows(self, indices):
            raise OSError("the disk is gone")

    broken = Broken(np.zeros((3, 1, 1, 1), np.uint8), np.zeros(3, np.int32), num_classes=1)
    for threads in (1, 2):
        batches = train_batches(broken, batch_size=2, seed=0, shard=WHOLE, threads=threads)
        with pytest.raises(OSError, match="the disk is gone"):
            next(batches)
        batches.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 100}, "batch_size=100 cannot be divided among 8 processes: use a multiple of 8"),
        ({"seed": -1}, "seed must be 0"),
        ({"seed": 2**64}, "seed must be 0"),
        ({"start_step": -1}, "start_step must be at least 0, got -1"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
    ],
)
def test_numbers_out_of_range_are_refused_at_once(change, message):
    with pytest.raises(InputError, match=message):
        train_batches(numbered(5), **({"batch_size": 8, "seed": 0, "shard": Shard(0, 8)} | change))


@pytest.mark.parametrize("index", [-1, 2])
def test_a_shard_lies_within_its_count(index):
    with pytest.raises(ValueError, match=r"shard index must be 0 .. 1"):
        Shard(index, 2)
