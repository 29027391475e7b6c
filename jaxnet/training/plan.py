"""A plan as a person reads it: buckets, bytes on the wire by axis, and what the compiler made of it."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax

from jaxnet.comm import (
    HOST,
    Bucket,
    Check,
    FoundCollective,
    GiB,
    KiB,
    MiB,
    as_sent,
    platform_of,
    sent_by_busiest,
    stacked_filled,
    wire_bytes_per_axis,
)
from jaxnet.comm.as_html import html_code, html_folded, html_line, html_table
from jaxnet.cost.bounds import BY_XLA
from jaxnet.parallel import Form, ShardedDense, StepPlan
from jaxnet.report.plans import Sent, draw_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PyTree = Any
_WHEN = {
    "xla": "as XLA decides",
    "priority": "during backward and the next forward",
    "deferred": "in shards, gathered by the next forward",
    "local": "the mean of the parameters every {every} steps",
}


@dataclass(frozen=True)
class RunPlan:
    """What a training step sends, and with `check` what the compiled program holds of it. Prints as tables.

    Attributes:
        form: the strategy's step.
        sends: what its program sends.
        params: shapes of the whole parameters; of an ensemble they lead with [members].
        members: networks that are trained at once.
        layers: dense layers whose kernels are cut over the devices of a host.
        compiled: compiles the step.
        checked: compares the plan with the text of a compiled program.
        check: the plan beside the compiled program; None: it was not compiled.
    """

    form: Form
    sends: StepPlan
    params: PyTree
    members: int
    layers: tuple[ShardedDense, ...]
    compiled: Callable[[], jax.stages.Compiled] = field(repr=False)
    checked: Callable[[str], Check] = field(repr=False)
    check: Check | None = None

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Sizes of the axes of the whole run, in which ranks of MPI are hosts."""
        sizes = dict(self.form.mesh.shape)
        return {**sizes, HOST: sizes[HOST] * self.form.options.ranks}

    @property
    def buckets(self) -> list[dict[str, Any]]:
        """Each message: bytes, elements, padding, dtype, leaves; empty if XLA reduces."""
        if self.sends.buckets is None:
            return []
        names, sizes = zip(*((name, leaf.size) for name, leaf in self.sends.leaves), strict=True)
        shards = self.sends.shards
        return [_bucket(bucket, shards, self.members, sizes, names) for bucket in self.sends.buckets.buckets]

    @property
    def wire_bytes_per_axis(self) -> dict[str, int]:
        """Bytes that the busiest device sends over each axis in a step, in the mean over the run's steps."""
        return wire_bytes_per_axis(self.sends.collectives, self.sends.shares)

    @property
    def wire_bytes_per_step(self) -> int:
        """The sum over all axes. If XLA reduces: the bytes of a ring all-reduce of each gradient."""
        if self.form.strategy.kind == "xla":
            mesh = self.form.mesh
            by_xla = BY_XLA.plan(self.params, mesh.shape).collectives
            return sum(wire_bytes_per_axis(as_sent(by_xla, platform_of(mesh))).values())
        return sum(self.wire_bytes_per_axis.values())

    def verified(self) -> "RunPlan":
        """The same beside the compiled program: compiles the step."""
        return self.beside(self.compiled().as_text() or "")

    def beside(self, hlo: str) -> "RunPlan":
        """The same beside this text of the compiled program."""
        return replace(self, check=self.checked(hlo))

    def as_json(self) -> dict[str, Any]:
        """The plan as plain JSON values; with a check, also the collectives found in the compiled program."""
        strategy, leaves = self.form.strategy, jax.tree.leaves(self.params)
        report: dict[str, Any] = {
            "strategy": strategy.label,
            "expression": strategy.expression,
            "schedule": moment_of(self.form),
            "mode": self.form.options.mode,
            "mesh": self.axis_sizes,
            "leaves": len(leaves),
            "members": self.members,
            "gradient_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in leaves),
            "cut": {f"{layer.path}/kernel": layer.cut for layer in self.layers},
            "buckets": self.buckets,
            "every": self.form.round_steps,
            "wire_bytes_per_axis": self.wire_bytes_per_axis,
            "wire_bytes_per_step": self.wire_bytes_per_step,
            "planned": [_collective(c.kind, c.axes, c.dtype, c.elements) for c in self.sends.collectives],
        }
        if self.check is not None:
            report["verified"] = self.check.ok
            report["missing"] = [_collective(c.kind, c.axes, c.dtype, c.elements) for c in self.check.missing]
            report["repeated"] = list(self.check.repeated)
            report["places"] = list(self.check.places)
            report["not_planned"] = [{"kind": f.kind, "arrays": [list(a) for a in f.arrays]} for f in self.check.extra]
            report["found"] = [
                {"kind": f.kind, "arrays": [list(a) for a in f.arrays], "compute_before": f.compute_before}
                for f in self.check.found
            ]
        return report

    def draw(self) -> "Figure":
        """A picture: the buckets, and the messages over each axis, in order of issue.

        Raises:
            InputError: matplotlib is missing.
        """
        buckets = {"buckets": [Sent("", bucket["bytes"]) for bucket in self.buckets]} if self.buckets else {}
        by_axis = {
            axes: [Sent(collective.kind, sent) for collective, sent in messages]
            for axes, messages in sent_by_busiest(self.sends.collectives, self.sends.shares).items()
        }
        return draw_plan(
            _title(self.as_json()), {**buckets, **(by_axis or {"all axes": [Sent("", self.wire_bytes_per_step)]})}
        )

    def __str__(self) -> str:
        return "\n".join(_lines(self.as_json(), self.check))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(_html(self.as_json(), self.check))


def moment_of(form: Form) -> str:
    """When messages travel in this form of the step: in one program none crosses the end of a step."""
    when = form.strategy.when
    return "during" if when == "priority" and form.options.mode != "pieces" else when


def when_text(moment: str, every: int) -> str:
    """In words, when messages travel; `every` is the number of steps in a round of local training.

    >>> when_text("during", 1), when_text("local", 8)
    ('during backward', 'the mean of the parameters every 8 steps')
    """
    return _WHEN.get(moment, "{moment} backward").format(moment=moment, every=every)


def _bucket(bucket: Bucket, parts: int, members: int, sizes: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """A message; where the plan is of one device's shard, that of all `parts`, in which each leaf may end in zeros."""
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


def _title(report: dict[str, Any]) -> str:
    mesh = " x ".join(_counted(size, axis) for axis, size in report["mesh"].items())
    together = f" of {report['members']} members" if report["members"] > 1 else ""
    when = when_text(report["schedule"], report["every"])
    return (
        f"strategy {report['strategy']} ({when}), mode {report['mode']}, mesh {mesh}: "
        f"{report['leaves']} leaves{together}, {size_text(report['gradient_bytes'])} of gradients"
    )


def _lines(report: dict[str, Any], check: Check | None) -> Iterator[str]:
    yield _title(report)
    if report["schedule"] != "xla" and report["expression"] != report["strategy"]:
        yield report["expression"]
    for name, cut in report["cut"].items():
        yield f"{name} is cut by {cut} over the devices of a host: activations travel, its gradient does not leave them"
    if report["buckets"]:
        yield ""
        order = "in backward order" if report["schedule"] != "local" else "at the end of a round"
        yield f"{'bucket':>6}  {'bytes':>12}  {'padding':>7}  {'dtype':<8}  leaves, {order}"
    for index, bucket in enumerate(report["buckets"]):
        shown = _leaves_text(bucket["leaves"])
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


def _leaves_text(leaves: Sequence[str]) -> str:
    return leaves[0] if len(leaves) == 1 else f"{leaves[0]} .. {leaves[-1]} ({len(leaves)})"


def _check_lines(check: Check) -> Iterator[str]:
    yield f"{'':>3}  {_COLLECTIVES[0]:<52}  {_COLLECTIVES[1]:<9}  {_COLLECTIVES[2]:>16}  {_COLLECTIVES[3]}"
    for index, (collective, purpose, place, compute) in enumerate(_collectives(check)):
        yield f"{index:>3}  {collective:<52}  {purpose:<9}  {place:>16}  {compute:>21}"
    yield ""
    yield explained(check)


_COLLECTIVES = ("planned, in the order of issue", "of", "in the program", "compute operations before it")


def _collectives(check: Check) -> Iterator[tuple[str, str, str, str]]:
    """What is planned, with its place in the compiled program; then what the program has besides."""
    for index, (planned, place) in enumerate(zip(check.planned, check.places, strict=True)):
        absent = "as another one" if index in check.repeated else "missing"
        text = f"{planned.kind} {planned.elements:,} {planned.dtype} over {'+'.join(planned.axes)}"
        yield (text, *(("", absent, "") if place is None else _found_cells(check.found[place], place)))
    for place, found in enumerate(check.found):
        if found in check.extra:
            yield (f"{'not planned: ' * bool(check.planned)}{_found_text(found)}", *_found_cells(found, place))


def _found_cells(found: FoundCollective, place: int) -> tuple[str, str, str]:
    bucket = re.search(r"bucket_(\d+)", found.op_name)
    purpose = "metrics" if "/metrics/" in found.op_name else f"bucket {bucket[1]}" if bucket else ""
    return purpose, f"{place + 1}.", f"{found.compute_before}"


def explained(check: Check) -> str:
    """In words, what of the plan is in the compiled program."""
    if check.planned:
        return check.explain()
    if not check.found:
        return "nothing travels: no collective was planned, and none is in the compiled program"
    return "nothing was planned: XLA places what it finds best"


def _html(report: dict[str, Any], check: Check | None) -> Iterator[str]:
    yield html_line(_title(report))
    yield html_code(report["expression"])
    if report["buckets"]:
        keys = ("bytes", "padding", "dtype")
        rows = (
            (index, *(bucket[key] for key in keys), _leaves_text(bucket["leaves"]))
            for index, bucket in enumerate(report["buckets"])
        )
        yield html_table(["bucket", *keys, "leaves"], rows)
    sent = report["wire_bytes_per_axis"] or {"all axes": report["wire_bytes_per_step"]}
    yield html_table(["the busiest device sends over", "bytes a step"], sent.items())
    if check is not None and (check.planned or check.found):
        yield html_line(explained(check))
        yield html_folded("collective by collective", html_table(_COLLECTIVES, _collectives(check)))


def _found_text(found: FoundCollective) -> str:
    dtype, elements = found.arrays[0]
    more = f" and {_counted(len(found.arrays) - 1, 'array')} more" if len(found.arrays) > 1 else ""
    return f"{found.kind} {elements:,} {dtype}{more}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size_text(count: int) -> str:
    """Bytes in a unit that suits.

    >>> size_text(3 * 1024 * 1024)
    '3.0 MiB'
    """
    for size, unit in ((GiB, "GiB"), (MiB, "MiB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / KiB:.1f} KiB" if count >= KiB else f"{count} bytes"
