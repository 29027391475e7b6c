"""One's own data without a class: arrays by name, and anything with a length and items."""

import numpy as np
import pytest

from jaxnet.config.keys import flatten
from jaxnet.config.run import Config
from jaxnet.data import Arrays, ArraySource, Items, Shard, eval_batches, example_shapes, train_batches
from jaxnet.errors import InputError

DRAW = np.random.RandomState(0)
TABLE = DRAW.standard_normal((6, 3))
LABEL = np.arange(6) % 3


def split(**arrays):
    return Arrays(train=arrays).load("train")


def test_arrays_become_what_devices_hold():
    source = split(features=TABLE, label=LABEL, half=TABLE.astype(np.float16), flag=LABEL > 1, small=np.uint8(LABEL))
    shapes = {name: (leaf.dtype.name, leaf.shape) for name, leaf in example_shapes(source).items()}
    assert shapes == {
        "features": ("float32", (3,)),
        "label": ("int32", ()),
        "half": ("float16", (3,)),
        "flag": ("bool", ()),
        "small": ("uint8", ()),
    }
    np.testing.assert_array_equal(source.rows(np.array([4, 1]))["features"], TABLE[[4, 1]].astype(np.float32))
    assert (source.num_examples, source.num_classes) == (6, 3)


def test_classes_are_counted_over_all_splits():
    data = Arrays(train={"features": TABLE[:4], "label": [0, 1, 0, 1]}, test={"features": TABLE[4:], "label": [2, 0]})
    assert [data.load(name).num_classes for name in ("train", "test")] == [3, 3]
    assert not hasattr(split(features=TABLE, label=TABLE[:, 0]), "num_classes")


def test_images_in_classes_are_a_source_of_images():
    images = np.zeros((6, 4, 4, 1), np.uint8)
    source = split(image=images, label=LABEL)
    assert isinstance(source, ArraySource)
    assert (source.image_shape, source.num_classes) == ((4, 4, 1), 3)
    assert not isinstance(split(image=images, label=LABEL, age=LABEL), ArraySource)


def test_a_config_knows_other_data():
    def shown(table):
        return flatten(Config(None, Arrays(train={"features": table}), 1, 1))["data"]

    other = TABLE.copy()
    other[5, 2] += 1e-6
    assert shown(TABLE) == shown(TABLE.copy())
    assert shown(TABLE) != shown(other)
    assert shown(TABLE).startswith("Arrays(train/features float32[6, 3]; sha256 ")


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, r"Arrays\(train=\.\.\.\): wanted arrays by name"),
        ({"x": TABLE, "y": LABEL[:4]}, r"arrays of the lengths \{'x': 6, 'y': 4\}: wanted one length"),
        ({"x": TABLE[:0]}, "wanted one length, of at least 1"),
        ({"x": 3.0}, r"train\['x'\]: wanted numbers whose first dim is the example, got float64\[\]"),
        ({"x": np.array(["a", "b"])}, r"train\['x'\]: wanted numbers .*, got <U1\[2\]"),
        ({"x": np.array([2**40, 0])}, r"train\['x'\]: int64 of 0 to 1099511627776, and devices take int32"),
        ({"x": np.array([1e300, 1.0])}, r"train\['x'\]: float64 of up to 1e\+300, and devices take float32; scale it"),
        ({"id": LABEL}, "train has id, a name of jaxnet's own"),
        ({"label": LABEL - 1}, r"labels of data: Arrays must be 0 \.\. 1 for 2 classes, got -1 \.\. 1"),
    ],
)
def test_arrays_that_cannot_be(arrays, said):
    with pytest.raises(InputError, match=said):
        split(**arrays)


def test_a_split_that_is_not_there():
    for data in (Arrays(train={"x": TABLE}), Items(train=[{"x": 1.0}])):
        with pytest.raises(InputError, match=r"has no 'test': it has train; give it"):
            data.load("test")


# ---- Items --------------------------------------------------------------------------------------------------


def test_items_are_the_same_as_arrays():
    items = [{"features": row, "more": {"label": int(label)}} for row, label in zip(TABLE, LABEL, strict=True)]
    source = Items(train=items, threads=2).load("train")
    [batch] = eval_batches(source, batch_size=6, shard=Shard(0, 1))
    np.testing.assert_array_equal(batch["features"], TABLE.astype(np.float32))
    np.testing.assert_array_equal(batch["more"]["label"], LABEL)
    assert batch["more"]["label"].dtype == np.int32


def test_lists_of_numbers_are_arrays():
    lists = [{"table": [[1, 2], [3, 4]], "more": {"row": [0.5, True]}, "pair": [np.zeros(2), np.zeros(3)]}] * 2
    rows = Items(train=lists).load("train").rows(np.arange(2))
    assert (rows["table"].dtype.name, rows["table"].shape) == ("int32", (2, 2, 2))
    assert rows["more"]["row"].tolist() == [[0.5, 1.0]] * 2
    assert [leaf.shape for leaf in rows["pair"]] == [(2, 2), (2, 3)]


def test_a_grain_data_set_with_random_numbers_of_its_own():
    import grain

    class Noise(grain.transforms.RandomMap):
        def random_map(self, element, rng):
            return {"x": np.float32(element + rng.uniform())}

    data = Items(train=grain.MapDataset.range(8).seed(3).random_map(Noise()))
    source = data.load("train")
    options = {"batch_size": 4, "seed": 0, "shard": Shard(0, 1)}
    batches = train_batches(source, **options)
    first, second = next(batches), next(batches)
    again = next(train_batches(source, start_step=1, **options))
    np.testing.assert_array_equal(second["x"], again["x"])
    assert sorted(np.concatenate([first["x"], second["x"]]).astype(int).tolist()) == list(range(8))


def test_items_that_cannot_be():
    with pytest.raises(InputError, match=r"data: train\[0\] is a int: wanted a dict of arrays by name"):
        Items(train=range(3)).load("train").rows(np.arange(2))
    for odd, said in [
        (None, r"data: train\[1\] is a NoneType: wanted a dict of arrays by name"),
        ({"x": 1.0}, r"data: train\[1\] has x, and train\[0\] more/y, x: wanted the same arrays in all examples"),
        ({"x": None, "more": {"y": 2}}, r"data: train\[1\] has more/y, and train\[0\] more/y, x: wanted"),
        ({"x": [[1, 2], [3]], "more": {"y": 2}}, r"data: train\[1\]: .*inhomogeneous"),
    ]:
        with pytest.raises(InputError, match=said):
            Items(train=[{"x": 1.0, "more": {"y": 2}}, odd]).load("train").rows(np.arange(2))
    ragged = [{"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": np.zeros(3)}]
    said = r"data: train\['x'\] of example 2 has the shape \(3,\), and of example 0 \(2,\); wanted one shape"
    with pytest.raises(InputError, match=said):
        Items(train=ragged).load("train").rows(np.arange(3))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "uint32", "int64", "uint64"])
def test_labels_of_any_width_are_classes(dtype):
    features, label = np.zeros((3, 2), np.float32), np.array([0, 4, 2], dtype)
    source = Arrays(train={"features": features, "label": label}).load("train")
    assert source.num_classes == 5
    assert source.rows(np.arange(3))["label"].dtype == np.int32
    images = Arrays(train={"image": np.zeros((3, 4, 4, 1), np.uint8), "label": label}).load("train")
    assert images.rows(np.arange(3))["label"].tolist() == [0, 4, 2]


def test_narrow_labels_below_zero_are_no_classes_and_a_run_knows_its_data_as_before():
    data = Arrays(train={"features": np.zeros((3, 2), np.float32), "label": np.array([-1, 1, 1], np.int8)})
    source = data.load("train")
    assert not hasattr(source, "num_classes")
    assert source.rows(np.arange(3))["label"].tolist() == [-1, 1, 1]
    assert "train/label int8[3]" in repr(data)
