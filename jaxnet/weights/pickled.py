"""The pickle of a PyTorch state dict, read as data: nothing is imported, called or executed.

A pickle is a program for a stack machine, which can call any function of any module. This machine knows the
operations that a state dict is made of and a handful of names, none of which it looks up: each stands for a few
lines here. Anything else is refused by name.
"""

import pickletools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class Refused(Exception):
    """A pickle holds something else than a state dict; the message says what."""


class Storage(NamedTuple):
    """A row of numbers in a file of its own, which several tensors may share."""

    key: str
    dtype: np.dtype
    elements: int


class Tensor(NamedTuple):
    """A view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(NamedTuple):
    """What the pickle would import."""

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


def _tensor(storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Tensor:
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, Storage) or not all(type(number) is int for number in numbers):
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
    """What a pickle holds: dicts, lists, tuples, numbers, text and `Tensor`s.

    Raises:
        Refused: it holds anything else, or is damaged.
    """
    machine = _Machine()
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in text that no state dict has
            for opcode, argument, _ in pickletools.genops(data):
                machine.run(opcode.name, argument)
        (result,) = machine.stack
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Refused(f"its pickle is damaged ({type(error).__name__}: {error})") from error
    return result


class _Machine:
    """The stack, the places of the marks on it, and what was put aside by number."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:
        """Carry out one operation."""
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _TUPLES:
            self.stack.append(tuple(self.taken(_TUPLES[name])))
        elif name not in _IGNORED:
            operation = _OPERATIONS.get(name)
            if operation is None:
                raise Refused(f"its pickle has the operation {name}, which no state dict needs")
            operation(self, argument)

    def taken(self, count: int) -> list[Any]:
        """The last `count` values, off the stack."""
        if len(self.stack) < count:
            raise IndexError("the stack is too short")
        start = len(self.stack) - count
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def since_mark(self) -> list[Any]:
        """The values since the last mark, off the stack."""
        return self.taken(len(self.stack) - self.marks.pop())


def _keep(machine: _Machine, place: Any) -> None:
    machine.memo[len(machine.memo) if place is None else place] = machine.stack[-1]


def _named(machine: _Machine, argument: Any) -> None:
    name = ".".join(machine.taken(2)) if argument is None else argument.replace(" ", ".")
    if name not in _CALLS and name not in _STORAGES:
        raise Refused(f"its pickle would call {name[:80]!a}, which no state dict needs; nothing of it was executed")
    machine.stack.append(_Name(name))


def _call(machine: _Machine, _: Any) -> None:
    function, arguments = machine.taken(2)
    if not isinstance(function, _Name) or function.name not in _CALLS or not isinstance(arguments, tuple):
        raise Refused("its pickle calls something that is not a function")
    machine.stack.append(_CALLS[function.name](*arguments))


def _storage(machine: _Machine, _: Any) -> None:
    kind, name, key, _, elements = machine.stack.pop()
    if kind != "storage" or not isinstance(name, _Name) or not isinstance(key, str) or type(elements) is not int:
        raise Refused("its pickle refers to something that is not a tensor's storage")
    machine.stack.append(Storage(key, _STORAGES[name.name], elements))


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
    """An OrderedDict of PyTorch has a field `_metadata`, which says nothing about the values."""
    target, _ = machine.taken(2)
    if type(target) is not dict:
        raise Refused("its pickle sets attributes of something that is not a dict")
    machine.stack.append(target)


_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "BINPUT": _keep,
    "LONG_BINPUT": _keep,
    "MEMOIZE": _keep,
    "BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "LONG_BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "GLOBAL": _named,
    "STACK_GLOBAL": _named,
    "REDUCE": _call,
    "BINPERSID": _storage,
    "SETITEM": lambda machine, _: _set_items(machine, machine.taken(2)),
    "SETITEMS": lambda machine, _: _set_items(machine, machine.since_mark()),
    "APPEND": lambda machine, _: _extend(machine, machine.taken(1)),
    "APPENDS": lambda machine, _: _extend(machine, machine.since_mark()),
    "BUILD": _set_attributes,
}
