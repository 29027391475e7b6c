"""`jaxnet tune` finds the plan that is fastest for a model on these hosts."""

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxnet.cli.bench import (
    add_workload,
    asked_config,
    asked_workload,
    check_workload,
    is_first,
    print_once,
    run_in_job,
    start_mesh,
)
from jaxnet.command_line import Commands, given_path
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxnet.cost.fit import Line
    from jaxnet.cost.prediction import PredictedStep, Way
    from jaxnet.cost.tuning import Tuned
    from jaxnet.report import Timeline

_DESCRIPTION = """\
Find the plan that is fastest for a model on these hosts. Computation and links are measured, the step of every
candidate is predicted from them, and the most promising are timed against each other, against the default and against
XLA's own plan. All candidates give the same gradients: strategies that sum message by message in full precision, with
several sizes of buckets, as one program or in pieces. It prints the settings with which to train. With --png or --svg
it draws the step of the plan that it found, as predicted, in the form in which `jaxnet timeline` draws a traced one;
with --residuals how far off lines and predictions are.

With --profile what was measured is kept in a file, and not measured again where the model, the mesh, the processor and
the version of JAX are the same. From it --slower says what steps would take on a slower network, and times nothing."""

_EXAMPLES = """\
examples:
  jaxnet tune --config configs/digits.py --mesh 2x4
  jaxnet launch local --processes 2 -- jaxnet tune --config configs/text_transformer.py
  jaxnet launch local --processes 2 -- jaxnet tune --model dense --profile profile.json
  jaxnet launch local --processes 2 -- jaxnet tune --model dense --profile profile.json --slower 4 --png step.png
  jaxnet lab --hosts 2 --rate 1gbit --cpus-per-host 1 -- jaxnet tune --model dense --json
"""


def add_tune(commands: Commands) -> None:
    """Add `tune` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "tune", help="find the fastest plan for a model here", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    run_in_job(parser, run_tune)
    add_workload(parser)
    parser.add_argument("--all", action="store_true", help="show all candidates, not only those that were timed")
    parser.add_argument("--profile", type=given_path, metavar="FILE", help="keep what is measured in a file of JSON")
    parser.add_argument(
        "--slower", type=_times, metavar="N", help="only predict, if a byte took N times as long between hosts"
    )
    parser.add_pictures("also draw the step of the plan, as predicted")
    parser.add_picture("residuals", "also draw how far lines are from messages, and predictions from steps; PNG or SVG")
    parser.add_overrides()


def run_tune(args: argparse.Namespace) -> int:
    """Run `jaxnet tune`."""
    from jaxnet.checkpoints.consensus import Consensus
    from jaxnet.cost.prediction import between_slower_hosts, predicted_step
    from jaxnet.cost.profiles import as_parts, key_of, write_profile
    from jaxnet.cost.tuning import plan_of, predict, tune
    from jaxnet.figures import write_figure
    from jaxnet.report import draw

    check_workload(args)
    if args.slower and not args.profile:
        raise InputError("--slower: give --profile FILE too, in which `jaxnet tune` has kept what it measured")
    mesh = start_mesh(args, "tune")
    workload = asked_workload(args, asked_config(args), mesh)
    kept, key = None, ""
    if args.profile:
        key = key_of(workload)
        said = Consensus().decided(lambda: _kept(args.profile, key))
        kept = None if said is None else as_parts(said)
    if args.slower:
        found = None if kept is None else predict(workload, between_slower_hosts(kept, args.slower))
        if found is None:
            raise InputError(f"--profile {args.profile} has nothing of {key}; leave --slower out, and it is measured")
    else:
        found = tune(workload, kept)
    if args.pictures and is_first():
        title = f"{found.best} on {workload.name}, predicted"
        step = predicted_step(found.parts, plan_of(found.best, workload), workload)
        write_figure(draw(timeline_of(step, title, workload.mesh.shape)), args.pictures)
    if args.residuals and is_first():
        write_figure(residuals_of(found, f"{workload.name}: what the model of a step misses"), [args.residuals])
    print_once(json.dumps(_as_json(found), indent=2) if args.json else "\n".join(_lines(found, everything=args.all)))
    # Only now: what was found is printed, whatever becomes of the file.
    if args.profile and not args.slower and found.parts is not kept:
        Consensus().decided(lambda: write_profile(args.profile, key, found.parts))
    return 0


def timeline_of(step: "PredictedStep", title: str, axis_sizes: Mapping[str, int]) -> "Timeline":
    """A predicted step in the form of a traced one, of a device like all others."""
    from jaxnet.report import DeviceStep, Span, TimedCollective, Timeline, hidden_seconds, union

    compute = union(Span(*span) for span in step.computed)
    sent = []
    for message, collective, begin, end in step.sent:
        span = Span(begin, end)
        sent.append(
            TimedCollective(
                name=f"{collective.kind}.{message}",
                kind=collective.kind,
                bucket=message,
                scope=f"bucket_{message}",
                axes=collective.axes,
                size=collective.size,
                bytes=collective.bytes,
                span=span,
                hidden=hidden_seconds(span, compute),
            )
        )
    return Timeline(title, 0, (), (DeviceStep(0, 0, compute, tuple(sorted(sent, key=lambda each: each.span))),))


def residuals_of(found: "Tuned", title: str) -> "Figure":
    """The picture of what was measured beside what was fitted and predicted."""
    from jaxnet.report import Pair, draw_residuals

    messages = {
        _way(way): {bytes_: Pair(curve.line.seconds(bytes_), median) for bytes_, median in curve.medians.items()}
        for way, curve in found.parts.curves.items()
    }
    steps = {row.label: Pair(row.predicted, row.measured, row.learned) for row in found.rows if row.measured}
    return draw_residuals(title, messages, steps)


def _way(way: "Way") -> str:
    kind, axes = way
    return f"{kind} over {'+'.join(axes)}"


def _kept(path: Path, key: str) -> dict[str, Any] | None:
    from jaxnet.cost.profiles import as_json, read_profile

    parts = read_profile(path, key)
    return None if parts is None else as_json(parts)


def _times(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.001 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 0.001 to 1000")
    return number


def _as_json(found: "Tuned") -> dict[str, Any]:
    from jaxnet.cost.tuning import settings

    parts = found.parts
    compute = ("forward", "gradients", "step", "share", "launch", "packing", "beyond")
    curves = {f"{kind} {'+'.join(axes)}": curve for (kind, axes), curve in parts.curves.items()}
    return {
        "best": found.best,
        "settings": settings(found.best),
        "why": found.why,
        "default": found.default,
        "steps": found.steps,
        "rows": [row._asdict() for row in found.rows],
        "compute": {name: getattr(parts, name) for name in compute},
        "unhidden": dict(parts.unhidden),
        "links": {name: {**curve.line._asdict(), "medians": dict(curve.medians)} for name, curve in curves.items()},
    }


def _lines(found: "Tuned", *, everything: bool) -> Iterator[str]:
    from jaxnet.cost.tuning import settings

    parts = found.parts
    yield (
        f"computation alone: forward {parts.forward * 1e3:.1f} ms, gradients {parts.gradients * 1e3:.1f}, step "
        f"{parts.step * 1e3:.1f}; messages take {parts.share:.0%} of the processor while they travel, "
        f"and {parts.launch * 1e3:.2f} ms to launch; packing takes {parts.packing * 2**20 * 1e3:.2f} ms a MiB"
    )
    yield f"a step of one program takes {parts.beyond * 1e3:.1f} ms beyond computation and messages"
    for kind, part in parts.unhidden.items():
        yield f"{kind}: {part:.0%} of what should be hidden is not"
    for way, curve in parts.curves.items():
        yield f"{_way(way)}: {_curve(curve.line)}"
    yield f"{'plan':<26} {'predicted ms':>12} {'measured ms':>12} {'off':>6}"
    for row in found.rows:
        if row.measured:
            off = f"{row.predicted / row.measured - 1:+.0%}"
            known = "  learned from it" if row.learned else ""
            yield f"{row.label:<26} {row.predicted * 1e3:>12.1f} {row.measured * 1e3:>12.1f} {off:>6}{known}"
        elif everything or not found.steps:
            yield f"{row.label:<26} {row.predicted * 1e3:>12.1f}"
    timed = sum(row.measured is not None for row in found.rows)
    off = "none timed"
    if timed:
        off = f"{timed} timed in {found.steps} steps"
    if found.errors:
        off += (
            "; of those that nothing was learned from, predictions are off by "
            f"{statistics.median(found.errors):.0%}, at most {max(found.errors):.0%}"
        )
    yield f"{len(found.rows)} plans predicted, {off}"
    yield f"{found.best}: {found.why}"
    yield f"train with: {settings(found.best)}"


def _curve(line: "Line") -> str:
    if not line.fits:
        return f"no line (a median is {line.worst:.0%} off): read between what was measured"
    if not line.per_byte:
        return f"{line.latency * 1e3:.2f} ms, no matter how many bytes"
    most = f"{1e-6 / line.low:,.1f}" if line.low > 0 else "any"
    return f"{line.latency * 1e3:.2f} ms and {1e-6 / line.per_byte:,.1f} MB/s ({1e-6 / line.high:,.1f} to {most})"
