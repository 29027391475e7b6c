"""`jaxnet bench inference`: latency and throughput of a network, by the size of the batch."""

import argparse
import json
from typing import TYPE_CHECKING

from jaxnet.cli.parser import given_path, positive

if TYPE_CHECKING:
    from jaxnet.cli.parser import Parser

    Commands = argparse._SubParsersAction[Parser]

_DESCRIPTION = """\
Time a network of the zoo (`jaxnet models`) with random weights on the first device, from uint8 images to
probabilities. Batches of all sizes are compiled and warmed up first, then called in turn."""

_EXAMPLES = """\
examples:
  jaxnet bench inference --model alexnet --batch 1,2,4,8,16,32,64,128,256
  jaxnet bench inference --model resnet18 --width 0.25 --image 64 --dtype bfloat16 --json
  jaxnet bench inference --model googlenet --batch 1,8,64 --plot googlenet.png
"""


def add_inference(kinds: "Commands") -> None:
    """Add `inference` to the kinds of `jaxnet bench`."""
    parser = kinds.add_parser("inference", help="time a network's answers", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("--model", required=True, metavar="NAME", help="see `jaxnet models`")
    parser.add_argument("--batch", type=_batches, default="1,8,64", metavar="N,N,...", help="default 1,8,64")
    parser.add_argument("--dtype", default="float32", metavar="DTYPE", help="float32, bfloat16 or float16")
    parser.add_argument("--width", type=_width, default=1.0, metavar="FACTOR", help="of all hidden layers; default 1")
    parser.add_argument("--image", type=positive, metavar="N", help="NxN images; default: the network's own")
    parser.add_argument("--iterations", type=positive, default=50, metavar="N", help="calls a size; default 50")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", type=given_path, metavar="FILE.png", help="draw it too; needs matplotlib")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print and draw."""
    from jaxnet.cost.plot import check_plot
    from jaxnet.inference.bench import bench_inference
    from jaxnet.inference.bench_report import bench_text, plot_inference

    if args.plot:
        check_plot(args.plot)
    options = {name: getattr(args, name) for name in ("dtype", "width", "image", "iterations")}
    report = bench_inference(args.model, args.batch, **options)
    print(json.dumps(report.as_json(), indent=2) if args.json else bench_text(report), flush=True)
    if args.plot:
        plot_inference(report, args.plot)
    return 0


def _batches(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(part) for part in text.split(",")}))


def _width(text: str) -> float:
    try:
        width = float(text)
    except ValueError:
        width = 0.0
    if not 0 < width <= 16:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0, up to 16")
    return width
