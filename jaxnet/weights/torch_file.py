"""A state dict as `torch.save` writes it, read without PyTorch."""

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxnet.errors import InputError
from jaxnet.weights.pickled import Refused, Storage, Tensor, read_pickle

# How files begin that PyTorch wrote before 1.6: a pickle of a number known for this.
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_SAVE = "save the state dict alone, in PyTorch: torch.save(model.state_dict(), FILE)"
_WRAPPERS = ("state_dict", "model")  # where training scripts put it, beside the epoch and the optimizer


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict by name, as read-only views; nothing in the file is executed.

    A checkpoint that holds the state dict under 'state_dict' or 'model' is read too.

    Raises:
        InputError: the file is not in PyTorch's zip format, is damaged, or holds something else.
    """
    with path.open("rb") as stream:
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
        self._storages: dict[Storage, np.ndarray] = {}

    def read(self, name: str) -> bytes:
        """A member, whole: no larger than the file, as nothing is compressed."""
        try:
            member = self._zip.getinfo(self._root + name)
        except KeyError:
            raise Refused(f"{name} is missing in it") from None
        if member.compress_type != zipfile.ZIP_STORED:
            raise Refused(f"{name} in it is compressed, which PyTorch does not do")
        return self._zip.read(member)

    def storage(self, storage: Storage) -> np.ndarray:
        """The numbers of a storage, read once."""
        if storage not in self._storages:
            data = self.read(f"data/{storage.key}")
            dtype = storage.dtype.newbyteorder("<" if self._order == b"little" else ">")
            if len(data) != storage.elements * dtype.itemsize:
                raise Refused(
                    f"storage {storage.key} has {len(data)} bytes, wanted {storage.elements} times {dtype.itemsize}"
                )
            self._storages[storage] = np.frombuffer(data, dtype)
        return self._storages[storage]


def _tensors(archive: _Archive) -> Iterator[tuple[str, np.ndarray]]:
    state = _state_dict(read_pickle(archive.read("data.pkl")))
    for name, value in state.items():
        if isinstance(value, Tensor):
            yield str(name), _array(str(name), value, archive.storage(value.storage))


def _state_dict(content: Any) -> dict[Any, Any]:
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict):
        raise Refused(f"it holds a {type(content).__name__.lower()}")
    if not any(isinstance(value, Tensor) for value in content.values()):
        raise Refused(f"it holds {', '.join(map(str, content)) or 'nothing'}, and none of these is a tensor")
    return content


def _array(name: str, tensor: Tensor, numbers: np.ndarray) -> np.ndarray:
    """The view; that it stays inside the storage is checked, as NumPy would read whatever lies behind it."""
    offset, shape, strides = tensor.offset, tensor.shape, tensor.strides
    count = int(np.prod([*shape, 1], dtype=object))
    reach = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=False))
    if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
        raise Refused(f"{name} has shape {shape}, strides {strides} and offset {offset}")
    if count and (reach >= len(numbers) or count > len(numbers)):
        raise Refused(f"{name} of shape {shape} does not lie inside its storage of {len(numbers)} elements")
    with contextlib.suppress(ValueError, OverflowError):  # more dims or greater lengths than NumPy has
        if not count:
            return np.zeros(shape, numbers.dtype)
        steps = [stride * numbers.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps, writeable=False)
    raise Refused(f"{name} has the shape {shape}")
