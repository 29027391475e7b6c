"""`jaxnet plan`: what a training step will send, and what the compiler makes of it, before anything is trained."""

import argparse
import json
from typing import TYPE_CHECKING

from jaxnet.cli.parser import Parser, mesh_sizes

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]

_DESCRIPTION = """\
Plan the communication of a training step on a mesh of emulated CPU devices: the buckets, the bytes that each
device sends over each axis, and the collectives of the compiled program beside those planned."""

_EXAMPLES = """\
examples:
  jaxnet plan --config configs/fashion_mnist.py strategy=hierarchical
  jaxnet plan --config configs/digits.py --mesh 4x2 strategy=ddp bucket_bytes=65536
  jaxnet plan --config configs/digits.py --json
"""


def add_parser(commands: "Commands") -> None:
    """Add `plan` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "plan", help="show what a training step will send", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="a Python file with get_config(); FILE is run")
    parser.add_argument(
        "--mesh",
        type=mesh_sizes,
        default=(2, 4),
        metavar="HxD",
        help="hosts x devices, whatever the config says; default 2x4",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_overrides()
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan, compile and compare."""
    import jax

    hosts, devices = args.mesh
    # Emulated devices have to be asked for before any device is used.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", hosts * devices)

    from jaxnet.comm import make_mesh, verify
    from jaxnet.data import open_split
    from jaxnet.training.experiment import prepare
    from jaxnet.training.plan_report import plan_json, plan_text
    from jaxnet.training.settings.file import load_config

    config = load_config(args.config, args.overrides)
    mesh = make_mesh(hosts)
    experiment = prepare(config, mesh, open_split(config.data, "train"))
    compiled = experiment.step.lower(experiment.state_shapes, experiment.batch_shapes).compile()
    check = verify(compiled.as_text() or "", experiment.planned, mesh.shape)
    if args.json:
        print(json.dumps(plan_json(experiment, mesh, check), indent=2))
    else:
        print(plan_text(experiment, mesh, check))
    return 0
