"""Predictions of what is no picture: rows of files as JSON or text, and texts that a language model continues."""

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxnet.checkpoints.leaves import by_name, named_leaves, spoken
from jaxnet.errors import InputError, one_line, printable
from jaxnet.files import open_regular, read_bounded
from jaxnet.inference.predictor import Predictor
from jaxnet.training import records

# ---- Rows -----------------------------------------------------------------------------------------------

# What NumPy and zipfile raise on broken bytes.
_BROKEN = (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)
_MOST_BYTES = 2**30  # of a table
_MISSING = ("", "na", "n/a", "null", "none", "?")  # what tables have in the place of a number


def read_rows(path: Path, example: Mapping[str, Any]) -> dict[str, Any]:
    """Read examples, by name: the arrays of an .npz file, or the numbers of a .csv file if there is one array of them.

    Args:
        path: .npz, in which nested names are joined by '/'; or .csv, an example a line, perhaps after a line of names.
        example: the shapes of one example's arrays.

    Raises:
        InputError: it cannot be read, lacks an array, or holds no example.
    """
    rows = _arrays_of(path, named_leaves(dict(example)))
    if any(np.shape(array)[:1] == (0,) for array in rows.values()):
        raise InputError(f"{path} holds no example: wanted at least one")
    return by_name(rows)


def _arrays_of(path: Path, wanted: Mapping[str, Any]) -> dict[str, np.ndarray]:
    names = ", ".join(map(spoken, wanted))
    try:
        if path.suffix == ".npz":
            with open_regular(path) as stream, np.load(stream, allow_pickle=False) as file:
                if lacking := [spoken(name) for name in wanted if spoken(name) not in file]:
                    raise InputError(
                        f"{path} has no array {', '.join(lacking)}; wanted {names}, got {', '.join(file) or 'nothing'}"
                    )
                return {name: file[spoken(name)] for name in wanted}
        if path.suffix == ".csv" and len(wanted) == 1:
            return {name: _table(path, of.shape, of.dtype) for name, of in wanted.items()}
    except _BROKEN as error:
        raise InputError(f"{path} cannot be read: {one_line(error) or type(error).__name__}") from error
    table = " or .csv" if len(wanted) == 1 else ""
    raise InputError(f"{path}: wanted a file named .npz{table} with {names}")


def _table(path: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    whole = np.issubdtype(dtype, np.integer)
    text = read_bounded(path, _MOST_BYTES).decode("utf-8-sig")  # spreadsheets write a mark of the encoding
    lines = [line for line in text.splitlines() if line.strip()]
    named = bool(lines) and _are_names(lines[0])
    lines = lines[named:]
    rows = [_numbers(line, _whole if whole else float) for line in lines]
    wanted = int(np.prod(shape))
    for number, row in enumerate(rows, 1):
        if row is None or len(row) != wanted:
            kind = "whole numbers" if whole else "numbers"
            or_names = ", or a line of names without a number" if number == 1 and not named else ""
            raise ValueError(f"row {number} is {lines[number - 1]:.40}: wanted {wanted} {kind}{or_names}")
    return np.array(rows, np.int64 if whole else np.float32).reshape(len(rows), *shape)


def _are_names(line: str) -> bool:
    """Whether a line names columns: no cell is a number, and one does not say that there is none.

    A line with a number may be an example with a bad cell, which nobody would miss.
    """
    cells = [cell.strip() for cell in line.split(",")]
    words = [cell for cell in cells if cell.lower() not in _MISSING]
    return bool(words) and all(_numbers(cell, float) is None for cell in words)


def _numbers(line: str, of: Callable[[str], float]) -> list[float] | None:
    try:
        return [of(cell) for cell in line.split(",")]
    except ValueError:
        return None


def _whole(cell: str) -> int:
    number = int(cell)
    if abs(number) >= 2**63:
        raise ValueError("NumPy has no such integers")
    return number


def row_lines(prediction: Any, *, as_json: bool, path: str = "") -> Iterator[str]:
    """Yield a line for each example: its prediction as JSON, or a number or a list of them; after a `path`, if given.

    >>> list(row_lines(np.array([[1.5], [2.5]]), as_json=False))
    ['0: 1.5', '1: 2.5']
    >>> list(row_lines({"mean": np.array([1.5])}, as_json=True))
    ['{"row": 0, "prediction": {"mean": 1.5}}']
    """
    leaves = named_leaves(prediction)
    for row in range(len(next(iter(leaves.values())))):
        values = {name: _plain(leaf[row]) for name, leaf in leaves.items()}
        whole = values[""] if list(values) == [""] else by_name(values)
        if as_json:
            yield records.as_json({**({"path": path} if path else {}), "row": row, "prediction": whole})
        else:
            yield f"{printable(path)}{' ' if path else ''}{row}: {json.dumps(whole)}"


def _plain(value: Any) -> Any:
    listed = np.asarray(value).tolist()
    return listed[0] if isinstance(listed, list) and len(listed) == 1 else listed


# ---- Texts ----------------------------------------------------------------------------------------------


def continued(predictor: Predictor, text: bytes, count: int, *, temperature: float = 0.0, seed: int = 0) -> bytes:
    """Return `count` bytes with which a language model of bytes continues a text.

    Args:
        predictor: of a causal model: what it says at a place depends on that place and those before it.
        text: at least one byte; the model sees as many of the last ones as it was trained with.
        count: how many bytes follow.
        temperature: 0: the likeliest byte each time; 1: drawn as the model says; between: more or less bold.
        seed: of the draws.

    Raises:
        InputError: this is no language model, or there is no text.
    """
    example = predictor.inputs
    if not isinstance(example, Mapping) or list(example) != ["tokens"]:
        raise InputError(f"{predictor.where} is no language model: it continues no text")
    if not text:
        raise InputError("wanted a text of at least one byte to continue")
    window, draw, made = example["tokens"].shape[0], np.random.default_rng(seed), bytearray(text)
    for _ in range(count):
        seen = np.frombuffer(bytes(made[-window:]), np.uint8).astype(np.int16)
        tokens = np.zeros((1, window), np.int16)
        tokens[0, : len(seen)] = seen  # what follows changes nothing at the last place of these
        said = predictor({"tokens": tokens})
        if getattr(said, "ndim", 0) != 3:
            raise InputError(f"{predictor.where} is no language model: it continues no text")
        if said.shape[-1] != 256:
            raise InputError(
                f"{predictor.where} predicts one of {said.shape[-1]:,} tokens; wanted a model of bytes, which are 256. "
                "What another token means, only you know: predict rows of tokens, without --continue"
            )
        made.append(_chosen(said[0, len(seen) - 1], temperature, draw))
    return bytes(made[len(text) :])


def _chosen(probabilities: np.ndarray, temperature: float, draw: np.random.Generator) -> int:
    if temperature == 0:
        return int(probabilities.argmax())
    logits = np.log(np.maximum(probabilities.astype(np.float64), 1e-30)) / temperature
    weights = np.exp(logits - logits.max())
    return int(draw.choice(len(weights), p=weights / weights.sum()))
