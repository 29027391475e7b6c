"""A trained network that is called with images, from memory or from files."""

import functools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageOps

from jaxnet.checkpoints.leaves import named_leaves
from jaxnet.data import Inputs
from jaxnet.data.photos.decoding import DamagedImage, open_image
from jaxnet.data.photos.views import centre_crop
from jaxnet.data.source import PILLOW_MODES, to_mode
from jaxnet.ensembles import member_of
from jaxnet.errors import InputError, one_line
from jaxnet.models import Model, abstract_variables, from_linen
from jaxnet.tasks.classification import Pixels

# ---- A JPEG or PNG file as the uint8 array that a network takes, by the evaluation transform of its data set
#
# One difference: the image is turned upright as the camera says. Data sets are read as they lie, because published
# accuracies are measured so; photos of a user's own are often turned.


_MOST_BYTES = 2**30


class Unreadable(Exception):
    """A file cannot be had as an image; the message says why, without its path."""


def read_picture(path: Path, inputs: Inputs) -> np.ndarray:
    """Decode, turn upright as the camera says, convert to the channels that the network takes, and resize.

    Any grey, colour, palette or CMYK picture is taken; 16 bits become 8, and transparency is dropped.

    Raises:
        Unreadable: it is no whole JPEG or PNG file, or has more pixels than Pillow decodes (179 million).
    """
    try:
        with open_image(_bytes(path)) as picture:
            return fitted(picture, inputs)
    except DamagedImage as error:
        raise Unreadable(str(error)) from error
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    except (Image.DecompressionBombWarning, MemoryError) as error:
        raise Unreadable(f"it is too large: {error}") from error
    except Exception as error:  # whatever Pillow makes of broken bytes, or the system of such a name
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _bytes(path: Path) -> bytes:
    about = path.stat()
    if stat.S_ISDIR(about.st_mode):
        next(path.iterdir(), None)  # a directory comes here when it cannot be listed: this says why
    if not stat.S_ISREG(about.st_mode):
        raise Unreadable("it is not a file")  # a pipe would be waited for
    if about.st_size > _MOST_BYTES:
        raise Unreadable(f"it has {about.st_size} bytes; images of up to {_MOST_BYTES} are read")
    return path.read_bytes()


def fitted(picture: Image.Image, inputs: Inputs) -> np.ndarray:
    """A picture of any size and mode as uint8 [height, width, channels].

    >>> fitted(Image.new("L", (5, 4), 7), Inputs((2, 2, 1), 10))[0, 0]
    array([7], dtype=uint8)
    """
    height, width, channels = inputs.image_shape
    upright = to_mode(ImageOps.exif_transpose(picture), PILLOW_MODES[channels])
    if inputs.resize is None:
        resized = upright.resize((width, height), Image.Resampling.BILINEAR)
    else:
        resized = centre_crop(upright, height, inputs.resize)
    return np.asarray(resized).reshape(inputs.image_shape)


# ---- A trained network as one function from uint8 images to probabilities -----------------------------


Weights = dict[str, jax.Array]
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Architecture:
    """A network before it has weights.

    Attributes:
        model: a Linen module, or a pure model.
        pixels: how images are normalized.
        inputs: what images those are, and the classes.
        members: of an ensemble: weights lead with [members], and probabilities are the mean of the members'.
    """

    model: nn.Module | Model
    pixels: Pixels
    inputs: Inputs
    members: int = 1

    @functools.cached_property
    def _pure(self) -> Model:
        return self.model if isinstance(self.model, Model) else from_linen(self.model)

    @functools.cached_property
    def _tree(self) -> Any:
        images = jax.eval_shape(self.pixels.normalize, self.images(1))
        variables = abstract_variables(self._pure, images.shape[1:])
        return {"params": variables.params, **variables.stats}

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Of the weights by name, such as params/conv_0/kernel and batch_stats/norm_0/mean."""
        shapes: dict[str, jax.ShapeDtypeStruct] = named_leaves(self._tree)
        if self.members == 1:
            return shapes
        return {name: leaf.update(shape=(self.members, *leaf.shape)) for name, leaf in shapes.items()}

    def images(self, count: Any) -> jax.ShapeDtypeStruct:
        """A batch of that many images."""
        return jax.ShapeDtypeStruct((count, *self.inputs.image_shape), "uint8")

    def probabilities(self, weights: Mapping[str, jax.Array], images: jax.Array) -> jax.Array:
        """Of each class, float32 [batch, classes], for uint8 images [batch, height, width, channels]. To be traced."""
        if self.members > 1:
            alone = replace(self, members=1)
            each = [alone.probabilities(member_of(weights, index), images) for index in range(self.members)]
            return jnp.stack(each).mean(0)
        leaves = [weights[name] for name in self.shapes]
        params, stats = split(jax.tree.unflatten(jax.tree.structure(self._tree), leaves))
        logits, _ = self._pure.apply(params, stats, self.pixels.normalize(images), train=False, keys=None)
        return jax.nn.softmax(logits.astype(jnp.float32))

    def in_dtype(self, dtype: str | None) -> "Architecture":
        """The same network with its computation in `dtype`, if it has a field for that."""
        if dtype is None:
            return self
        if dtype not in DTYPES:
            raise InputError(f"dtype {dtype}: wanted one of {', '.join(DTYPES)}")
        if isinstance(self.model, Model) or "dtype" not in {field.name for field in fields(self.model)}:
            return self
        return replace(self, model=self.model.clone(dtype=dtype))

    def check(self, where: str) -> None:
        """Raise InputError unless the network takes these images and gives these classes."""
        try:
            result = jax.eval_shape(self.probabilities, self.shapes, self.images(2))
        except Exception as error:  # whatever the network has against the images
            raise InputError(f"{where}: the network cannot be built: {error}") from error
        if len(result.shape) != 2 or result.shape[1] < self.inputs.num_classes:
            raise InputError(
                f"{where}: the network gives {list(result.shape[1:])} numbers an image for "
                f"{self.inputs.num_classes} classes"
            )


@dataclass(frozen=True)
class Network:
    """A network with its weights, on one device; `where` is the file that they come from."""

    architecture: Architecture
    weights: Weights
    where: str


def split(variables: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Parameters, and all other collections."""
    return variables["params"], {name: tree for name, tree in variables.items() if name != "params"}


def in_dtype(weights: Weights, dtype: str | None) -> Weights:
    """Parameters held in `dtype`; running averages stay as they are."""
    if dtype is None:
        return weights
    cast = {name: leaf.astype(dtype) for name, leaf in weights.items() if name.startswith("params/")}
    return {**weights, **cast}


Run = Callable[[np.ndarray], np.ndarray]

_READERS = min(8, os.cpu_count() or 1)  # each may hold a picture of half a gigabyte


class Prediction(NamedTuple):
    """What became of one file: the probability of each class, or what is wrong with the file."""

    path: Path
    probabilities: np.ndarray | None
    error: str = ""


class Predictor:
    """`predictor(images)` is the probability of each class, float32 [n, classes], for uint8 images [n, H, W, C].

    Batches are padded to one of a few sizes, each of which is compiled when it is first needed: nothing is compiled
    again for another number of images.

    Attributes:
        inputs: the images that the network takes, and its classes.
        sizes: the sizes of the batches that are run, in ascending order.
        where: the file that the network comes from.
    """

    def __init__(self, run: Run, inputs: Inputs, sizes: Sequence[int], where: str) -> None:
        self._run = run
        self.inputs = inputs
        self.sizes = tuple(sizes)
        self.where = where

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """The probabilities; InputError unless `images` are uint8 [n, height, width, channels] as in training."""
        shape = self.inputs.image_shape
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != shape:
            wanted = ", ".join(map(str, ("n", *shape)))
            raise InputError(f"images are {images.dtype}{list(images.shape)}, wanted uint8[{wanted}]")
        parts = [images[start : start + self.sizes[-1]] for start in range(0, len(images), self.sizes[-1])]
        return np.concatenate([self._padded(part) for part in parts or [images]])

    def _padded(self, images: np.ndarray) -> np.ndarray:
        size = next(size for size in self.sizes if size >= len(images))
        padding = [(0, size - len(images)), (0, 0), (0, 0), (0, 0)]
        return np.asarray(self._run(np.pad(images, padding)))[: len(images)]

    def files(self, paths: Iterable[Path]) -> Iterator[Prediction]:
        """One prediction a file, in order; files are read by several threads, a batch at a time."""
        remaining = iter(paths)
        with ThreadPoolExecutor(_READERS, thread_name_prefix="pictures") as pool:
            while batch := list(islice(remaining, self.sizes[-1])):
                yield from self._batch(batch, list(pool.map(self._read, batch)))

    def _read(self, path: Path) -> np.ndarray | str:
        try:
            return read_picture(path, self.inputs)
        except Unreadable as error:
            return one_line(error)

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


def batch_sizes(largest: int) -> tuple[int, ...]:
    """Powers of two up to `largest`, and `largest`.

    >>> batch_sizes(6)
    (1, 2, 4, 6)
    """
    if largest < 1:
        raise InputError(f"batch {largest}: wanted at least 1")
    return (*(2**power for power in range((largest - 1).bit_length())), largest)
