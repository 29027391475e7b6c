"""Which values differ between devices: the guard against summing a gradient twice.

Under `jax.shard_map`, differentiating with respect to *replicated* parameters makes JAX insert the sum
itself. A reducer on top multiplies by the number of devices, with no error. So parameters are cast to
`varying` first, and a value that no longer varies over an axis is refused.
"""

from collections.abc import Iterable

import jax
from jax import lax


def varying_axes(value: jax.Array) -> frozenset[str]:
    """Mesh axes over which `value` may differ between devices, as its type says."""
    return frozenset(jax.typeof(value).manual_axis_type.varying)


def require_varying(value: jax.Array, axes: Iterable[str], name: str) -> None:
    """Raise TypeError if `value` is already the same along one of `axes`, so that a sum would count it again.

    Says nothing where JAX tracks no types: under `jax.pmap` and `jax.shard_map(check_vma=False)`.
    """
    varying = varying_axes(value)
    summed = [axis for axis in axes if _is_tracked(axis) and axis not in varying]
    if summed:
        raise TypeError(
            f"{name} is already the same on every device of mesh axis {summed[0]!r}: its gradient was summed by "
            "differentiation, and reducing it again would multiply it by the size of the axis. Differentiate with "
            f"respect to jax.lax.pcast(params, {tuple(axes)!r}, to='varying')."
        )


def _is_tracked(axis: str) -> bool:
    return axis in varying_axes(lax.axis_index(axis))
