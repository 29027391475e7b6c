"""`jaxnet plan` shows what a training step will send."""

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxnet.command_line import (
    Commands,
    Parser,
    emulate_devices,
    end_progress,
    mesh_sizes,
    say_progress,
)
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxnet.config.run import Config
    from jaxnet.cost.accelerators import Cluster
    from jaxnet.data import Source
    from jaxnet.training.experiment import Experiment


_DESCRIPTION = """\
Plan and compile a training step on a mesh of emulated CPU devices, without training. Show the buckets, the bytes that
each device sends over each axis, and the collectives of the compiled program beside the planned ones."""

_EXAMPLES = """\
examples:
  jaxnet plan --config configs/fashion_mnist.py strategy=hierarchical
  jaxnet plan --config configs/digits.py --mesh 4x2 strategy=ddp bucket_bytes=65536
  jaxnet plan --config configs/digits.py --json
  jaxnet plan --config configs/digits.py --svg plan.svg strategy=hierarchical bucket_bytes=65536
  jaxnet plan --config configs/imagenet_resnet50.py --on h100:2x8 --png step.png batch_size=2048
"""
_TOO_LARGE = "it does not fit: compiling it with more microbatches"


def add_plan(commands: Commands) -> None:
    """Add `plan` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "plan", help="show what a training step will send", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    parser.add_config("a Python file with get_config(); FILE is run", required=True)
    parser.add_argument(
        "--mesh",
        type=mesh_sizes,
        metavar="HxD",
        help="hosts x devices, in place of the config's; default 2x4, or eight devices of `hosts` hosts",
    )
    add_on(parser)
    parser.add_pictures("also draw what is sent; with --on: the modelled step")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_overrides()
    parser.set_defaults(run=run_plan)


def run_plan(args: argparse.Namespace) -> int:
    """Plan, compile and compare."""
    if args.on is not None:
        return _run_on(args)
    hosts, devices = args.mesh or (2, 4)
    emulate_devices(hosts, devices)

    from jaxnet.config.file import load_config
    from jaxnet.figures import write_figure

    say_progress("preparing the run")
    config = load_config(args.config, *args.overrides)
    plan = prepared(config, emulated_mesh(args, config)).plan
    say_progress("compiling the step for {host} x {device} CPU devices".format(**plan.form.mesh.shape))
    plan = plan.verified()
    if args.pictures:
        write_figure(plan.draw(), args.pictures)
    end_progress()
    print(json.dumps(plan.as_json(), indent=2) if args.json else plan)
    return 0


def emulated_mesh(args: argparse.Namespace, config: "Config") -> "Mesh":
    """The emulated devices as the mesh of `--mesh`, or else with the config's number of hosts, or two."""
    from jaxnet.comm import make_mesh
    from jaxnet.training.processes import mesh_of

    if args.mesh:
        return make_mesh(args.mesh[0])
    return mesh_of(replace(config, hosts=2 if config.hosts is None else config.hosts))


def prepared(config: "Config", mesh: "Mesh") -> "Experiment":
    """The experiment on this mesh; with the shapes of the data alone, and a warning, where the data are not here."""
    from jaxnet.training.prepare import prepare

    return prepare(config, mesh, source=source_for_plan(config))


def source_for_plan(config: "Config") -> "Source":
    """The training examples; of data that are not here the shapes alone, with a warning."""
    from jaxnet.data import open_for_plan

    source, missing = open_for_plan(config.data)
    if missing:
        print(f"warning: planned with the shapes of the data alone: {missing}", file=sys.stderr)
    return source


def cluster_of(args: argparse.Namespace) -> "Cluster":
    """The accelerators of `--on`, whose compilers this process can use from here on."""
    from jaxnet.cost.accelerators import Cluster, prepare_compilers

    if args.mesh:
        raise InputError("--mesh: --on names a mesh already; give one of the two")
    if args.on == "here":
        import jax

        return Cluster.of(jax.devices())
    cluster = Cluster.named(args.on)
    prepare_compilers()
    return cluster


def _run_on(args: argparse.Namespace) -> int:
    """Plan and compile for accelerators that are described."""
    cluster = cluster_of(args)

    from jaxnet.config.file import load_config
    from jaxnet.figures import write_figure
    from jaxnet.report import draw
    from jaxnet.training.forecast import TooLarge, fitting_text, forecast, less_memory
    from jaxnet.training.prepare import prepare

    config = load_config(args.config, *args.overrides)
    source = source_for_plan(config)
    say_progress("preparing the run")
    experiment = prepare(config, cluster.mesh(config.hosts), source=source)
    say_progress(f"compiling the step for {cluster}; for a large network that takes a minute or more")
    try:
        made = forecast(experiment, cluster)
    except TooLarge as error:  # there is no program to show
        say_progress(_TOO_LARGE)
        found = fitting_text(less_memory(config, cluster, source))
        raise InputError(f"{str(error).removesuffix('.')}; {found}") from error
    if args.pictures:
        write_figure(draw(made.picture), args.pictures)
    less = None
    if not made.memory.fits:
        say_progress(_TOO_LARGE)
        less = less_memory(config, cluster, source)
    end_progress()
    if args.json:
        fits_with = None if less is None else {"microbatches": less[0], **vars(less[1])}
        print(json.dumps({**made.as_json(), "fits_with": fits_with}, indent=2))
        return 0
    print(made)
    if not made.memory.fits:
        print(fitting_text(less))
    return 0


def add_on(parser: Parser) -> None:
    """Add `--on`, which `cluster_of` reads."""
    parser.add_argument(
        "--on",
        metavar="KIND:SIZES",
        help="compile for these accelerators, which need not be there: h100:2x8 (hosts x GPUs), v5e:4x4 (a TPU slice); "
        "here: for those of this machine",
    )
