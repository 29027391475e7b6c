"""`jaxnet predict` says what a trained network makes of files; `jaxnet export` writes it as StableHLO."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxnet.command_line import Commands, Parser, batch_size, given_path, positive, whole
from jaxnet.errors import InputError, printable, show_warnings

if TYPE_CHECKING:
    from jaxnet.data import Inputs
    from jaxnet.inference import Predictor

_PREDICT_DESCRIPTION = """\
Say what a trained network makes of files. TRAINED is a workdir (its newest good checkpoint is taken), one checkpoint,
or a file of `jaxnet import` or `jaxnet export`.

Pictures, JPEG and PNG, are classified: turned upright as their camera recorded, then prepared as the run prepared its
test images. A file that cannot be read is named, the others are classified, and the exit status is 1.

Networks for other data take .npz files with arrays by name, or .csv files with an example a line, and a language model
of bytes takes beginnings of texts with --continue."""

_PREDICT_EXAMPLES = """\
examples:
  jaxnet predict runs/digits photos/ scan.png
  jaxnet predict runs/digits --best --json --top-k 3 photos/
  find . -name '*.jpg' | jaxnet predict runs/imagenet --labels names.txt -
  jaxnet predict alexnet.safetensors cat.jpg
  jaxnet predict runs/diabetes --config configs/diabetes.py patients.csv
  jaxnet predict runs/text_transformer --continue 200 'The "with" statement'
"""

_DAMAGED_STATUS = 1


def add_predict(commands: Commands) -> None:
    """Add `predict` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "predict",
        help="classify images, or say what else was learned",
        description=_PREDICT_DESCRIPTION,
        epilog=_PREDICT_EXAMPLES,
    )
    parser.add_argument("trained", type=given_path, metavar="TRAINED", help="a workdir, a checkpoint or a file")
    parser.add_argument(
        "images", nargs="+", metavar="INPUT", help="a file, a directory of pictures, or - for paths from stdin"
    )
    add_choice(parser)
    parser.add_argument(
        "--top-k", type=positive, default=5, metavar="K", help="classes to show for each image; default 5"
    )
    parser.add_argument("--labels", type=given_path, metavar="FILE", help="names of the classes, one on each line")
    parser.add_argument("--batch", type=batch_size, default=32, metavar="N", help="examples in a batch; default 32")
    parser.add_argument(
        "--continue", type=positive, dest="count", metavar="N", help="take each INPUT as a text, and write N bytes more"
    )
    parser.add_argument(
        "--temperature",
        type=_temperature,
        metavar="T",
        help="of --continue: 0, the default: the likeliest byte; 1: drawn as the network says",
    )
    parser.add_argument(
        "--seed",
        type=whole(0, 2**32 - 1, "JAX takes 32 bits of a seed"),
        metavar="S",
        help="of these draws; default 0",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on each line")
    parser.set_defaults(run=run_predict)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} must be 0 to 100")
    return value


def add_choice(parser: Parser) -> None:
    """Add the options that choose a checkpoint and how to load it."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--step", type=positive, metavar="N", help="take the checkpoint of that step; default: the newest"
    )
    which.add_argument("--best", action="store_true", help="take the checkpoint that was best on validation examples")
    parser.add_argument("--model", metavar="NAME", help="network of a .safetensors file that does not name it")
    parser.add_config("a config, for models of your own; FILE is run")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32, bfloat16 or float16; default: as trained")
    parser.add_argument(
        "--member", type=int, metavar="I", help="take network number I of an ensemble; default: all, averaged"
    )


def run_predict(args: argparse.Namespace) -> int:
    """Load, predict, print."""
    from jaxnet.data import Inputs
    from jaxnet.data.photos.decoding import quiet_pillow
    from jaxnet.inference import load

    show_warnings()
    quiet_pillow()
    if args.count is None and (args.temperature, args.seed) != (None, None):
        raise InputError("--temperature and --seed are those of --continue: give --continue N too")
    choice = {name: getattr(args, name) for name in ("step", "best", "model", "config", "dtype", "member")}
    predictor = load(args.trained, **choice, batch=args.batch)
    if args.count is not None:
        return _continue(predictor, args)
    if isinstance(predictor.inputs, Inputs):
        return _classify(predictor, predictor.inputs, args)
    return _rows(predictor, predictor.inputs, args)


def _continue(predictor: "Predictor", args: argparse.Namespace) -> int:
    from jaxnet.inference.rows import continued

    for text in args.images:
        temperature, seed = args.temperature or 0.0, args.seed or 0
        made = continued(predictor, os.fsencode(text), args.count, temperature=temperature, seed=seed)
        shown = made.decode(errors="replace")
        plain = printable(text + shown, keep="\n\t")
        print(json.dumps({"text": text, "continued": shown}) if args.json else plain, flush=True)
    return 0


def _rows(predictor: "Predictor", example: "Mapping[str, Any]", args: argparse.Namespace) -> int:
    from jaxnet.inference.rows import read_rows, row_lines

    for name in args.images:
        rows = read_rows(Path(name), example)
        try:
            said = predictor(rows)
        except InputError as error:  # such as arrays of another shape than those of training
            raise InputError(f"{name}: {error}") from error
        for line in row_lines(said, as_json=args.json, path=name if len(args.images) > 1 else ""):
            print(line, flush=True)
    return 0


def _classify(predictor: "Predictor", inputs: "Inputs", args: argparse.Namespace) -> int:
    from jaxnet.data.source import PILLOW_MODES
    from jaxnet.inference.answers import read_labels

    if (channels := inputs.image_shape[-1]) not in PILLOW_MODES:
        raise InputError(
            f"{args.trained} takes images of {channels} channels, and files give {', '.join(map(str, PILLOW_MODES))}; "
            "give it arrays in Python: jaxnet.inference.load(...)(images)"
        )
    if args.labels:
        inputs = dataclasses.replace(inputs, class_names=read_labels(args.labels, inputs.num_classes))
    return _print(predictor, inputs, args)


def _paths(stdin: Iterable[bytes]) -> Iterator[str]:
    """The lines of `stdin`; InputError if it holds an image, or lines that end in NUL as from `find -print0`."""
    for line in stdin:
        if b"\0" in line or line.startswith((b"\x89PNG", b"\xff\xd8\xff")):
            raise InputError("-: stdin holds other bytes than paths of images: wanted one path a line")
        yield os.fsdecode(line)


def _print(predictor: "Predictor", inputs: "Inputs", args: argparse.Namespace) -> int:
    from jaxnet.inference.answers import as_json, as_text, image_files

    count = damaged = 0
    lines = _paths(sys.stdin.buffer) if "-" in args.images else ()  # file names are bytes
    for prediction in predictor.files(image_files(args.images, lines)):
        count += 1
        damaged += prediction.probabilities is None
        if args.json:
            print(as_json(prediction, inputs, args.top_k), flush=True)
        elif prediction.probabilities is None:
            print(f"error: {as_text(prediction, inputs, args.top_k)}", file=sys.stderr, flush=True)
        else:
            print(as_text(prediction, inputs, args.top_k), flush=True)
    if not count:
        raise InputError(f"there is no JPEG or PNG file in {', '.join(args.images)}")
    return _DAMAGED_STATUS if damaged else 0


# ---- Export --------------------------------------------------------------------------------------------


_EXPORT_DESCRIPTION = """\
Write a trained network as a StableHLO program: uint8 images in, probabilities out, normalization included; of other
data, arrays by name in, and what the task says of them out. JAX alone runs it, with
jax.export.deserialize(bytearray(pathlib.Path(FILE).read_bytes())).call(images). `jaxnet predict FILE` runs it too, and
needs FILE.json beside it. The program is for the platforms named; it was tested on the CPU only.
If FILE ends in .safetensors, write the weights alone, as PyTorch has them, by torchvision's names."""

_EXPORT_EXAMPLES = """\
examples:
  jaxnet export runs/digits --out digits.stablehlo
  jaxnet export runs/digits --best --out digits.stablehlo --batch 64 --platforms cpu
  jaxnet export vgg16.safetensors --out vgg16.stablehlo --weights separate --dtype bfloat16
  jaxnet export runs/photos --best --out for_pytorch.safetensors
"""


def add_export(commands: Commands) -> None:
    """Add `export` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "export", help="write a trained network as StableHLO", description=_EXPORT_DESCRIPTION, epilog=_EXPORT_EXAMPLES
    )
    parser.add_argument("trained", type=given_path, metavar="TRAINED", help="a workdir, a checkpoint or a file")
    parser.add_argument("--out", type=given_path, required=True, metavar="FILE", help="what to write")
    add_choice(parser)
    parser.add_argument("--batch", type=batch_size, metavar="N", help="take batches of N images; default: of any size")
    parser.add_argument(
        "--weights",
        choices=("inside", "separate"),
        help="inside: constants of the program; separate: in FILE.weights.safetensors, its first argument when called; "
        "default inside",
    )
    parser.add_argument("--platforms", type=_platforms, metavar="NAMES", help="platforms; default cpu,cuda,tpu")
    parser.set_defaults(run=run_export)


def run_export(args: argparse.Namespace) -> int:
    """Load, export, and print the names of the files written."""
    from jaxnet.inference.export import PLATFORMS, export, export_weights
    from jaxnet.inference.loading import load_network

    show_warnings()
    choice = {name: getattr(args, name) for name in ("step", "best", "model", "config", "dtype", "member")}
    alone = args.out.suffix == ".safetensors"
    if alone and (given := [name for name in ("batch", "weights", "platforms") if getattr(args, name)]):
        raise InputError(f"--{given[0]} is for a program, and {args.out} gets weights alone: leave one of them out")
    network = load_network(args.trained, **choice)
    if alone:
        print(f"{args.out}  {export_weights(network, args.out)} tensors, {args.out.stat().st_size:,} bytes")
        return 0
    separate, platforms = args.weights == "separate", args.platforms or PLATFORMS
    for path in export(network, args.out, batch=args.batch, platforms=platforms, separate_weights=separate):
        print(f"{path}  {path.stat().st_size:,} bytes")
    return 0


def _platforms(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if wrong := [name for name in names if name not in ("cpu", "cuda", "tpu")]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} must be cpu, cuda or tpu, or several, as in cpu,cuda")
    return names
