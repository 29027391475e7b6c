"""Examples are read as TFDS reads them, or refused."""

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from tensorflow_datasets.proto import tf_example_pb2

from jaxnet.data.tfds import Examples

FEATURES = tfds.features.FeaturesDict(
    {
        "image": tfds.features.Image(),
        "label": tfds.features.ClassLabel(num_classes=1000),
        "file_name": tfds.features.Text(),
        "more": tfds.features.Sequence(tfds.features.Scalar(np.int64)),
    }
)
SKIP = {"image": tfds.decode.SkipDecoding()}


class Several(list):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@given(st.binary(), st.integers(0, 999), st.text(), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_features_are_those_that_tfds_reads(image, label, name, more):
    example = {"image": image, "label": label, "file_name": name, "more": more}
    serialized = FEATURES.serialize_example(FEATURES.encode_example(example))
    wanted = FEATURES.deserialize_example_np(serialized, decoders=SKIP)
    for keys in (("image", "label", "file_name"), ("label",)):
        examples = Examples(Several([serialized]), keys)
        assert len(examples) == 1
        assert examples[0] == {key: wanted[key] for key in keys}
        assert examples.__getitems__([0, 0]) == 2 * [examples[0]]


@pytest.mark.parametrize(("key", "count"), [("absent", 0), ("more", 0), ("more", 2)])
def test_a_feature_that_is_not_one_value_is_named(key, count):
    example = tf_example_pb2.Example()
    example.features.feature["more"].int64_list.value.extend([3] * count)
    with pytest.raises(ValueError, match=f"its feature '{key}' has {count} values instead of one"):
        Examples(Several([example.SerializeToString()]), (key,))[0]


def test_what_is_no_example_is_refused():
    with pytest.raises(ValueError, match=r"it is no tf\.train\.Example"):
        Examples(Several([b"\xff" * 9]), ("image",))[0]
