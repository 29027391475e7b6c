"""State dicts written byte by byte: what is read, and what is refused with nothing executed."""

import os
import pickle
import sys
import zipfile
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxnet.errors import InputError
from jaxnet.weights.torch_file import LEGACY, read_torch
from support.refusals import says
from support.state_dicts import (
    EMPTY_TUPLE,
    REDUCE,
    STORAGES,
    archive,
    name,
    number,
    ordered_dict,
    parameter,
    pickled,
    row,
    state_dict,
    tensor,
    text,
)

SIX = np.arange(6, dtype=np.float32)


def read(folder, data):
    path = folder / "weights.pth"
    path.write_bytes(data)
    return read_torch(path)


def refusal(folder, data):
    with pytest.raises(InputError) as refused:
        read(folder, data)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def one(value, storages=None):
    return archive(pickled(ordered_dict({"w": value})), {"0": SIX.tobytes()} if storages is None else storages)


@pytest.mark.parametrize("dtype", STORAGES)
def test_every_dtype(tmp_path, dtype):
    array = np.array([[0, 1, 2], [3, 0, 5]]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    found = read(tmp_path, state_dict({"layer.weight": array, "layer.bias": array[0]}))
    assert list(found) == ["layer.weight", "layer.bias"]
    assert found["layer.weight"].dtype == array.dtype
    np.testing.assert_array_equal(found["layer.weight"], array)
    np.testing.assert_array_equal(found["layer.bias"], array[0])


def test_scalars_and_tensors_without_elements(tmp_path):
    found = read(tmp_path, state_dict({"count": np.array(7), "none": np.zeros((0, 3), np.float32)}))
    assert found["count"].shape == ()
    assert found["count"] == 7
    assert found["none"].shape == (0, 3)


def test_views_that_share_a_storage(tmp_path):
    views = {
        "whole": tensor("0", "FloatStorage", 6, (2, 3), (3, 1)),
        "transposed": tensor("0", "FloatStorage", 6, (3, 2), (1, 3)),
        "column": tensor("0", "FloatStorage", 6, (2,), (3,), offset=1),
        "parameter": parameter(tensor("0", "FloatStorage", 6, (2,), (1,), offset=4)),
    }
    found = read(tmp_path, archive(pickled(ordered_dict(views)), {"0": SIX.tobytes()}))
    np.testing.assert_array_equal(found["whole"], SIX.reshape(2, 3))
    np.testing.assert_array_equal(found["transposed"], SIX.reshape(2, 3).T)
    np.testing.assert_array_equal(found["column"], [1, 4])
    np.testing.assert_array_equal(found["parameter"], [4, 5])
    assert np.shares_memory(found["whole"], found["column"])


def test_bytes_of_a_big_endian_machine(tmp_path):
    data = archive(
        pickled(ordered_dict({"w": tensor("0", "FloatStorage", 6, (6,), (1,))})),
        {"0": SIX.astype(">f4").tobytes()},
        extra={"byteorder": b"big"},
    )
    np.testing.assert_array_equal(read(tmp_path, data)["w"], SIX)


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_a_checkpoint_with_an_epoch_and_an_optimizer(tmp_path, wrapper):
    weights = ordered_dict({"w": tensor("0", "FloatStorage", 6, (6,), (1,))})
    optimizer = b"}" + text("state") + b"}" + number(0) + b"]" + number(3) + b"a" + b"s" + b"s"
    everything = {"epoch": number(3), "best": b"G" + bytes(8), wrapper: weights, "optimizer": optimizer}
    found = read(tmp_path, archive(pickled(ordered_dict(everything)), {"0": SIX.tobytes()}))
    assert list(found) == ["w"]


# ---- What must never run --------------------------------------------------------------------------------


class Attack:
    """Python's own pickler writes the call that `__reduce__` asks for."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("call", ["system", "eval", "exec"])
def test_a_pickle_that_would_run_a_command_is_refused_with_nothing_executed(tmp_path, protocol, call):
    flag = tmp_path / "executed"
    function = {"system": os.system, "eval": eval, "exec": exec}[call]
    code = f"touch '{flag}'" if call == "system" else f"open({str(flag)!r}, 'w').close()"
    data = archive(pickle.dumps({"w": Attack(function, code)}, protocol), {})
    message = refusal(tmp_path, data)
    says(message, ["weights.pth", "would call", call, "nothing of it was executed", "torch.save"])
    assert not flag.exists()
    pickle.loads(pickle.dumps(Attack(function, code), protocol))
    assert flag.exists()  # the attack is a real one


@pytest.mark.parametrize(
    "payload",
    {
        "INST": b"(" + text("true") + b"ios\nsystem\n",
        "OBJ": b"(" + name("os", "system") + text("true") + b"o",
        "NEWOBJ": name("subprocess", "Popen") + row(text("true")) + b"\x81",
        "unused": name("antigravity", "geohash") + number(1),
        "extension": b"\x82\x01" + EMPTY_TUPLE + REDUCE,
        "of ours": name("jaxnet.weights", "read_variables") + row(text("x")) + REDUCE,
        "of torch": name("torch.hub", "load") + row(text("x")) + REDUCE,
        "dotted": name("torch._utils", "_rebuild_tensor_v2.__globals__") + EMPTY_TUPLE + REDUCE,
        "text called": text("os.system") + EMPTY_TUPLE + REDUCE,
        "storage called": name("torch", "FloatStorage") + EMPTY_TUPLE + REDUCE,
        "attributes": name("collections", "OrderedDict") + b"}" + text("x") + number(1) + b"sb",
        "persistent": b"Pos.system\n",
    }.items(),
    ids=lambda pair: pair[0],
)
def test_any_other_way_to_import_or_call_is_refused(tmp_path, payload):
    before = set(sys.modules)
    refusal(tmp_path, archive(pickled(ordered_dict({"w": payload[1]})), {}))
    assert not {"antigravity", "torch"} & (set(sys.modules) - before)


def test_a_whole_model_is_refused_by_name(tmp_path):
    model = name("torchvision.models.resnet", "ResNet") + EMPTY_TUPLE + b"\x81"
    message = refusal(tmp_path, archive(pickled(model), {}))
    says(message, ["torchvision.models.resnet.ResNet", "torch.save(model.state_dict(), FILE)"])


# ---- What is damaged, or something else -------------------------------------------------------------------

FULL = ("0", "FloatStorage", 6)
WRONG = {
    "beyond the end": (one(tensor(*FULL, (7,), (1,))), "storage of 6 elements"),
    "strides beyond": (one(tensor(*FULL, (2, 3), (4, 1))), "storage of 6 elements"),
    "offset beyond": (one(tensor(*FULL, (3,), (1,), offset=4)), "storage of 6 elements"),
    "expanded": (one(tensor(*FULL, (2**30, 2**30), (0, 0))), "storage of 6 elements"),
    "negative stride": (one(tensor(*FULL, (3,), (-1,), offset=5)), "strides"),
    "negative offset": (one(tensor(*FULL, (3,), (1,), offset=-3)), "offset -3"),
    "fewer strides": (one(tensor(*FULL, (2, 3), (3,))), "strides"),
    "too many dims": (one(tensor(*FULL, (1,) * 100, (1,) * 100)), "shape"),
    "storage too short": (one(tensor("0", "FloatStorage", 7, (6,), (1,))), "24 bytes, wanted 7 times 4"),
    "storage missing": (one(tensor("1", "FloatStorage", 6, (6,), (1,))), "data/1 is missing"),
    "storage elsewhere": (one(tensor("../version", "FloatStorage", 6, (6,), (1,))), "missing"),
    "shape of text": (
        one(tensor(*FULL, (5,), (1,)).replace(row(number(5)), row(text("5")))),
        "whole numbers",
    ),
    "quantized": (one(tensor("0", "QInt8Storage", 6, (6,), (1,))), "torch.QInt8Storage"),
    "sparse": (one(tensor(*FULL, (6,), (1,), rebuild="_rebuild_sparse_tensor")), "_rebuild_sparse_tensor"),
    "no tensors": (archive(pickled(ordered_dict({"epoch": number(3)})), {}), "it holds epoch"),
    "odd names": (archive(pickled(ordered_dict({"a\x1b[31m" * 99: number(3)})), {}), r"a\x1b[31ma\x1b[31ma"),
    "too many names": (archive(pickled(ordered_dict({"a" * 999: number(3)})), {}), "a... (999 characters), and none"),
    "a list": (archive(pickled(b"]"), {}), "it holds a list"),
    "key of a list": (archive(pickled(b"}(" + row(number(1)) + number(2) + b"u"), {}), "keys"),
    "empty pickle": (archive(b"", {}), "damaged"),
    "memo": (archive(pickled(b"h\x05"), {}), "damaged"),
    "compressed": (archive(pickled(ordered_dict({})), {}, compression=zipfile.ZIP_DEFLATED), "compressed"),
    "TorchScript": (archive(pickled(ordered_dict({})), {}, extra={"constants.pkl": b""}), "TorchScript"),
    "zip of something": (archive(b"", {}).replace(b"data.pkl", b"data.txt"), "without PyTorch's data.pkl"),
    "legacy": (LEGACY + bytes(40), "weights_only=True"),
    "not a zip": (b"PK\x03\x04" + bytes(40), "not a whole file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(tmp_path, case):
    data, words = WRONG[case]
    says(refusal(tmp_path, data), ["weights.pth", words])


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    data = state_dict({"w": SIX, "b": SIX[:2]})
    for end in range(4, len(data) - 1, 7):
        refusal(tmp_path, data[:end])


@settings(max_examples=300)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_a_changed_byte_of_the_directory_is_read_or_refused(tmp_path_factory, place, value):
    """Names of members and their places stand at the end of a zip file."""
    data = bytearray(state_dict({"w": SIX, "b": SIX[:2]}))
    third = len(data) // 3
    data[-1 - place % third] = value
    path = tmp_path_factory.getbasetemp() / "changed.pth"
    path.write_bytes(data)
    with suppress(InputError):
        read_torch(path)


@settings(max_examples=300)
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
@example([(3, ord("\\"))])  # an unknown escape in a name
def test_a_changed_pickle_is_read_or_refused_and_never_crashes(tmp_path_factory, changes):
    values = {"w": tensor(*FULL, (2, 3), (3, 1)), "epoch": number(3)}
    data = bytearray(pickled(ordered_dict(values, metadata=True)))
    for place, value in changes:
        data[place % len(data)] = value
    path = tmp_path_factory.getbasetemp() / "changed.pth"
    path.write_bytes(archive(bytes(data), {"0": SIX.tobytes()}))
    try:
        for array in read_torch(path).values():
            array.sum()
    except InputError:
        pass
