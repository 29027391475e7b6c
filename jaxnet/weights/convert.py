"""Convert the tensors of a PyTorch module to the variables of the same network in Flax, with a report of every name."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxnet.errors import InputError
from jaxnet.weights.names import is_auxiliary, tensor_name, variable_name
from jaxnet.weights.target import FlattenedMap, Target

# ---- Report --------------------------------------------------------------------------------------------


class Misfit(NamedTuple):
    """A tensor whose shape differs from that of its variable; both shapes in PyTorch's order."""

    tensor: str
    got: tuple[int, ...]
    wanted: tuple[int, ...]


class ConversionReport(NamedTuple):
    """What became of every name of the file and of the model.

    Attributes:
        converted: variables that got their values.
        new_head: variables of classifiers, left out because a new head was asked for.
        auxiliary: variables or tensors of auxiliary heads that the other side lacks.
        missing: tensors that the model needs and the file lacks.
        surplus: tensors of the file that the model has no variable for.
        misfits: tensors whose shape differs from the model's.
        other_classes: misfits that another number of classes explains.
    """

    converted: Sequence[str]
    new_head: Sequence[str]
    auxiliary: Sequence[str]
    missing: Sequence[str]
    surplus: Sequence[str]
    misfits: Sequence[Misfit]
    other_classes: Sequence[Misfit]

    @property
    def unmatched(self) -> int:
        """How many names found no counterpart, not counting those left out on purpose."""
        return sum(map(len, (self.missing, self.surplus, self.misfits, self.other_classes)))

    def lines(self) -> Iterator[str]:
        """Yield the report as text, one name per line."""
        yield f"{len(self.converted)} variables converted"
        yield from _listed("left out, because a new head was asked for", self.new_head)
        yield from _listed("left out, auxiliary heads that only one side has", self.auxiliary)
        yield from _listed("missing in the file", self.missing)
        yield from _listed("without a place in the model", self.surplus)
        yield from _listed("of another shape", map(_shapes, self.misfits))
        yield from _listed("of another number of classes", map(_shapes, self.other_classes))


def _listed(title: str, names: Iterable[str]) -> Iterator[str]:
    listed = [f"  {name}" for name in names]
    if listed:
        yield f"{title}: {len(listed)}"
        yield from listed


def _shapes(misfit: Misfit) -> str:
    return f"{misfit.tensor} is {list(misfit.got)}, wanted {list(misfit.wanted)}"


# ---- Conversion ----------------------------------------------------------------------------------------


def convert(
    tensors: Mapping[str, np.ndarray], target: Target, *, new_head: bool = False
) -> tuple[dict[str, np.ndarray], ConversionReport]:
    """Return the variables of `target`, float32, by flat name, and a report.

    Convolutions go from [out, in, height, width] to [height, width, in, out], dense layers from [out, in] to
    [in, out], and a dense layer after a flattened map from the order C, H, W of its inputs to H, W, C. Tensors that
    do not fit are left out and reported.

    Args:
        tensors: those of the file, by torchvision's names.
        target: the model.
        new_head: leave out the classifiers.

    Raises:
        InputError: a tensor that the model needs holds no floating-point numbers, or a number that is not finite.
    """
    named = {
        name: variable for name, tensor in tensors.items() if (variable := variable_name(name, tensor.ndim)) is not None
    }
    found = {variable: name for name, variable in named.items() if variable in target.shapes}
    dropped = target.heads if new_head else frozenset()
    for variable, name in found.items():
        if variable not in dropped:
            _require_weights(name, tensors[name])
    fitting = {
        variable: convert_tensor(tensors[name], variable, target)
        for variable, name in found.items()
        if variable not in dropped
    }
    absent = [variable for variable in target.shapes if variable not in found and variable not in dropped]
    surplus = {name: variable for name, variable in named.items() if found.get(variable) != name}
    misfits = [variable for variable, array in fitting.items() if array is None]

    def described(variable: str) -> Misfit:
        wanted = torch_shape(variable, target.shapes[variable])
        return Misfit(found[variable], tensors[found[variable]].shape, wanted)

    variables = {variable: array for variable, array in fitting.items() if array is not None}
    return variables, ConversionReport(
        converted=list(variables),
        new_head=sorted(dropped),
        auxiliary=[name for name in [*absent, *surplus.values()] if is_auxiliary(name)],
        missing=[tensor_name(name) for name in absent if not is_auxiliary(name)],
        surplus=[name for name, variable in surplus.items() if not is_auxiliary(variable)],
        misfits=[described(name) for name in misfits if name not in target.heads],
        other_classes=[described(name) for name in misfits if name in target.heads],
    )


def convert_tensor(tensor: np.ndarray, variable: str, target: Target) -> np.ndarray | None:
    """Return a tensor as that variable of the model, float32; None if its shape does not fit.

    >>> target = Target({"params/fc/kernel": (3, 2)}, frozenset(), {})
    >>> convert_tensor(np.arange(6).reshape(2, 3), "params/fc/kernel", target).tolist()
    [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    """
    shape = target.shapes[variable]
    array = _arranged(tensor, variable, len(shape), target.maps.get(variable))
    if array is None or array.shape != shape:
        return None
    return np.ascontiguousarray(array, np.float32)


def to_tensors(variables: Mapping[str, np.ndarray], maps: Mapping[str, FlattenedMap]) -> dict[str, np.ndarray]:
    """Return the tensors that `convert` would make these variables of, by torchvision's names: its inverse.

    Args:
        variables: by flat name.
        maps: (height, width, channels) of the flattened map that a dense kernel multiplies, by the kernel's name.

    Raises:
        InputError: two variables have the same name in PyTorch.

    >>> to_tensors({"params/fc/kernel": np.arange(6).reshape(3, 2)}, {})["fc.weight"].tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    tensors: dict[str, np.ndarray] = {}
    for variable, array in variables.items():
        name = tensor_name(variable)
        if name in tensors:
            raise InputError(f"{variable} and another variable are both called {name} in PyTorch: rename one of them")
        tensors[name] = np.ascontiguousarray(_torch_arranged(array, variable, maps.get(variable)))
    return tensors


def _torch_arranged(array: np.ndarray, variable: str, flattened: FlattenedMap | None) -> np.ndarray:
    if not variable.endswith("/kernel") or array.ndim < 2:
        return array
    if array.ndim > 2:  # a convolution: window, inputs, outputs
        return np.moveaxis(array, (-1, -2), (0, 1))
    rows = array.T
    if flattened is not None and rows.shape[1] == math.prod(flattened):
        height, width, channels = flattened
        rows = rows.reshape(-1, height, width, channels).transpose(0, 3, 1, 2).reshape(rows.shape)
    return rows


def _require_weights(name: str, tensor: np.ndarray) -> None:
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        raise InputError(
            f"{name} is {tensor.dtype}: wanted floating-point numbers, as a network has them before it is quantized"
        )
    if bad := int((~np.isfinite(tensor.astype(np.float32))).sum()):
        raise InputError(f"{name} has {bad} of {tensor.size} numbers that are not finite: take another checkpoint")


def _arranged(tensor: np.ndarray, variable: str, dims: int, flattened: FlattenedMap | None) -> np.ndarray | None:
    if not variable.endswith("/kernel"):
        return tensor
    if dims == 4 and tensor.ndim == 4:
        return tensor.transpose(2, 3, 1, 0)
    if dims != 2 or tensor.ndim not in (2, 4):
        return None
    # A convolution over the whole map (4 dims) is a dense layer too.
    rows = tensor.reshape(len(tensor), math.prod(tensor.shape[1:]))
    if flattened is not None and rows.shape[1] == math.prod(flattened):
        height, width, channels = flattened
        rows = rows.reshape(-1, channels, height, width).transpose(0, 2, 3, 1).reshape(rows.shape)
    return rows.T


def torch_shape(variable: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a variable in PyTorch's order of dims.

    >>> torch_shape("params/conv1/kernel", (7, 7, 3, 64))
    (64, 3, 7, 7)
    """
    if not variable.endswith("/kernel"):
        return shape
    *window, inputs, outputs = shape
    return (outputs, inputs, *window)


# ---- Normalization of images ---------------------------------------------------------------------------


Numbers = tuple[float, ...]

HALVES = ("googlenet_bn", "inception_v3")
"""Networks whose weights torchvision took from TensorFlow: they take pixels with a mean and a deviation of 0.5."""


def checked_pixels(mean: Any, std: Any, channels: int, where: str) -> tuple[Numbers, Numbers]:
    """Return mean and standard deviation of pixels in 0 .. 1; InputError unless each is one number or one a channel.

    >>> checked_pixels((0.5,), [0.2, 0.2, 0.3], 3, "a file")
    ((0.5,), (0.2, 0.2, 0.3))
    >>> checked_pixels((0.5,), [0.0], 3, "a file")
    Traceback (most recent call last):
    jaxnet.errors.InputError: a file: std is [0.0]: wanted one number above 0, or one for each of 3 channels
    """
    means = _checked(mean, channels, lambda value: 0 <= value <= 1, f"{where}: mean", "of 0 to 1")
    return means, _checked(std, channels, lambda value: 0 < value < math.inf, f"{where}: std", "above 0")


def _checked(given: Any, channels: int, is_right: Callable[[float], bool], what: str, bound: str) -> Numbers:
    values = tuple(given) if isinstance(given, list | tuple) else ()
    if len(values) not in (1, channels) or not all(type(value) in (int, float) and is_right(value) for value in values):
        raise InputError(f"{what} is {given!r:.60}: wanted one number {bound}, or one for each of {channels} channels")
    return values
