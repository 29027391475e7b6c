"""`jaxnet models`: the networks that have a name, and the layers of one."""

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jaxnet.cli.parser import Parser
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from jaxnet.models import Entry

    Commands = argparse._SubParsersAction[Parser]

_DESCRIPTION = """\
List the networks of jaxnet.models.ZOO, as their sources have them: parameters beside those of the source, bytes of
a gradient in float32, and floating-point operations of one example's forward pass (a multiplication and its addition
are two; convolutions and matrix products alone count). With NAME, the shapes of that network's parameters, in the
order of their use. Nothing is computed but shapes."""

_EXAMPLES = """\
examples:
  jaxnet models
  jaxnet models --json
  jaxnet models vgg16
  jaxnet models alexnet --json
"""


def add_parser(commands: "Commands") -> None:
    """Add `models` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "models", help="list the networks, or the layers of one", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="show the layers of this network")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every network, or one with its layers."""
    import jax

    jax.config.update("jax_platforms", "cpu")  # shapes need no accelerator

    from jaxnet.models.zoo import ZOO, nearest

    if args.name is None:
        _show_all(ZOO, as_json=args.json)
        return 0
    if args.name not in ZOO:
        raise InputError(f"there is no network {args.name!r}; {nearest(args.name)}")
    entry = ZOO[args.name]
    row = _row(args.name, entry)
    layers = _layers(entry)
    print(json.dumps({**row, "layers": layers}, indent=2) if args.json else "\n".join(_layer_lines(row, layers)))
    return 0


def _show_all(zoo: "dict[str, Entry]", *, as_json: bool) -> None:
    rows = (_row(name, entry) for name, entry in zoo.items())
    if as_json:
        print(json.dumps(list(rows), indent=2))
        return
    for line in _table(rows):
        print(line, flush=True)  # a large network takes most of a second


def _row(name: str, entry: "Entry") -> dict[str, Any]:
    import jax

    from jaxnet.models import abstract_variables, from_linen
    from jaxnet.models.flops import count_flops

    model = from_linen(entry.build(num_classes=entry.classes))
    images = jax.ShapeDtypeStruct((1, *entry.image), "float32")
    params, stats = abstract_variables(model, entry.image)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    return {
        "name": name,
        "image": list(entry.image),
        "classes": entry.classes,
        "parameters": count,
        "source_parameters": entry.parameters,
        "gradient_bytes": 4 * count,
        "flops": count_flops(lambda *given: model.apply(*given, train=False, keys=None), params, stats, images),
        "source": entry.source,
    }


def _layers(entry: "Entry") -> list[dict[str, Any]]:
    """Each array of parameters, in the order of use."""
    import jax
    from flax.traverse_util import flatten_dict

    from jaxnet.models import from_linen

    model = from_linen(entry.build(num_classes=entry.classes))
    paths: list[str] = []

    def init(key: jax.Array, images: jax.Array) -> list[jax.Array]:
        flat = flatten_dict(model.init(key, images).params, sep="/")
        paths.extend(flat)  # here, since a dict leaves a traced function sorted by name
        return list(flat.values())

    shapes = jax.eval_shape(init, jax.random.key(0), jax.ShapeDtypeStruct((1, *entry.image), "float32"))
    return [
        {"path": path, "shape": list(leaf.shape), "parameters": math.prod(leaf.shape)}
        for path, leaf in zip(paths, shapes, strict=True)
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
