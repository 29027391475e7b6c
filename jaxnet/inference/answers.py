"""The words of `jaxnet predict`: from arguments to picture files, from predictions to lines of text or JSON."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from jaxnet.data import Inputs
from jaxnet.errors import InputError, printable
from jaxnet.files import is_directory
from jaxnet.inference.predictor import Prediction

# ---- Files ----------------------------------------------------------------------------------------------

_SUFFIXES = (".jpg", ".jpeg", ".png")


def image_files(words: Iterable[str], stdin: Iterable[str]) -> Iterator[Path]:
    """Yield the picture files that the arguments of a command mean.

    A file is itself; a directory is the JPEG and PNG files in and below it, sorted; '-' is the lines of `stdin`.
    Symbolic links are followed, but into no directory twice. A missing file is passed on: reading it gives the error.
    """
    for word in words:
        if word == "-":
            lines = (line.removesuffix("\n") for line in stdin)
            yield from image_files((line for line in lines if line not in ("", "-")), ())
        elif is_directory(Path(word)):
            yield from _below(Path(word), set())
        else:
            yield Path(word)


def _below(directory: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    about = directory.stat()
    if (about.st_dev, about.st_ino) in seen:
        return
    seen.add((about.st_dev, about.st_ino))
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208  # iterdir may fail only after the first names
    except OSError:
        yield directory  # reading it gives the error
        return
    for name in names:
        path = directory / name
        if is_directory(path):
            yield from _below(path, seen)
        elif path.suffix.lower() in _SUFFIXES:
            yield path


# ---- Lines ----------------------------------------------------------------------------------------------

_MOST_CHARACTERS = 200  # of the name of a class


def as_json(prediction: Prediction, inputs: Inputs, top_k: int) -> str:
    """Return a prediction as one JSON object: path, and the likeliest labels with probabilities; or path and error.

    >>> as_json(Prediction(Path("a.png"), np.array([0.25, 0.75])), Inputs((8, 8, 1), 2, ("no", "yes")), top_k=1)
    '{"path": "a.png", "labels": ["yes"], "probabilities": [0.75]}'
    """
    path = str(prediction.path)
    if prediction.probabilities is None:
        return json.dumps({"path": path, "error": prediction.error})
    likeliest = _likeliest(prediction.probabilities, top_k)
    labels = [inputs.name_of(label) for label in likeliest]
    return json.dumps(
        {"path": path, "labels": labels, "probabilities": [float(prediction.probabilities[i]) for i in likeliest]}
    )


def as_text(prediction: Prediction, inputs: Inputs, top_k: int) -> str:
    """Return a prediction as one line: path, and the likeliest labels with probabilities; or path and error.

    >>> as_text(Prediction(Path("a.png"), np.array([0.25, 0.75])), Inputs((8, 8, 1), 2, ("no", "yes")), top_k=2)
    'a.png: yes 75.00%, no 25.00%'
    """
    path = printable(os.fsencode(prediction.path).decode(errors="backslashreplace"))
    if prediction.probabilities is None:
        return f"{path}: {printable(prediction.error)}"
    likeliest = _likeliest(prediction.probabilities, top_k)
    names = [printable(inputs.name_of(label), _MOST_CHARACTERS) for label in likeliest]
    return f"{path}: " + ", ".join(
        f"{name} {prediction.probabilities[label]:.2%}" for name, label in zip(names, likeliest, strict=True)
    )


def _likeliest(probabilities: np.ndarray, count: int) -> list[int]:
    # A stable sort: among equals the lower label comes first.
    found: list[int] = np.argsort(-probabilities, kind="stable")[:count].tolist()
    return found


def read_labels(path: Path, classes: int) -> tuple[str, ...]:
    """Read a file with one name per line; InputError unless there is one for each class."""
    try:
        names = tuple(path.read_text("utf-8-sig").splitlines())  # spreadsheets write a mark of the encoding
    except (OSError, UnicodeError) as error:
        raise InputError(f"--labels {path} cannot be read: {error}") from error
    if len(names) != classes:
        raise InputError(f"--labels {path} has {len(names)} lines, and there are {classes} classes")
    return names
