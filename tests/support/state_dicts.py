"""Files as `torch.save` writes them, byte by byte, without PyTorch."""

import io
import struct
import zipfile

import numpy as np

STORAGES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}
FALSE, EMPTY_TUPLE, REDUCE, STOP = b"\x89", b")", b"R", b"."


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


def text(value):
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value):
    return (
        b"J" + struct.pack("<i", value)
        if abs(value) < 2**31
        else b"\x8a\x09" + value.to_bytes(9, "little", signed=True)
    )


def row(*values):
    return b"(" + b"".join(values) + b"t"


def ordered_dict(items, metadata=False):
    pairs = b"".join(text(key) + value for key, value in items.items())
    fields = b"}" + text("_metadata") + ordered_dict({}) + b"sb" if metadata else b""
    return name("collections", "OrderedDict") + EMPTY_TUPLE + REDUCE + b"(" + pairs + b"u" + fields


def tensor(key, kind, elements, shape, strides, offset=0, rebuild="_rebuild_tensor_v2"):
    """A view of storage `key`; `kind` as in FloatStorage."""
    storage = row(text("storage"), name("torch", kind), text(key), text("cpu"), number(elements)) + b"Q"
    sizes = [row(*map(number, given)) for given in (shape, strides)]
    hooks = ordered_dict({})
    return name("torch._utils", rebuild) + row(storage, number(offset), *sizes, FALSE, hooks) + REDUCE


def parameter(value):
    return name("torch._utils", "_rebuild_parameter") + row(value, FALSE, ordered_dict({})) + REDUCE


def pickled(value):
    return b"\x80\x02" + value + STOP


def archive(pickle, storages, root="archive", compression=zipfile.ZIP_STORED, extra=()):
    """The bytes of a file with this pickle and these storages, arrays or bytes by key."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as zipped:
        zipped.writestr(f"{root}/data.pkl", pickle)
        for key, storage in storages.items():
            zipped.writestr(f"{root}/data/{key}", bytes(storage))
        zipped.writestr(f"{root}/version", b"3\n")
        for member, data in dict(extra).items():
            zipped.writestr(f"{root}/{member}", data)
    return stream.getvalue()


def state_dict(arrays):
    """The bytes of a file with these arrays by name."""
    tensors, storages = {}, {}
    for index, (key, given) in enumerate(arrays.items()):
        array = np.ascontiguousarray(given)
        strides = [stride // array.itemsize for stride in array.strides] if array.ndim else []
        shape = array.shape if np.ndim(given) else ()
        tensors[key] = tensor(str(index), STORAGES[array.dtype.name], array.size, shape, strides[: len(shape)])
        storages[str(index)] = array.tobytes()
    return archive(pickled(ordered_dict(tensors, metadata=True)), storages)
