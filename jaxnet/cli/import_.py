"""`jaxnet import`: weights that PyTorch trained, as variables of the same network here."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from jaxnet.cli.parser import Parser, given_path, positive
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from jaxnet.models.zoo import Entry
    from jaxnet.weights import Report
    from jaxnet.weights.pixels import Numbers

    Commands = argparse._SubParsersAction[Parser]

_DESCRIPTION = """\
Convert the weights of a network of torchvision or timm to variables of the same network in jaxnet.models.ZOO. FILE is
a state dict that torch.save wrote, or a safetensors file; PyTorch is not needed, and nothing in the file is executed.
What has no counterpart is listed by name; then nothing is written, unless told. Train from the result with
initial_weights=FILE in the config."""

_EXAMPLES = """\
examples:
  jaxnet import --from torchvision resnet18-f37072fd.pth --model resnet18 --out resnet18.safetensors
  jaxnet import --from timm model.safetensors --model vit_tiny --mean 0.5 --std 0.5 --out vit_tiny.safetensors
  jaxnet import --from torchvision resnet18-f37072fd.pth --model resnet18 --new-head --out backbone.safetensors
"""

# timm has weights of these under two recipes, whose images differ and whose names and shapes do not.
_TWOFOLD = ("vit_tiny", "vit_small")


def add_parser(commands: "Commands") -> None:
    """Add `import` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "import", help="convert weights that PyTorch trained", description=_DESCRIPTION, epilog=_EXAMPLES
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
    parser.add_argument("--num-classes", type=positive, metavar="N", help="of the file; default: the network's own")
    parser.add_argument(
        "--mean",
        metavar="M",
        help="of the pixels, scaled to 0 .. 1, that the weights want: one number, or one a channel as in "
        "0.485,0.456,0.406; kept in the file for predict and export; default: the network's usual",
    )
    parser.add_argument("--std", metavar="S", help="their standard deviation, likewise; goes with --mean")
    parser.add_argument(
        "--new-head", action="store_true", help="leave out the classifier, which training then starts afresh"
    )
    parser.add_argument(
        "--allow-unmatched", action="store_true", help="leave out whatever has no counterpart, on either side"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, convert, report, write."""
    import jax

    jax.config.update("jax_platforms", "cpu")  # shapes need no accelerator

    from jaxnet.weights import About, convert, file_digest, read_tensors, target_of, write_variables

    entry = _entry(args.model)
    _require_place(args.file, args.out)
    pixels = _pixels(args, entry.image[-1])
    classes = args.num_classes or entry.classes
    tensors = read_tensors(args.file, args.source)
    target = target_of(lambda classes: entry.build(num_classes=classes), classes, entry.image)
    variables, report = convert(tensors, target, new_head=args.new_head)
    print(f"{args.model} from {args.file}")
    print("\n".join(report.lines()))
    if not variables or (report.unmatched and not args.allow_unmatched):
        raise InputError(_refusal(args.file, args.model, report))
    left_out = [name for name in target.shapes if name not in variables]
    about = About(args.model, classes, args.source, args.file.name, file_digest(args.file), left_out, *pixels)
    write_variables(args.out, variables, about)
    print(f"wrote {args.out}: {sum(array.size for array in variables.values()):,} numbers")
    if note := _note(args):
        print(f"note: {note}")
    return 0


def _pixels(args: argparse.Namespace, channels: int) -> "tuple[Numbers, Numbers] | tuple[None, None]":
    """What --mean and --std say, or nothing."""
    from jaxnet.training.settings.typed_value import parse_value
    from jaxnet.weights import checked_pixels

    if args.mean is None and args.std is None:
        return None, None
    if args.mean is None or args.std is None:
        raise InputError(f"--{'mean' if args.mean is None else 'std'} is missing: wanted --mean and --std, or neither")
    mean = parse_value(args.mean, tuple[float, ...], "--mean")
    std = parse_value(args.std, tuple[float, ...], "--std")
    return checked_pixels(mean, std, channels, "--mean and --std")


def _note(args: argparse.Namespace) -> str | None:
    """What there is to know of the images that the weights want."""
    from jaxnet.weights import HALVES

    if args.mean is not None:
        return (
            f"predict and export take this mean and std from {args.out}; training takes those of its config: "
            f"pixels.mean={args.mean} pixels.std={args.std}"
        )
    if args.model in HALVES and args.source != "safetensors":
        return f"published weights of {args.model} take images with pixels.mean=0.5 and pixels.std=0.5"
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


def _refusal(file: Path, model: str, report: "Report") -> str:
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
