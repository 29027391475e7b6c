"""The laws that every reducer obeys, tried on one mesh: `judge` says which of them a reducer of yours keeps."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxnet.comm.guards import varying_along
from jaxnet.comm.mesh import AXES, mesh_size, platform_of
from jaxnet.comm.platforms import as_sent, compiler_options
from jaxnet.comm.reducer import PyTree, Reducer
from jaxnet.comm.verify import Check, verify

_SHAPES = {"kernel": (30, 20), "bias": (20,), "scale": (7, 3)}
_LARGEST = 9  # whole numbers up to this: their sums are exact in any order, in float16 too


class Judgement(NamedTuple):
    """Which laws a reducer keeps on a mesh. Prints in a line.

    Attributes:
        mesh: the sizes of its axes.
        sum: the result is the sum over all devices, to the last bit for small whole numbers. Not for codecs.
        same: all devices have the same bits, or their parameters would drift apart.
        linear: twice the values give twice the result. Not for codecs with feedback.
        state: the state keeps its shapes and dtypes, so that a step is compiled once.
        plan: the compiled program holds what was planned, and nothing else.
        check: the plan beside the compiled program.
    """

    mesh: Mapping[str, int]
    sum: bool
    same: bool
    linear: bool
    state: bool
    plan: bool
    check: Check

    def __str__(self) -> str:
        laws = {name: getattr(self, name) for name in ("sum", "same", "linear", "state", "plan")}
        said = ", ".join(f"{law} {'holds' if holds else 'IS BROKEN'}" for law, holds in laws.items())
        why = "" if self.plan else f"\n    {self.check.explain()}"
        return f"{' x '.join(map(str, self.mesh.values()))}: {said}{why}"


def judge(reducer: Reducer, mesh: Mesh) -> Judgement:
    """Try a reducer of trees, such as `bucketed(...)` gives, on three tensors that differ by device.

    A single mesh hides mistakes: what forgets the hosts is right on one. Try several shapes.

    Args:
        reducer: `reducer.reduce` sums the values of all devices.
        mesh: of `make_mesh`.

    >>> from jaxnet.comm import all_reduce, bucketed, make_mesh
    >>> print(judge(bucketed(all_reduce("host", "device"), 1024), make_mesh(2, jax.devices()[:4])))
    2 x 2: sum holds, same holds, linear holds, state holds, plan holds
    """
    devices = mesh_size(mesh)
    draw = np.random.RandomState(0)
    given = {
        name: draw.randint(-_LARGEST, _LARGEST + 1, (devices, *shape)).astype(np.float32)
        for name, shape in _SHAPES.items()
    }
    shapes = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in _SHAPES.items()}
    first = reducer.init(shapes, mesh.shape)
    kept: list[bool] = []

    def on_device(rows: dict[str, jax.Array]) -> PyTree:
        totals, state = reducer.reduce({name: row[0] for name, row in rows.items()}, first)
        kept.append(_types(state) == _types(first))
        return {name: varying_along(total, AXES)[None] for name, total in totals.items()}

    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=P(AXES), out_specs=P(AXES))
    program = jax.jit(mapped, compiler_options=compiler_options(platform_of(mesh))).lower(given).compile()
    results = {name: np.asarray(rows) for name, rows in program(given).items()}
    twice = program({name: 2 * rows for name, rows in given.items()})
    planned = as_sent(reducer.plan(shapes, mesh.shape).collectives, platform_of(mesh))
    check = verify(program.as_text() or "", planned, mesh.shape)
    return Judgement(
        dict(mesh.shape),
        sum=all((results[name] == given[name].sum(0)).all() for name in _SHAPES),
        same=all((rows == rows[0]).all() for rows in results.values()),
        linear=all((np.asarray(twice[name]) == 2 * results[name]).all() for name in _SHAPES),
        state=all(kept),
        plan=check.ok and not check.extra,
        check=check,
    )


def _types(state: PyTree) -> Any:
    leaves, tree = jax.tree.flatten(state)
    return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]
