"""Dense layers whose kernel is cut over the devices of a host: examples travel to the weights, not gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm import DEVICE, Collective
from jaxnet.comm.collective import Kind
from jaxnet.models import Model
from jaxnet.training.loss import PyTree

Cut = Literal["rows", "columns"]


class ShardedDense(NamedTuple):
    """A dense layer, and how its kernel [inputs, units] is cut.

    Attributes:
        path: of the layer, such as 'classifier_1'.
        cut: 'rows': a device has some inputs of all units; 'columns': all inputs of some units.
        inputs: rows of the kernel, times the rows of activations that an example has.
        units: columns of the kernel, likewise.
        dtype: of the activations, which is what travels.
        backward: whether the loss is differentiated by its input, so that this gradient travels too.
    """

    path: str
    cut: Cut
    inputs: int
    units: int
    dtype: str
    backward: bool = True

    def plan(self, examples: int, axis_sizes: Mapping[str, int]) -> tuple[Collective, ...]:
        """The collectives of one forward and backward pass, `examples` a device.

        >>> layer = ShardedDense("fc", "rows", inputs=9216, units=4096, dtype="float32")
        >>> [(c.kind, c.elements) for c in layer.plan(2, {"host": 1, "device": 8})]
        [('all-to-all', 18432), ('reduce-scatter', 65536), ('all-gather', 65536), ('all-to-all', 18432)]
        """
        size = axis_sizes[DEVICE]
        own, all_ = examples, examples * size
        kinds: tuple[tuple[Kind, int], ...]
        if self.cut == "rows":
            kinds = (
                *(("all-to-all", own * self.inputs), ("reduce-scatter", all_ * self.units)),
                *(("all-gather", all_ * self.units), ("all-to-all", own * self.inputs)),
            )
        else:
            kinds = (
                *(("all-gather", all_ * self.inputs), ("all-to-all", own * self.units)),
                *(("all-to-all", own * self.units), ("reduce-scatter", all_ * self.inputs)),
            )
        sent = kinds if self.backward else kinds[:3]
        return tuple(Collective(kind, (DEVICE,), size, elements, self.dtype) for kind, elements in sent)


def fewest_bytes(inputs: int, units: int, devices: int) -> Cut | None:
    """The cut that divides by the devices and sends fewest bytes; None if neither divides.

    An example sends its inputs once and its units to be summed on every device ('rows'), or the reverse ('columns').

    >>> fewest_bytes(9216, 4096, 8), fewest_bytes(512, 1000, 8), fewest_bytes(512, 10, 8), fewest_bytes(9, 10, 8)
    ('rows', 'columns', 'rows', None)
    """
    bytes_of: dict[Cut, int] = {"rows": inputs + devices * units, "columns": devices * inputs + units}
    able: dict[Cut, int] = {"rows": inputs, "columns": units}
    return min((cut for cut in bytes_of if able[cut] % devices == 0), key=bytes_of.__getitem__, default=None)


def with_sharded(model: Model, layers: Sequence[ShardedDense]) -> Model:
    """`model`, to be applied inside `jax.shard_map` to parameters of which these layers' kernels are cut."""
    cuts = {layer.path: layer.cut for layer in layers}

    def forward(next_fn: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        cut = cuts.get(dense_path(context))
        return next_fn(*args, **kwargs) if cut is None else _dense(context.module, cut, *args)

    def apply_fn(
        params: PyTree, stats: PyTree, images: jax.Array, *, train: bool, keys: jax.Array | None = None
    ) -> tuple[Any, PyTree]:
        with nn.intercept_methods(forward):
            return model.apply(params, stats, images, train=train, keys=keys)

    return Model(model.init, apply_fn) if layers else model


def dense_path(context: nn.module.InterceptorContext) -> str:
    """The path of the dense layer that is being applied; '' for whatever else is."""
    is_dense = type(context.module) is nn.Dense and context.method_name == "__call__"
    return "/".join(context.module.path) if is_dense else ""


def _dense(layer: nn.Module, cut: Cut, x: jax.Array) -> jax.Array:
    """What `nn.Dense` gives for this device's examples [batch, ..., inputs], from all devices' parts of the kernel."""
    assert isinstance(layer, nn.Dense)
    kernel: Any = layer.get_variable("params", "kernel")
    bias = layer.get_variable("params", "bias") if layer.use_bias else None
    x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=layer.dtype)
    product = (_by_rows if cut == "rows" else _by_columns)(x, kernel, layer.precision)
    return product if bias is None else product + bias.reshape((1,) * (product.ndim - 1) + (-1,))


def _by_rows(x: jax.Array, kernel: jax.Array, precision: Any) -> jax.Array:
    """Every device multiplies its inputs of all examples; the partial products are summed where each example is."""
    dealt = _dealt(_apart(x))
    partial = _product(dealt.reshape(-1, *dealt.shape[2:]), kernel, precision)
    return lax.psum_scatter(partial, DEVICE, scatter_dimension=0, tiled=True)


def _by_columns(x: jax.Array, kernel: jax.Array, precision: Any) -> jax.Array:
    """Every device computes its units of all examples, and sends them to where each example is."""
    everyone = lax.all_gather(x, DEVICE, tiled=True)
    own = _product(everyone, kernel, precision)
    dealt = _dealt(own.reshape(-1, *x.shape[:-1], own.shape[-1]))
    return jnp.moveaxis(dealt, 0, -2).reshape(*x.shape[:-1], -1)


def _product(x: jax.Array, kernel: jax.Array, precision: Any) -> jax.Array:
    return lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())), precision=precision)


def _apart(x: jax.Array) -> jax.Array:
    """[batch, ..., inputs] to [devices, batch, ..., inputs / devices]."""
    return jnp.moveaxis(x.reshape(*x.shape[:-1], lax.axis_size(DEVICE), -1), -2, 0)


def _dealt(rows: jax.Array) -> jax.Array:
    """Row i of [devices, ...] goes to device i; what comes is in the order of the senders."""
    return lax.all_to_all(rows, DEVICE, 0, 0, tiled=True)
