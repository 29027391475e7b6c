"""`jaxnet export`: what was trained as a program for JAX alone."""

import argparse
from typing import TYPE_CHECKING

from jaxnet.cli.parser import Parser, given_path, positive
from jaxnet.cli.predict import add_choice

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]

_DESCRIPTION = """\
Write a trained network as StableHLO: uint8 images in, probabilities out, normalization included. JAX alone runs it, as
in jax.export.deserialize(bytearray(pathlib.Path(FILE).read_bytes())).call(images), and so does `jaxnet predict FILE`,
which needs FILE.json beside it. It is made for the platforms that are named; it was tested on the CPU alone."""

_EXAMPLES = """\
examples:
  jaxnet export runs/digits --out digits.stablehlo
  jaxnet export runs/digits --best --out digits.stablehlo --batch 64 --platforms cpu
  jaxnet export vgg16.safetensors --out vgg16.stablehlo --weights separate --dtype bfloat16
"""


def add_parser(commands: "Commands") -> None:
    """Add `export` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "export", help="write what was trained as StableHLO", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    parser.add_argument("trained", type=given_path, metavar="TRAINED", help="a workdir, a checkpoint or a file")
    parser.add_argument("--out", type=given_path, required=True, metavar="FILE", help="the program")
    add_choice(parser)
    parser.add_argument("--batch", type=positive, metavar="N", help="take batches of N images; default: of any size")
    parser.add_argument(
        "--weights",
        choices=("inside", "separate"),
        default="inside",
        help="as constants of the program, or in FILE.weights.safetensors, to be given as its first argument",
    )
    parser.add_argument(
        "--platforms", type=_platforms, default="cpu,cuda,tpu", metavar="NAMES", help="default cpu,cuda,tpu"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load, export, and say what was written."""
    from jaxnet.inference.export import export
    from jaxnet.inference.loading import load_network
    from jaxnet.training.run.progress import show_warnings

    show_warnings()
    choice = {name: getattr(args, name) for name in ("step", "best", "model", "config", "dtype", "member")}
    network = load_network(args.trained, **choice)
    separate = args.weights == "separate"
    for path in export(network, args.out, batch=args.batch, platforms=args.platforms, separate_weights=separate):
        print(f"{path}  {path.stat().st_size:,} bytes")
    return 0


def _platforms(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if wrong := [name for name in names if name not in ("cpu", "cuda", "tpu")]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} must be cpu, cuda or tpu, or several, as in cpu,cuda")
    return names
