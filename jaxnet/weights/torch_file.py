"""Read a state dict that `torch.save` wrote, without PyTorch and without executing anything in the file.

The file is a zip: `data.pkl` is a pickle of the dict, and `data/KEY` has the numbers of each storage. A tensor is a
view (offset, shape, strides) of a storage.
"""

import contextlib
import pickletools
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jaxnet.errors import InputError, printable
from jaxnet.files import open_regular

# ---- The pickle -----------------------------------------------------------------------------------------
#
# A pickle is a program for a stack machine, and can call any function of any module. The machine here knows only the
# operations that a state dict needs, and a few names. It imports none of them: each name stands for a few lines below.
# Anything else is refused, with its name.


class Refused(Exception):
    """A pickle holds something else than a state dict; the message says what."""


class TensorStorage(NamedTuple):
    """A row of numbers in a member of the zip file, which several tensors may share."""

    key: str
    dtype: np.dtype
    elements: int


class Tensor(NamedTuple):
    """A view of a storage; offset and strides count elements."""

    storage: TensorStorage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(NamedTuple):
    """A name that the pickle would import."""

    name: str


_STORAGES = {
    "torch.DoubleStorage": np.dtype(np.float64),
    "torch.FloatStorage": np.dtype(np.float32),
    "torch.HalfStorage": np.dtype(np.float16),
    "torch.BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch.LongStorage": np.dtype(np.int64),
    "torch.IntStorage": np.dtype(np.int32),
    "torch.ShortStorage": np.dtype(np.int16),
    "torch.CharStorage": np.dtype(np.int8),
    "torch.ByteStorage": np.dtype(np.uint8),
    "torch.BoolStorage": np.dtype(np.bool_),
}


def _tensor(storage: TensorStorage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Tensor:
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, TensorStorage) or not all(type(number) is int for number in numbers):
        raise Refused("a tensor in it is not made of a storage and whole numbers")
    return Tensor(storage, offset, shape, strides)


def _parameter(tensor: Tensor, *_: Any) -> Tensor:
    return tensor


def _ordered(*pairs: Any) -> dict[Any, Any]:
    if pairs:
        raise Refused("an OrderedDict in it is made in an unknown way")
    return {}


_CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
}

_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_LITERALS = frozenset(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"))
_IGNORED = frozenset(("PROTO", "FRAME", "STOP"))
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickle(data: bytes) -> Any:
    """Return the content of a pickle: dicts, lists, tuples, numbers, text and `Tensor`s.

    Raises:
        Refused: it holds anything else, or is damaged.
    """
    machine = _Machine()
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes in text, which no state dict has
            for opcode, argument, _ in pickletools.genops(data):
                machine.run(opcode.name, argument)
        (result,) = machine.stack
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Refused(f"its pickle is damaged ({type(error).__name__}: {error})") from error
    return result


class _Machine:
    """A stack machine: the stack, the positions of the marks on it, and the memo of values by number."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:
        """Execute one operation."""
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _TUPLES:
            self.stack.append(tuple(self.pop(_TUPLES[name])))
        elif name not in _IGNORED:
            operation = _OPERATIONS.get(name)
            if operation is None:
                raise Refused(f"its pickle has the operation {name}, which no state dict needs")
            operation(self, argument)

    def pop(self, count: int) -> list[Any]:
        """Take the last `count` values off the stack."""
        if len(self.stack) < count:
            raise IndexError("the stack is too short")
        start = len(self.stack) - count
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def pop_to_mark(self) -> list[Any]:
        """Take the values since the last mark off the stack."""
        return self.pop(len(self.stack) - self.marks.pop())


def _keep(machine: _Machine, place: Any) -> None:
    machine.memo[len(machine.memo) if place is None else place] = machine.stack[-1]


def _named(machine: _Machine, argument: Any) -> None:
    name = ".".join(machine.pop(2)) if argument is None else argument.replace(" ", ".")
    if name not in _CALLS and name not in _STORAGES:
        raise Refused(f"its pickle would call {name[:80]!a}, which no state dict needs; nothing of it was executed")
    machine.stack.append(_Name(name))


def _call(machine: _Machine, _: Any) -> None:
    function, arguments = machine.pop(2)
    if not isinstance(function, _Name) or function.name not in _CALLS or not isinstance(arguments, tuple):
        raise Refused("its pickle calls something that is not a function")
    machine.stack.append(_CALLS[function.name](*arguments))


def _storage(machine: _Machine, _: Any) -> None:
    kind, name, key, _, elements = machine.stack.pop()
    if kind != "storage" or not isinstance(name, _Name) or not isinstance(key, str) or type(elements) is not int:
        raise Refused("its pickle refers to something that is not a tensor's storage")
    machine.stack.append(TensorStorage(key, _STORAGES[name.name], elements))


def _set_items(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not dict or not all(type(key) in (str, int) for key in items[::2]):
        raise Refused("its pickle has a dict whose keys are neither text nor numbers")
    target.update(zip(items[::2], items[1::2], strict=True))


def _extend(machine: _Machine, items: list[Any]) -> None:
    if type(machine.stack[-1]) is not list:
        raise Refused("its pickle appends to something that is not a list")
    machine.stack[-1].extend(items)


def _set_attributes(machine: _Machine, _: Any) -> None:
    # PyTorch sets `_metadata` of its OrderedDicts, which says nothing about the values.
    target, _ = machine.pop(2)
    if type(target) is not dict:
        raise Refused("its pickle sets attributes of something that is not a dict")
    machine.stack.append(target)


_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_to_mark())),
    "BINPUT": _keep,
    "LONG_BINPUT": _keep,
    "MEMOIZE": _keep,
    "BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "LONG_BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "GLOBAL": _named,
    "STACK_GLOBAL": _named,
    "REDUCE": _call,
    "BINPERSID": _storage,
    "SETITEM": lambda machine, _: _set_items(machine, machine.pop(2)),
    "SETITEMS": lambda machine, _: _set_items(machine, machine.pop_to_mark()),
    "APPEND": lambda machine, _: _extend(machine, machine.pop(1)),
    "APPENDS": lambda machine, _: _extend(machine, machine.pop_to_mark()),
    "BUILD": _set_attributes,
}


# ---- The zip file ---------------------------------------------------------------------------------------

# The first bytes of files that PyTorch wrote before 1.6: a pickle of a magic number.
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_SAVE = "save the state dict alone, in PyTorch: torch.save(model.state_dict(), FILE)"
_MOST_CHARACTERS = 200  # of names in a message
_WRAPPERS = ("state_dict", "model")  # keys under which training scripts save it, beside epoch and optimizer


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a state dict by name, as read-only views.

    A checkpoint with the state dict under 'state_dict' or 'model' is read too.

    Raises:
        InputError: the file is not in PyTorch's zip format, is damaged, or holds something else.
    """
    with open_regular(path) as stream:
        if stream.read(len(LEGACY)) == LEGACY:
            raise InputError(
                f'{path} is in the format of PyTorch before 1.6. Convert it with PyTorch: python -c "import torch; '
                f"torch.save(torch.load('{path}', map_location='cpu', weights_only=True), 'NEW.pth')\""
            )
    try:
        with zipfile.ZipFile(path) as archive:
            return dict(_tensors(_Archive(archive)))
    except Refused as reason:
        raise InputError(f"{path} is not a state dict of PyTorch: {reason}; {_SAVE}") from reason
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{path} is not a whole file of PyTorch's: {error}; copy or save it again") from error


class _Archive:
    """The members of PyTorch's zip file, which are not compressed."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._zip = archive
        names = archive.namelist()
        pickles = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise Refused("it is a zip file without PyTorch's data.pkl")
        self._root = pickles[0].removesuffix("data.pkl")
        if f"{self._root}constants.pkl" in names:
            raise Refused("it is a program of TorchScript")
        self._order = self.read("byteorder") if f"{self._root}byteorder" in names else b"little"
        self._storages: dict[TensorStorage, np.ndarray] = {}

    def read(self, name: str) -> bytes:
        """Return a whole member. It cannot be larger than the file, because compressed members are refused."""
        try:
            member = self._zip.getinfo(self._root + name)
        except KeyError:
            raise Refused(f"{printable(name, _MOST_CHARACTERS)} is missing in it") from None
        if member.compress_type != zipfile.ZIP_STORED:
            raise Refused(f"{printable(name, _MOST_CHARACTERS)} in it is compressed, which PyTorch does not do")
        return self._zip.read(member)

    def storage(self, storage: TensorStorage) -> np.ndarray:
        """Return the numbers of a storage, read once."""
        if storage not in self._storages:
            data = self.read(f"data/{storage.key}")
            dtype = storage.dtype.newbyteorder("<" if self._order == b"little" else ">")
            if len(data) != storage.elements * dtype.itemsize:
                key = printable(storage.key, _MOST_CHARACTERS)
                raise Refused(f"storage {key} has {len(data)} bytes, wanted {storage.elements} times {dtype.itemsize}")
            self._storages[storage] = np.frombuffer(data, dtype)
        return self._storages[storage]


def _tensors(archive: _Archive) -> Iterator[tuple[str, np.ndarray]]:
    state = _state_dict(read_pickle(archive.read("data.pkl")))
    for name, value in state.items():
        if isinstance(value, Tensor):
            shown = printable(name, _MOST_CHARACTERS)
            yield str(name), _array(shown, value, archive.storage(value.storage))


def _state_dict(content: Any) -> dict[Any, Any]:
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict):
        raise Refused(f"it holds a {type(content).__name__.lower()}")
    if not any(isinstance(value, Tensor) for value in content.values()):
        names = printable(", ".join(map(str, content)) or "nothing", _MOST_CHARACTERS)
        raise Refused(f"it holds {names}, and none of these is a tensor")
    return content


def _array(name: str, tensor: Tensor, numbers: np.ndarray) -> np.ndarray:
    """Return the view, after checking that it stays inside its storage."""
    # `as_strided` checks nothing: a view that reaches further would read other memory of the process.
    offset, shape, strides = tensor.offset, tensor.shape, tensor.strides
    count = int(np.prod([*shape, 1], dtype=object))
    reach = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=False))
    if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
        raise Refused(f"{name} has shape {shape}, strides {strides} and offset {offset}")
    if count and (reach >= len(numbers) or count > len(numbers)):
        raise Refused(f"{name} of shape {shape} does not lie inside its storage of {len(numbers)} elements")
    with contextlib.suppress(ValueError, OverflowError):  # more dims or greater lengths than NumPy supports
        if not count:
            return np.zeros(shape, numbers.dtype)
        steps = [stride * numbers.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps, writeable=False)
    raise Refused(f"{name} has the shape {shape}")
