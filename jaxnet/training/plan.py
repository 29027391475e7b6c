"""A plan as a person reads it: buckets, bytes on the wire by axis, and what the compiler made of it."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxnet.comm import Bucket, BucketPlan, Check, KiB, MiB, Sharded, mesh_size, stacked_filled, wire_bytes_per_axis
from jaxnet.cost.bounds import BY_XLA
from jaxnet.training.prepare import Experiment

PyTree = Any

_WHEN = {
    "deferred": "in parts, gathered by the next forward",
    "local": "the mean of the parameters every {every} steps",
}


def plan_json(experiment: Experiment, mesh: Mesh, check: Check | None = None) -> dict[str, Any]:
    """The plan as plain JSON values; with `check`, also the collectives found in the compiled program."""
    leaves = jax.tree.leaves(_params(experiment))
    members = leaves[0].shape[0] if experiment.layout.ensemble else 1
    report: dict[str, Any] = {
        "strategy": experiment.strategy.name,
        "schedule": experiment.strategy.schedule,
        "mode": experiment.mode,
        "mesh": experiment.mesh_over_ranks(mesh),
        "leaves": len(leaves),
        "members": members,
        "gradient_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in leaves),
        "cut": {f"{layer.path}/kernel": layer.cut for layer in experiment.layers},
        "buckets": [],
        "every": 1 if experiment.strategy.averaging is None else experiment.strategy.averaging.every,
        "wire_bytes_per_axis": _sent(experiment),
        "wire_bytes_per_step": wire_bytes_per_step(experiment, mesh),
        "planned": [_collective(c.kind, c.axes, c.dtype, c.elements) for c in experiment.planned],
    }
    buckets = bucket_plan(experiment, mesh)
    if buckets is not None:
        parts = mesh_size(mesh) if isinstance(experiment.reducer, Sharded) else 1
        names, sizes = leaf_names(experiment), [leaf.size for _, leaf in _numbered(experiment)]
        report["buckets"] = [_bucket(bucket, parts, members, sizes, names) for bucket in buckets.buckets]
    if check is not None:
        report["verified"] = check.ok
        report["found"] = [
            {"kind": f.kind, "arrays": [list(a) for a in f.arrays], "compute_before": f.compute_before}
            for f in check.found
        ]
    return report


def _params(experiment: Experiment) -> PyTree:
    return experiment.layout.whole_shapes.params


def _bucket(bucket: Bucket, parts: int, members: int, sizes: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """A message; where the plan is of one device's part, that of all `parts`, in which each leaf may end in zeros."""
    elements = sum(
        stacked_filled(sizes[piece.leaf], members, parts, piece.start, piece.size) for piece in bucket.pieces
    )
    return {
        "bytes": parts * bucket.bytes,
        "elements": elements,
        "padding": parts * bucket.padded - elements,
        "dtype": bucket.dtype,
        "leaves": [names[piece.leaf] for piece in bucket.pieces],
    }


def _collective(kind: str, axes: Sequence[str], dtype: str, elements: int) -> dict[str, Any]:
    return {"kind": kind, "axes": list(axes), "dtype": dtype, "elements": elements}


def bucket_plan(experiment: Experiment, mesh: Mesh) -> BucketPlan | None:
    """How leaves map to buckets; None if XLA reduces."""
    if experiment.reducer is None:
        return None
    travels = _params(experiment) if experiment.exchange is None else experiment.exchange
    return experiment.reducer.plan(travels, mesh.shape).buckets


def leaf_names(experiment: Experiment) -> list[str]:
    """Paths of the leaves that travel, as a bucket plan numbers them: in backward order, if they are gradients."""
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in _numbered(experiment)]


def _numbered(experiment: Experiment) -> list[tuple[Any, jax.ShapeDtypeStruct]]:
    """Paths and leaves of what travels."""
    if experiment.exchange is not None:
        return list(jax.tree.leaves_with_path(experiment.exchange))
    leaves = jax.tree.leaves_with_path(_params(experiment))
    return [leaves[index] for index in experiment.order]


def _sent(experiment: Experiment) -> dict[str, int]:
    """Bytes that the busiest device sends over each axis in a step, in the mean over the run's steps."""
    return wire_bytes_per_axis(experiment.planned, experiment.shares)


def wire_bytes_per_step(experiment: Experiment, mesh: Mesh) -> int:
    """Bytes that the busiest device sends in a step, in the mean over the run's steps.

    If XLA reduces: those of a ring all-reduce of each gradient.
    """
    if experiment.reducer is not None:
        return sum(_sent(experiment).values())
    return sum(wire_bytes_per_axis(BY_XLA.plan(_params(experiment), mesh.shape).collectives).values())


def plan_text(experiment: Experiment, mesh: Mesh, check: Check | None = None) -> str:
    """The plan in a few tables."""
    return "\n".join(_lines(plan_json(experiment, mesh, check), check))


def _lines(report: dict[str, Any], check: Check | None) -> Iterator[str]:
    mesh = " x ".join(_counted(size, axis) for axis, size in report["mesh"].items())
    together = f" of {report['members']} members" if report["members"] > 1 else ""
    when = _WHEN.get(report["schedule"], "{schedule} backward").format(**report)
    yield (
        f"strategy {report['strategy']} ({when}), mode {report['mode']}, mesh {mesh}: "
        f"{report['leaves']} leaves{together}, {size_text(report['gradient_bytes'])} of gradients"
    )
    for name, cut in report["cut"].items():
        yield f"{name} is cut by {cut} over the devices of a host: activations travel, its gradient does not leave them"
    if report["buckets"]:
        yield ""
        order = "in backward order" if report["schedule"] != "local" else "at the end of a round"
        yield f"{'bucket':>6}  {'bytes':>12}  {'padding':>7}  {'dtype':<8}  leaves, {order}"
    for index, bucket in enumerate(report["buckets"]):
        leaves = bucket["leaves"]
        shown = leaves[0] if len(leaves) == 1 else f"{leaves[0]} .. {leaves[-1]} ({len(leaves)})"
        yield f"{index:>6}  {bucket['bytes']:>12,}  {bucket['padding']:>7}  {bucket['dtype']:<8}  {shown}"
    yield ""
    mean = " in the mean" if report["every"] > 1 else ""
    for axis, sent in report["wire_bytes_per_axis"].items():
        yield f"the busiest device sends {sent:>14,} bytes a step{mean} over {axis}"
    if not report["wire_bytes_per_axis"]:
        yield f"the busiest device sends {report['wire_bytes_per_step']:>14,} bytes a step"
    if check is not None and (check.planned or check.found):
        yield ""
        yield from _check_lines(check)


def _check_lines(check: Check) -> Iterator[str]:
    yield f"{'':>3}  {'planned':<44}  found in the compiled program (compute operations before it)"
    found = [_found_text(f.kind, f.arrays, f.compute_before) for f in check.found]
    # Found ones stand in schedule order, planned ones in issue order; a row does not pair them.
    planned = [f"{c.kind} {c.elements:,} {c.dtype} over {'+'.join(c.axes)}" for c in check.planned]
    for index in range(max(len(found), len(planned))):
        left = planned[index] if index < len(planned) else ""
        right = found[index] if index < len(found) else ""
        yield f"{index:>3}  {left:<44}  {right}"
    yield ""
    yield check.explain() if check.planned else "nothing was planned: XLA places what it finds best"


def _found_text(kind: str, arrays: Sequence[tuple[str, int]], compute: int) -> str:
    dtype, elements = arrays[0]
    more = f" and {_counted(len(arrays) - 1, 'array')} more" if len(arrays) > 1 else ""
    return f"{kind} {elements:,} {dtype}{more} ({compute})"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size_text(count: int) -> str:
    """Bytes in a unit that suits.

    >>> size_text(3 * 1024 * 1024)
    '3.0 MiB'
    """
    if count >= MiB:
        return f"{count / MiB:.1f} MiB"
    return f"{count / KiB:.1f} KiB" if count >= KiB else f"{count} bytes"
