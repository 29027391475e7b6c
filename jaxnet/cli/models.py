"""`jaxnet models` lists networks and their layers; `jaxnet import` converts weights that PyTorch trained."""

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxnet.command_line import Commands, given_path, positive
from jaxnet.errors import InputError, printable

if TYPE_CHECKING:
    from jaxnet.models import Entry
    from jaxnet.weights import ConversionReport
    from jaxnet.weights.convert import Numbers


_MODELS_DESCRIPTION = """\
List the networks of jaxnet.models.ZOO: number of parameters, bytes of a gradient in float32, and floating-point
operations of one example's forward pass. (A multiplication and its addition count as two, and only convolutions and
matrix products count.) With NAME, count them anew, beside the number of parameters that the source states, and list the
shapes of that network's parameters in the order of their use. Only shapes are computed."""

_MODELS_EXAMPLES = """\
examples:
  jaxnet models
  jaxnet models --json
  jaxnet models vgg16
  jaxnet models alexnet --json
"""


def add_models(commands: Commands) -> None:
    """Add `models` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "models",
        help="list the networks, or the layers of one",
        description=_MODELS_DESCRIPTION,
        epilog=_MODELS_EXAMPLES,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="show the layers of this network")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_models)


def run_models(args: argparse.Namespace) -> int:
    """Print all networks, or one with its layers."""
    import jax

    jax.config.update("jax_platforms", "cpu")  # shapes need no accelerator

    from jaxnet.models.zoo import ZOO, nearest

    if args.name is None:
        _show_all(ZOO, as_json=args.json)
        return 0
    if args.name not in ZOO:
        raise InputError(f"there is no network {args.name!r}; {nearest(args.name)}")
    entry = ZOO[args.name]
    row = {**_row(args.name, entry), **_counted(entry)}
    layers = _layers(entry)
    print(json.dumps({**row, "layers": layers}, indent=2) if args.json else "\n".join(_layer_lines(row, layers)))
    return 0


def _show_all(zoo: "dict[str, Entry]", *, as_json: bool) -> None:
    rows = (_row(name, entry) for name, entry in zoo.items())
    if as_json:
        print(json.dumps(list(rows), indent=2))
        return
    print("\n".join(_table(rows)))


def _row(name: str, entry: "Entry") -> dict[str, Any]:
    return {
        "name": name,
        "image": list(entry.image),
        "classes": entry.classes,
        "parameters": entry.parameters,
        "source_parameters": entry.parameters,
        "gradient_bytes": 4 * entry.parameters,
        "flops": entry.flops,
        "source": entry.source,
    }


def _counted(entry: "Entry") -> dict[str, int]:
    """What a row says of the network itself, which takes up to a second to trace."""
    import jax

    from jaxnet.models.zoo import count_flops

    function, shapes = entry.forward()
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes[0]))
    return {"parameters": count, "gradient_bytes": 4 * count, "flops": count_flops(function, *shapes)}


def _layers(entry: "Entry") -> list[dict[str, Any]]:
    """Each array of parameters, in order of use."""
    return [
        {"path": path, "shape": list(leaf.shape), "parameters": math.prod(leaf.shape)}
        for path, leaf in entry.parameter_shapes().items()
    ]


def _table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    heads = f"{'parameters':>13} {'of source':>13} {'gradient bytes':>14} {'forward FLOPs':>15}"
    yield f"{'network':<14} {'image':<11} {heads}  source"
    for row in rows:
        numbers = f"{row['parameters']:>13,} {row['source_parameters']:>13,} {row['gradient_bytes']:>14,}"
        image = _by(row["image"])
        yield f"{row['name']:<14} {image:<11} {numbers} {row['flops']:>15,}  {row['source']}"


def _layer_lines(row: dict[str, Any], layers: list[dict[str, Any]]) -> Iterator[str]:
    yield from _table([row])
    yield ""
    width = max(len(layer["path"]) for layer in layers)
    yield f"{'layer':<{width}}  {'shape':<18} {'parameters':>13}"
    for layer in layers:
        yield f"{layer['path']:<{width}}  {_by(layer['shape']):<18} {layer['parameters']:>13,}"


def _by(shape: list[int]) -> str:
    return "x".join(map(str, shape))


# ---- Import --------------------------------------------------------------------------------------------


_IMPORT_DESCRIPTION = """\
Convert weights of torchvision or timm to variables of the same network in jaxnet.models.ZOO. FILE is a state dict that
torch.save wrote, or a safetensors file. PyTorch is not needed, and nothing in the file is executed. Tensors without a
counterpart are listed by name, and nothing is written unless --allow-unmatched is given. To train from the result, set
initial_weights=FILE in the config."""

_IMPORT_EXAMPLES = """\
examples:
  jaxnet import --from torchvision resnet18-f37072fd.pth --model resnet18 --out resnet18.safetensors
  jaxnet import --from timm model.safetensors --model vit_tiny --mean 0.5 --std 0.5 --out vit_tiny.safetensors
  jaxnet import --from torchvision resnet18-f37072fd.pth --model resnet18 --new-head --out backbone.safetensors
"""

# timm has weights of these from two recipes, with the same names and shapes but differently normalized images.
_TWOFOLD = ("vit_tiny", "vit_small")


def add_import(commands: Commands) -> None:
    """Add `import` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "import", help="convert weights that PyTorch trained", description=_IMPORT_DESCRIPTION, epilog=_IMPORT_EXAMPLES
    )
    parser.add_argument("file", type=given_path, metavar="FILE", help="a state dict: .pth, .pt or .safetensors")
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        choices=("torchvision", "timm", "safetensors"),
        help="whose names the file has; safetensors: a file in that format with torchvision's names",
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="a network that `jaxnet models` lists")
    parser.add_argument("--out", required=True, type=given_path, metavar="FILE", help="a safetensors file to write")
    parser.add_argument(
        "--num-classes", type=positive, metavar="N", help="number of classes in FILE; default: the network's own"
    )
    parser.add_argument(
        "--mean",
        metavar="M",
        help="mean of the pixels, scaled to 0 .. 1, that the weights expect: one number, or one for each channel as in "
        "0.485,0.456,0.406; kept in the file for predict and export; default: the network's usual",
    )
    parser.add_argument(
        "--std", metavar="S", help="standard deviation of the pixels, in the same form; goes with --mean"
    )
    parser.add_argument(
        "--new-head", action="store_true", help="leave out the classifier, which training then initializes anew"
    )
    parser.add_argument(
        "--allow-unmatched", action="store_true", help="leave out what has no counterpart, on either side"
    )
    parser.set_defaults(run=run_import)


def run_import(args: argparse.Namespace) -> int:
    """Read, convert, report, write."""
    import jax

    jax.config.update("jax_platforms", "cpu")  # shapes need no accelerator

    from jaxnet.weights import WeightsMetadata, convert, file_digest, read_tensors, target_of, write_variables

    entry = _entry(args.model)
    _require_place(args.file, args.out)
    pixels = _pixels(args, entry.image[-1])
    classes = args.num_classes or entry.classes
    tensors = read_tensors(args.file, args.source)
    target = target_of(lambda classes: entry.build(num_classes=classes), classes, entry.image)
    variables, report = convert(tensors, target, new_head=args.new_head)
    print(printable(f"{args.model} from {args.file}"))
    print(printable("\n".join(report.lines()), keep="\n"))
    if not variables or (report.unmatched and not args.allow_unmatched):
        raise InputError(_refusal(args.file, args.model, report))
    left_out = [name for name in target.shapes if name not in variables]
    about = WeightsMetadata(args.model, classes, args.source, args.file.name, file_digest(args.file), left_out, *pixels)
    write_variables(args.out, variables, about)
    print(f"wrote {printable(args.out)}: {sum(array.size for array in variables.values()):,} numbers")
    if note := _note(args):
        print(f"note: {note}")
    return 0


def _pixels(args: argparse.Namespace, channels: int) -> "tuple[Numbers, Numbers] | tuple[None, None]":
    """The values of --mean and --std, or nothing."""
    from jaxnet.config.keys import parse_value
    from jaxnet.weights import checked_pixels

    if args.mean is None and args.std is None:
        return None, None
    if args.mean is None or args.std is None:
        raise InputError(f"--{'mean' if args.mean is None else 'std'} is missing: wanted --mean and --std, or neither")
    mean = parse_value(args.mean, tuple[float, ...], "--mean")
    std = parse_value(args.std, tuple[float, ...], "--std")
    return checked_pixels(mean, std, channels, "--mean and --std")


def _note(args: argparse.Namespace) -> str | None:
    """A hint about the images that the weights expect, if there is one."""
    from jaxnet.weights import HALVES

    if args.mean is not None:
        return (
            f"predict and export take this mean and std from {args.out}; training takes those of its config: "
            f"task.pixels.mean={args.mean} task.pixels.std={args.std}"
        )
    if args.model in HALVES and args.source != "safetensors":
        return f"published weights of {args.model} take images with task.pixels.mean=0.5 and task.pixels.std=0.5"
    if args.model in _TWOFOLD:
        return (
            "predict and export will normalize images by ImageNet's mean and std, as weights of DeiT want; for timm's "
            f"{args.model}_*.augreg_* import them with --mean 0.5 --std 0.5"
        )
    return None


def _entry(name: str) -> "Entry":
    from jaxnet.models.zoo import ZOO, nearest

    if name not in ZOO:
        raise InputError(f"--model {name}: there is no such network; {nearest(name)}")
    return ZOO[name]


def _require_place(file: Path, out: Path) -> None:
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no directory {out.parent}")
    if out.exists() and (out.is_dir() or (file.exists() and out.samefile(file))):
        raise InputError(f"--out {out} is {'a directory' if out.is_dir() else 'the file to read'}; give another name")
    if out.suffix != ".safetensors":  # by which `predict` knows it
        raise InputError(f"--out {out}: wanted a file name that ends in .safetensors")


def _refusal(file: Path, model: str, report: "ConversionReport") -> str:
    if not report.converted:
        return f"no tensor of {file} belongs to {model}: is it a file of that network? Nothing was written"
    hints = []
    if report.other_classes:
        tensor, got, _ = report.other_classes[0]
        hints.append(f"{tensor} has {got[0]} classes: give --num-classes {got[0]} to keep it, or --new-head")
    hints.append("--allow-unmatched leaves out what has no counterpart")
    return (
        f"{report.unmatched} names of {file} and {model} do not match (listed above); nothing was written. "
        + "; ".join(hints)
    )
