"""Call a trained network: with arrays from memory, or with picture files."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image

from jaxnet.checkpoints.leaves import by_name, named_leaves, spoken
from jaxnet.data import Inputs
from jaxnet.data.photos.decoding import DamagedImage, open_image, turned
from jaxnet.data.photos.views import centre_crop
from jaxnet.data.source import PILLOW_MODES, to_mode
from jaxnet.errors import InputError, one_line

Run = Callable[[Any], Any]

_READERS = min(8, os.cpu_count() or 1)  # each may hold a picture of half a gigabyte


class Prediction(NamedTuple):
    """The result for one file: the probability of each class, or what is wrong with the file."""

    path: Path
    probabilities: np.ndarray | None
    error: str = ""


class Predictor:
    """`predictor(images)` is the probability of each class, float32 [n, classes], for uint8 images [n, H, W, C].

    Of a network for other data, `predictor({"features": array, ...})` is what its task says of each example.

    Batches are padded to one of a few sizes. Each size is compiled when it is first needed, and no other number of
    images needs a new compilation.

    Attributes:
        inputs: the images that the network takes, and its classes; or the shapes of one example's arrays, by name.
        sizes: the batch sizes, in ascending order.
        where: the file that the network comes from.
    """

    def __init__(self, run: Run, inputs: Inputs | Mapping[str, Any], sizes: Sequence[int], where: str) -> None:
        self._run = run
        self.inputs = inputs
        self.sizes = tuple(sizes)
        self.where = where

    def __repr__(self) -> str:
        if isinstance(self.inputs, Inputs):
            sizes = ", ".join(map(str, self.inputs.image_shape))
            takes, gives = f"uint8[n, {sizes}]", f"{self.inputs.num_classes} classes"
        else:
            takes, gives = _listed(_shapes(named_leaves(dict(self.inputs)))), "what its task says"
        return f"<Predictor of {self.where}: {takes} to {gives}>"

    def __call__(self, given: Any) -> Any:
        """Return the probabilities of images, or what the task says of other arrays.

        Raises:
            InputError: these are other images or arrays than those in training.
        """
        checked = _images(given, self.inputs) if isinstance(self.inputs, Inputs) else _arrays(given, self.inputs)
        count, most = len(jax.tree.leaves(checked)[0]), self.sizes[-1]
        parts = [
            self._padded(jax.tree.map(lambda leaf, at=start: leaf[at : at + most], checked), min(most, count - start))
            for start in range(0, max(count, 1), most)
        ]
        return jax.tree.map(lambda *of: np.concatenate(of), *parts)

    def _padded(self, given: Any, count: int) -> Any:
        size = next(size for size in self.sizes if size >= count)
        full = jax.tree.map(lambda leaf: np.pad(leaf, [(0, size - count)] + [(0, 0)] * (leaf.ndim - 1)), given)
        try:
            found = self._run(full)
        except InputError:
            raise
        except Exception as error:  # of the network, about shapes that it was not trained with
            shapes = {spoken(name): of.shape for name, of in named_leaves(given).items()}
            raise InputError(f"{self.where} takes no arrays of {shapes}: {one_line(error)}") from error
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], found)

    def images(self) -> Inputs:
        """Return the images that it takes, and its classes; InputError if it takes other things."""
        if isinstance(self.inputs, Inputs):
            return self.inputs
        raise InputError(f"{self.where} takes no pictures but {', '.join(self.inputs)}: give it arrays")

    def files(self, paths: Iterable[Path]) -> Iterator[Prediction]:
        """Yield one prediction per file, in order; several threads read the files, one batch at a time."""
        inputs, remaining = self.images(), iter(paths)
        with ThreadPoolExecutor(_READERS, thread_name_prefix="pictures") as pool:
            while batch := list(islice(remaining, self.sizes[-1])):
                yield from self._batch(batch, list(pool.map(lambda path: _read(path, inputs), batch)))

    def _batch(self, paths: list[Path], read: list[np.ndarray | str]) -> Iterator[Prediction]:
        images = [image for image in read if isinstance(image, np.ndarray)]
        rows = iter(self(np.stack(images)) if images else ())
        for path, result in zip(paths, read, strict=True):
            if isinstance(result, str):
                yield Prediction(path, None, result)
                continue
            row = next(rows)
            finite = bool(np.isfinite(row).all())
            yield Prediction(path, row) if finite else Prediction(path, None, f"{self.where} gives NaN for it")


def _images(given: Any, inputs: Inputs) -> np.ndarray:
    images = np.asarray(given)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != inputs.image_shape:
        wanted = ", ".join(map(str, ("n", *inputs.image_shape)))
        raise InputError(f"images are {images.dtype}{list(images.shape)}, wanted uint8[{wanted}]")
    return images


def _arrays(given: Any, example: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by name, in the dtypes of training; their shapes may be others if the network takes them."""
    wanted = named_leaves(dict(example))
    arrays = {name: np.asarray(of) for name, of in named_leaves(given).items()} if isinstance(given, Mapping) else {}
    fits = all(
        arrays[name].ndim == len(of.shape) + 1 and _can_become(arrays[name], of.dtype)
        for name, of in wanted.items()
        if name in arrays
    )
    if arrays.keys() != wanted.keys() or not fits or len({len(array) for array in arrays.values()}) != 1:
        shown = _shapes(wanted)
        got = {spoken(name): f"{array.dtype}{list(array.shape)}" for name, array in arrays.items()}
        as_dict = "" if isinstance(given, Mapping) else f", as {{{', '.join(f'{name!r}: array' for name in shown)}}}"
        raise InputError(f"wanted {_listed(shown)}{as_dict}, got {_listed(got) or type(given).__name__}")
    for name, of in wanted.items():
        if np.issubdtype(of.dtype, np.integer) and arrays[name].size:
            least, most, held = arrays[name].min(), arrays[name].max(), np.iinfo(of.dtype)
            if least < held.min or most > held.max:
                raise InputError(f"{spoken(name)} holds {least} to {most}: wanted {of.dtype}, {held.min} to {held.max}")
    return by_name({name: arrays[name].astype(of.dtype, copy=False) for name, of in wanted.items()})


def _can_become(array: np.ndarray, dtype: Any) -> bool:
    """Whether numbers of one kind are given for another: not floating-point ones for integers."""
    both = array.dtype.kind in "iu" and np.issubdtype(dtype, np.integer)
    return both or np.can_cast(array.dtype, dtype, "same_kind")


def _shapes(example: Mapping[str, Any]) -> dict[str, str]:
    """Shapes of arrays of n examples, by name, from those of one."""
    return {spoken(name): f"{of.dtype}{['n', *of.shape]}" for name, of in example.items()}


def _listed(shapes: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {shape.replace(chr(39), '')}" for name, shape in shapes.items())


def batch_sizes(largest: int) -> tuple[int, ...]:
    """Return the powers of two up to `largest`, and `largest`.

    >>> batch_sizes(6)
    (1, 2, 4, 6)
    """
    if largest < 1:
        raise InputError(f"batch {largest}: wanted at least 1")
    return (*(2**power for power in range((largest - 1).bit_length())), largest)


# ---- Picture files -------------------------------------------------------------------------------------

_MOST_BYTES = 2**30


def _read(path: Path, inputs: Inputs) -> np.ndarray | str:
    try:
        return read_picture(path, inputs)
    except Unreadable as error:
        return one_line(error)


class Unreadable(Exception):
    """A file cannot be read as an image; the message says why, without its path."""


def read_picture(path: Path, inputs: Inputs) -> np.ndarray:
    """Return a JPEG or PNG file as the uint8 array that a network takes, by the evaluation transform of its data set.

    Any grey, colour, palette or CMYK picture is accepted; 16 bits become 8, and transparency is dropped. It is first
    turned upright as its EXIF data say, as `ImageFolder` does. Accuracies of ImageNet are published for unturned
    pictures, but a user's own photos are often turned.

    Raises:
        Unreadable: it is not a complete JPEG or PNG file, or has more pixels than Pillow decodes (179 million).
    """
    try:
        with open_image(_bytes(path)) as picture:
            return fit_picture(picture, inputs)
    except DamagedImage as error:
        raise Unreadable(str(error)) from error
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    except (Image.DecompressionBombWarning, MemoryError) as error:
        raise Unreadable(f"it is too large: {error}") from error
    except Exception as error:  # Pillow on broken bytes, or the system on such a name, may raise anything
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _bytes(path: Path) -> bytes:
    about = path.stat()
    if stat.S_ISDIR(about.st_mode):
        next(path.iterdir(), None)  # `image_files` passes on a directory that it cannot list: raise the reason
    if not stat.S_ISREG(about.st_mode):
        raise Unreadable("it is not a file")  # reading a pipe could block for ever
    if about.st_size > _MOST_BYTES:
        raise Unreadable(f"it has {about.st_size} bytes; images of up to {_MOST_BYTES} are read")
    return path.read_bytes()


def fit_picture(picture: Image.Image, inputs: Inputs) -> np.ndarray:
    """Return a picture of any size and mode as uint8 [height, width, channels].

    >>> fit_picture(Image.new("L", (5, 4), 7), Inputs((2, 2, 1), 10))[0, 0]
    array([7], dtype=uint8)
    """
    height, width, channels = inputs.image_shape
    upright = to_mode(turned(picture), PILLOW_MODES[channels])
    if inputs.resize is None:
        resized = upright.resize((width, height), Image.Resampling.BILINEAR)
    else:
        resized = centre_crop(upright, height, inputs.resize)
    return np.asarray(resized).reshape(inputs.image_shape)
