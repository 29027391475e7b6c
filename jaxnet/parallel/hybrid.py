"""Large dense layers cut over the devices of a host, all else data parallel (Krizhevsky, 2014, "One weird trick")."""

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm import (
    DEVICE,
    HOST,
    AxisSizes,
    Bucket,
    BucketPlan,
    Collective,
    CollectiveKind,
    MiB,
    Plan,
    Reducer,
    Strategy,
    all_reduce,
    bucketed,
)
from jaxnet.comm.order import depend_on
from jaxnet.errors import InputError
from jaxnet.models import Model, Variables, leaf_name
from jaxnet.tasks.task import PyTree

# ---- Dense layers whose kernel is cut over the devices of a host: examples travel to the weights, not gradients


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
        kinds: tuple[tuple[CollectiveKind, int], ...]
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
        params: PyTree, stats: PyTree, inputs: Any, *, train: bool, keys: jax.Array | None = None
    ) -> tuple[Any, PyTree]:
        with nn.intercept_methods(forward):
            return model.apply(params, stats, inputs, train=train, keys=keys)

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
    dealt = _dealt(_split_features(x))
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


def _split_features(x: jax.Array) -> jax.Array:
    """[batch, ..., inputs] to [devices, batch, ..., inputs / devices]."""
    return jnp.moveaxis(x.reshape(*x.shape[:-1], lax.axis_size(DEVICE), -1), -2, 0)


def _dealt(rows: jax.Array) -> jax.Array:
    """Row i of [devices, ...] goes to device i; what comes is in the order of the senders."""
    return lax.all_to_all(rows, DEVICE, 0, 0, tiled=True)


_BUCKET_BYTES = 25 * MiB


class _Seen(NamedTuple):
    """A dense layer as the model applies it to one image."""

    path: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dtype: str
    backward: bool


def sharded_layers(
    patterns: Sequence[str], model: Model, variables: Variables, inputs: PyTree, devices: int
) -> tuple[ShardedDense, ...]:
    """The dense layers whose path matches a pattern, cut as sends fewest bytes; none if there is one device a host.

    Raises:
        InputError: a pattern matches no dense layer, or a layer cannot be cut.
    """
    if not patterns:
        return ()
    chosen, paths = _applied(model, variables, inputs, patterns)
    for pattern in patterns:
        if not fnmatch.filter(paths, pattern):
            there = ", ".join(dict.fromkeys(paths)) or "none"
            raise InputError(f"shard_dense: no dense layer matches {pattern!r}; there are: {there}")
    for path in {layer.path for layer in chosen}:
        if [layer.path for layer in chosen].count(path) > 1:
            raise InputError(f"shard_dense: the model applies {path} more than once; leave it whole")
    return tuple(_cut(layer, devices) for layer in chosen) if devices > 1 else ()


def _cut(layer: _Seen, devices: int) -> ShardedDense:
    inputs, units = layer.inputs[-1], layer.outputs[-1]
    cut = fewest_bytes(inputs, units, devices)
    if cut is None or len(layer.inputs) < 2:
        raise InputError(
            f"shard_dense: the kernel of {layer.path}, [{inputs}, {units}], does not divide by {devices} devices; "
            "leave the layer out"
        )
    places = math.prod(layer.inputs[1:-1])
    return ShardedDense(layer.path, cut, places * inputs, places * units, layer.dtype, layer.backward)


def _applied(
    model: Model, variables: Variables, inputs: PyTree, patterns: Sequence[str]
) -> tuple[list[_Seen], list[str]]:
    """Dense layers that match, in the order in which the model applies them in training, and the paths of all."""
    paths, names, entering, outputs = [], [], [], []

    def record(next_fn: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        result = next_fn(*args, **kwargs)
        path = dense_path(context)
        if path:
            paths.append(path)
        if path and any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            _require_plain(context.module, path)
            names.append(path)
            entering.append(args[0])
            outputs.append(jax.typeof(result))
        return result

    def applied(params: PyTree, stats: PyTree, given: PyTree, keys: jax.Array) -> list[jax.Array]:
        with nn.intercept_methods(record):
            model.apply(params, stats, given, train=True, keys=keys)
        return entering

    keys = jax.eval_shape(_one_key)
    jaxpr = jax.make_jaxpr(applied)(variables.params, variables.stats, inputs, keys).jaxpr
    by_params = depend_on(jaxpr, jaxpr.invars[: len(jax.tree.leaves(variables.params))], jaxpr.outvars)
    seen = [
        _Seen(path, var.aval.shape, out.shape, out.dtype.name, index in by_params)
        for index, (path, var, out) in enumerate(zip(names, jaxpr.outvars, outputs, strict=True))
    ]
    return seen, paths


def _require_plain(layer: nn.Module, path: str) -> None:
    """Refuse a layer that multiplies in a way of its own, which a cut one would not."""
    own = [name for name in ("dot_general", "dot_general_cls") if getattr(layer, name, None) is not None]
    if getattr(layer, "promote_dtype", nn.dtypes.promote_dtype) is not nn.dtypes.promote_dtype:
        own.append("promote_dtype")
    if own:
        raise InputError(f"shard_dense: {path} has a {' and a '.join(own)} of its own; leave the layer out")


def _one_key() -> jax.Array:
    return jax.random.split(jax.random.key(0), 1)


def param_kinds(params: PyTree, layers: Sequence[ShardedDense]) -> PyTree:
    """For each parameter, how it is cut over the devices of a host: 'rows', 'columns', or 'whole' if it is not."""
    cuts = {f"{layer.path}/kernel": layer.cut for layer in layers}
    paths, tree = jax.tree.flatten_with_path(params)
    names = [leaf_name(path) for path, _ in paths]
    return jax.tree.unflatten(tree, [cuts.get(name, "whole") for name in names])


def hybrid_strategy(
    strategy: Strategy, kinds: PyTree, order: Sequence[int], bucket_bytes: int | None = None
) -> Strategy:
    """`strategy` for what is whole; what is cut is summed over hosts alone, by an all-reduce a bucket.

    Args:
        kinds: as `param_kinds` gives them.
        order: in which the strategy will be given the leaves.
        bucket_bytes: of what is cut; None: 25 MiB.
    """
    assert isinstance(strategy.reducer, Reducer)
    flat = jax.tree.leaves(kinds)
    cut = [flat[index] != "whole" for index in order]
    if not any(cut):
        return strategy
    across = bucketed(all_reduce(HOST), bucket_bytes or _BUCKET_BYTES)
    return replace(strategy, reducer=_reduce_apart(strategy.reducer, across, cut))


def _reduce_apart(whole: Reducer, across: Reducer, cut: Sequence[bool]) -> Reducer:
    """`across` sums the leaves that are cut, `whole` the others.

    `reduce` takes a device's parts of the cut leaves; `init` and `plan` take whole shapes, as those of all reducers do.
    """
    places = [[index for index, here in enumerate(cut) if here == wanted] for wanted in (True, False)]

    def two(tree: PyTree) -> tuple[list[Any], list[Any]]:
        leaves = jax.tree.leaves(tree)
        first, second = ([leaves[index] for index in chosen] for chosen in places)
        return first, second

    def one(parts: Sequence[Any], rest: Sequence[Any]) -> list[Any]:
        leaves = dict(zip([*places[0], *places[1]], [*parts, *rest], strict=True))
        return [leaves[index] for index in range(len(leaves))]

    def init_fn(shapes: PyTree, axis_sizes: AxisSizes) -> PyTree:
        parts, rest = two(shapes)
        return across.init(_part_shapes(parts, axis_sizes), axis_sizes), whole.init(rest, axis_sizes)

    def reduce_fn(values: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        parts, rest = two(values)
        # The layers that are cut are the last ones, whose gradients are the first to be there.
        parts, of_parts = across.reduce(parts, state[0])
        rest, of_rest = whole.reduce(rest, state[1])
        return jax.tree.unflatten(jax.tree.structure(values), one(parts, rest)), (of_parts, of_rest)

    def plan_fn(shapes: PyTree, axis_sizes: AxisSizes) -> Plan:
        parts, rest = two(shapes)
        parts = _part_shapes(parts, axis_sizes)
        plans = across.plan(parts, axis_sizes), whole.plan(rest, axis_sizes)
        # On one host nothing is sent of what is cut.
        buckets = [
            _numbered(bucket, numbers)
            for plan, numbers in zip(plans, places, strict=True)
            for bucket in (plan.buckets.buckets if plan.buckets and plan.collectives else ())
        ]
        leaves = one(parts, rest)
        shapes_, dtypes = tuple(tuple(leaf.shape) for leaf in leaves), tuple(str(leaf.dtype) for leaf in leaves)
        return Plan(plans[0].collectives + plans[1].collectives, buckets=BucketPlan(shapes_, dtypes, tuple(buckets)))

    return Reducer(init_fn, reduce_fn, plan_fn)


def _part_shapes(leaves: Sequence[Any], axis_sizes: AxisSizes) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct((leaf.size // axis_sizes[DEVICE],), leaf.dtype) for leaf in leaves]


def _numbered(bucket: Bucket, numbers: Sequence[int]) -> Bucket:
    """The bucket with leaves numbered as among all."""
    return replace(bucket, pieces=tuple(replace(piece, leaf=numbers[piece.leaf]) for piece in bucket.pieces))


def layers_plan(
    layers: Sequence[ShardedDense], examples: int, microbatches: int, axis_sizes: Mapping[str, int]
) -> tuple[tuple[Collective, ...], tuple[float, ...]]:
    """What the layers send, `examples` a device in a step, and how often a step sends each of these.

    Of many microbatches all but the first and the last are one loop of the program.
    """
    one = [c for layer in layers for c in layer.plan(examples // microbatches, axis_sizes)]
    times = [1, microbatches - 2, 1] if microbatches > 2 else [1] * microbatches
    return tuple(one * len(times)), tuple(float(count) for count in times for _ in one)
