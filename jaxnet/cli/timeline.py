"""`jaxnet timeline`: when each bucket of a step travelled, and how much of that was hidden under compute."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from jaxnet.cli.parser import Parser, given_path
from jaxnet.errors import InputError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]

_DESCRIPTION = """\
Show one step from the JAX profiler's trace: for each collective its bucket, bytes, start, end and the part of it in
which the same device computed; for each device the totals. overlap = 1 - exposed / communication."""

_EXAMPLES = """\
examples:
  python train.py --config configs/digits.py profile.steps=3 && jaxnet timeline runs/digits
  jaxnet timeline runs/digits --step 11 --png step.png
  jaxnet timeline /tmp/trace --json        (a directory that was given to jax.profiler.trace)
"""


def add_parser(commands: "Commands") -> None:
    """Add `timeline` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "timeline", help="show when the buckets of a step travelled", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    parser.add_argument("trace", type=given_path, metavar="TRACE", help="a workdir, a profile directory, *.xplane.pb")
    parser.add_argument("--step", type=_step, metavar="N", help="its number; default: the step of median length")
    parser.add_argument("--png", type=_png, metavar="FILE", help="draw it, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the traces, put the step together, print and draw it."""
    from jaxnet.report import read_traces, timeline, timeline_json, timeline_text, write_png

    made = timeline(read_traces(args.trace), args.step, _mesh(args.trace))
    if args.png:
        write_png(made, args.png)
    print(json.dumps(timeline_json(made), indent=2) if args.json else timeline_text(made))
    return 0


def _mesh(workdir: Path) -> dict[str, int]:
    """The mesh's shape, if this is the workdir of a run that has ended."""
    summary = workdir / "summary.json"
    try:
        return dict(json.loads(summary.read_text())["mesh"]) if summary.is_file() else {}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{summary} is not the summary of a run: {error!r}") from error


def _step(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} must be the number of a step")
    return int(text)


def _png(text: str) -> Path:
    path = given_path(text)
    if path.suffix != ".png":
        raise argparse.ArgumentTypeError(f"{text!r} must end in .png")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {path.parent} for {text!r}")
    return path
