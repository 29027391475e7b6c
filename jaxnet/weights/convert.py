"""From the tensors of a PyTorch module to the variables of the same network in Flax, with an account of both sides."""

import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from jaxnet.errors import InputError
from jaxnet.weights.names import is_auxiliary, tensor_name, variable_name
from jaxnet.weights.report import Misfit, Report
from jaxnet.weights.target import Map, Target


def convert(
    tensors: Mapping[str, np.ndarray], target: Target, *, new_head: bool = False
) -> tuple[dict[str, np.ndarray], Report]:
    """The variables of `target`, float32, by flat name, from a module's tensors by torchvision's names.

    Convolutions go from [out, in, height, width] to [height, width, in, out], dense layers from [out, in] to
    [in, out], and a dense layer after a flattened map from the order C, H, W of its inputs to H, W, C. What does
    not fit is left out and reported.

    Args:
        tensors: the file's.
        target: the model.
        new_head: leave out the classifiers, whatever their shape.

    Raises:
        InputError: a tensor of the model is not of floating-point numbers, or one of its numbers is not finite.
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
        variable: converted(tensors[name], variable, target)
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
    return variables, Report(
        converted=list(variables),
        new_head=sorted(dropped),
        auxiliary=[name for name in [*absent, *surplus.values()] if is_auxiliary(name)],
        missing=[tensor_name(name) for name in absent if not is_auxiliary(name)],
        surplus=[name for name, variable in surplus.items() if not is_auxiliary(variable)],
        misfits=[described(name) for name in misfits if name not in target.heads],
        other_classes=[described(name) for name in misfits if name in target.heads],
    )


def converted(tensor: np.ndarray, variable: str, target: Target) -> np.ndarray | None:
    """A tensor as that variable of the model, float32; None if its shape does not fit.

    >>> target = Target({"params/fc/kernel": (3, 2)}, frozenset(), {})
    >>> converted(np.arange(6).reshape(2, 3), "params/fc/kernel", target).tolist()
    [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    """
    shape = target.shapes[variable]
    array = _arranged(tensor, variable, len(shape), target.maps.get(variable))
    if array is None or array.shape != shape:
        return None
    return np.ascontiguousarray(array, np.float32)


def _require_weights(name: str, tensor: np.ndarray) -> None:
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        raise InputError(
            f"{name} is {tensor.dtype}: wanted floating-point numbers, as a network has them before it is quantized"
        )
    if bad := int((~np.isfinite(tensor.astype(np.float32))).sum()):
        raise InputError(f"{name} has {bad} of {tensor.size} numbers that are not finite: take another checkpoint")


def _arranged(tensor: np.ndarray, variable: str, dims: int, flattened: Map | None) -> np.ndarray | None:
    if not variable.endswith("/kernel"):
        return tensor
    if dims == 4 and tensor.ndim == 4:
        return tensor.transpose(2, 3, 1, 0)
    if dims != 2 or tensor.ndim not in (2, 4):
        return None
    # A convolution over the whole map is a dense layer too.
    rows = tensor.reshape(len(tensor), math.prod(tensor.shape[1:]))
    if flattened is not None and rows.shape[1] == math.prod(flattened):
        height, width, channels = flattened
        rows = rows.reshape(-1, channels, height, width).transpose(0, 2, 3, 1).reshape(rows.shape)
    return rows.T


def torch_shape(variable: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a variable as PyTorch has it.

    >>> torch_shape("params/conv1/kernel", (7, 7, 3, 64))
    (64, 3, 7, 7)
    """
    if not variable.endswith("/kernel"):
        return shape
    *window, inputs, outputs = shape
    return (outputs, inputs, *window)
