"""Small files in the form in which Fashion-MNIST is published, and a machine without a network."""

import gzip
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

WriteIdx = Callable[[Path, np.ndarray], None]


@pytest.fixture
def write_idx() -> WriteIdx:
    def write(path: Path, array: np.ndarray) -> None:
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))

    return write


@pytest.fixture
def idx_arrays() -> dict[str, np.ndarray]:
    """What the four files hold: noise, 23 images for training and 11 for testing."""
    noise = np.random.RandomState(0)
    return {
        "train-images-idx3-ubyte": noise.randint(0, 256, (23, 28, 28)),
        "train-labels-idx1-ubyte": noise.randint(0, 10, 23),
        "t10k-images-idx3-ubyte": noise.randint(0, 256, (11, 28, 28)),
        "t10k-labels-idx1-ubyte": noise.randint(0, 10, 11),
    }


@pytest.fixture
def idx_dir(tmp_path: Path, write_idx: WriteIdx, idx_arrays: dict[str, np.ndarray]) -> Path:
    directory = tmp_path / "idx"
    directory.mkdir()
    for name, array in idx_arrays.items():
        write_idx(directory / f"{name}.gz", array)
    return directory


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("this reaches for the network")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
