"""`jaxnet bench` times collectives, whole training steps, and the inference of a network."""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jaxnet.command_line import (
    Commands,
    Parser,
    batch_size,
    end_progress,
    given_path,
    image_side,
    mesh_sizes,
    positive,
    show_progress,
)
from jaxnet.cost.shapes import byte_size
from jaxnet.errors import InputError, exit_cleanly
from jaxnet.limits import memory_bytes

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxnet.command_line import Parser
    from jaxnet.config.run import Config
    from jaxnet.cost.workloads import Workload


# ---- Inference -----------------------------------------------------------------------------------------


_BENCH_INFERENCE_DESCRIPTION = """\
Time a network of the zoo (`jaxnet models`) with random weights on the first device, from uint8 images to
probabilities. Batches of all sizes are compiled and warmed up first, then timed in turn."""

_BENCH_INFERENCE_EXAMPLES = """\
examples:
  jaxnet bench inference --model alexnet --batch 1,2,4,8,16,32,64,128,256
  jaxnet bench inference --model resnet18 --width 0.25 --image 64 --dtype bfloat16 --json
  jaxnet bench inference --model googlenet --batch 1,8,64 --png googlenet.png
"""


def add_inference(kinds: Commands) -> None:
    """Add `inference` to the kinds of `jaxnet bench`."""
    parser = kinds.add_parser(
        "inference",
        help="time the inference of a network",
        description=_BENCH_INFERENCE_DESCRIPTION,
        epilog=_BENCH_INFERENCE_EXAMPLES,
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="a network that `jaxnet models` lists")
    parser.add_argument(
        "--batch", type=_batches, default="1,8,64", metavar="N,N,...", help="sizes of batches; default 1,8,64"
    )
    parser.add_argument("--dtype", default="float32", metavar="DTYPE", help="float32, bfloat16 or float16")
    parser.add_argument(
        "--width",
        type=_width,
        default=1.0,
        metavar="FACTOR",
        help="factor on the width of all hidden layers; default 1",
    )
    parser.add_argument("--image", type=image_side, metavar="N", help="NxN images; default: the network's own")
    parser.add_argument(
        "--iterations", type=positive, default=50, metavar="N", help="timed calls for each size; default 50"
    )
    parser.add_pictures("also draw it; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_bench_inference)


def run_bench_inference(args: argparse.Namespace) -> int:
    """Measure, print and draw."""
    from jaxnet.figures import write_figure
    from jaxnet.inference.bench import bench_inference, bench_text, draw_inference

    options = {name: getattr(args, name) for name in ("dtype", "width", "image", "iterations")}
    report = bench_inference(args.model, args.batch, **options)
    print(json.dumps(report.as_json(), indent=2) if args.json else bench_text(report), flush=True)
    if args.pictures:
        write_figure(draw_inference(report), args.pictures)
    return 0


def _batches(text: str) -> tuple[int, ...]:
    return tuple(sorted({batch_size(part) for part in text.split(",")}))


def _width(text: str) -> float:
    try:
        width = float(text)
    except ValueError:
        width = 0.0
    if not 0 < width <= 16:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0, up to 16")
    return width


Choice = TypeVar("Choice")

_BENCH_DESCRIPTION = """\
Measure communication, on the devices of one process (emulated on the CPU with --mesh) or of all processes of a job, of
which process 0 prints. Or measure inference on one device."""

_COLLECTIVES = """\
Time collectives and algorithms over each mesh axis, with the columns and sizes of nccl-tests: a size is what
all-reduce sums, what reduce-scatter takes in, and what all-gather gives out. The first result of each is checked, and
the exit status is 1 if any is wrong."""

_STEP = """\
Time whole training steps, their computation alone and their communication alone, in interleaved rounds, beside the
shortest time that the strategy's schedule allows."""

_BENCH_EXAMPLES = """\
examples:
  jaxnet bench collectives --mesh 2x4 --bytes 1KiB,1MiB
  jaxnet bench collectives --mesh 2x4 --algorithm all_reduce --algorithm scattered --axis host --png rates.png
  jaxnet bench step --config configs/digits.py --strategy xla --strategy hierarchical
  jaxnet bench step --mesh 2x4 --strategy xla --strategy ddp:4MiB --strategy hierarchical
  jaxnet launch local --processes 2 -- jaxnet bench step --strategy flat --strategy ddp --model vgg
  jaxnet bench inference --model alexnet --batch 1,2,4,8,16,32,64,128,256
"""


def add_bench(commands: Commands) -> None:
    """Add `bench` to the commands of `jaxnet`."""
    bench = commands.add_parser(
        "bench", help="measure communication and inference", description=_BENCH_DESCRIPTION, epilog=_BENCH_EXAMPLES
    )
    kinds = bench.add_commands("KIND")
    _add_collectives(kinds)
    _add_step(kinds)
    add_inference(kinds)


def _add_collectives(kinds: Commands) -> None:
    parser = _subcommand(kinds, "collectives", "time single collectives", _COLLECTIVES, run_collectives)
    parser.add_argument(
        "--bytes",
        type=_sizes,
        default="1KiB,64KiB,1MiB,4MiB,32MiB",
        metavar="SIZES",
        help="bytes of a message; default 1KiB,64KiB,1MiB,4MiB,32MiB",
    )
    parser.add_argument(
        "--axis", action="append", metavar="AXIS", help="host, device or host+device; may be repeated; default: all"
    )
    parser.add_argument(
        "--algorithm", action="append", metavar="NAME", help="an algorithm or collective; may be repeated; default: all"
    )
    parser.add_argument(
        "--iterations", type=positive, default=20, metavar="N", help="timed calls for each size; default 20"
    )


def _add_step(kinds: Commands) -> None:
    parser = _subcommand(kinds, "step", "time training steps", _STEP, run_step)
    parser.add_argument(
        "--strategy",
        action="append",
        required=True,
        metavar="NAME[:BYTES][+pieces]",
        help="a strategy that `jaxnet strategies` lists, or auto; BYTES: its bucket size; +pieces: run the step as "
        "several programs, launched from two threads, one device a process; may be repeated, and ratios are to the "
        "first",
    )
    add_workload(parser)
    parser.add_argument("--rounds", type=positive, default=7, metavar="N", help="rounds; default 7")
    parser.add_argument(
        "--steps-per-round", type=positive, default=5, metavar="N", help="steps in each round; default 5"
    )
    parser.add_argument(
        "--bucket-bytes", type=_size, metavar="BYTES", help="bucket size of every strategy that has one"
    )
    parser.add_argument(
        "--trace", type=given_path, metavar="DIR", help="also trace a few steps of each, for `jaxnet timeline`"
    )
    parser.add_overrides()


def add_workload(parser: Parser) -> None:
    """Add the options that say what is timed."""
    parser.add_config(
        "time the model and data of a Python file with get_config(), which is run, as the trainer trains it"
    )
    parser.add_argument(
        "--model", metavar="NAME", help="or a built-in workload: dense (the default), vgg, resnet50, odd or small"
    )
    parser.add_argument(
        "--batch", type=batch_size, metavar="N", help="examples on each host; default: the workload's own"
    )


def _subcommand(
    kinds: Commands, name: str, summary: str, description: str, run: Callable[[argparse.Namespace], int]
) -> Parser:
    parser = kinds.add_parser(name, help=summary, description=description, epilog=_BENCH_EXAMPLES)
    parser.add_pictures("also draw it; needs matplotlib")
    run_in_job(parser, run)
    return parser


def run_in_job(parser: Parser, run: Callable[[argparse.Namespace], int]) -> None:
    """Let a command be run by all processes of a job, or on emulated devices of one."""
    parser.add_argument(
        "--mesh",
        type=mesh_sizes,
        metavar="HxD",
        help="hosts x devices; one process emulates them on CPUs, others must have that many; with --config 2x4",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=lambda args: _then_leave(run, args))


def _then_leave(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    from jaxnet.cluster.start import leave

    exit_cleanly(lambda: run(args), leave, verbose=getattr(args, "verbose", False))


def run_collectives(args: argparse.Namespace) -> int:
    """Run `jaxnet bench collectives`."""
    from jaxnet.cost.collectives import TRANSFERS, communicating_axes, measure_collectives
    from jaxnet.cost.tables import collectives_text, draw_collectives
    from jaxnet.figures import write_figure

    names = args.algorithm or list(TRANSFERS)
    transfers = [_choose("--algorithm", name, TRANSFERS) for name in names]
    mesh = start_mesh(args, "bench collectives")
    axes = {"+".join(over): over for over in communicating_axes(mesh)}
    chosen = [_choose("--axis", name, axes) for name in args.axis or axes]
    if (needed := max(args.bytes) * len(mesh.local_devices)) > memory_bytes():
        raise InputError(
            f"--bytes {max(args.bytes)}: messages of {len(mesh.local_devices)} devices take {needed / 1e9:,.0f} GB, "
            f"and this machine has {memory_bytes() / 1e9:,.0f}; give a smaller one"
        )
    rows, peaks = measure_collectives(mesh, args.bytes, chosen, transfers, args.iterations)
    if args.json:
        found = {"mesh": dict(mesh.shape), "peaks": peaks, "rows": [vars(row) for row in rows]}
        print_once(json.dumps(found, indent=2))
    else:
        print_once(collectives_text(rows, peaks, mesh.shape))
    if args.pictures and is_first():
        write_figure(draw_collectives(rows, peaks, mesh.shape), args.pictures)
    return int(any(row.wrong for row in rows))


def run_step(args: argparse.Namespace) -> int:
    """Run `jaxnet bench step`."""
    from jaxnet.comm import platform_of
    from jaxnet.cost.step_bench import bench_steps, check_trace, labelled_strategy
    from jaxnet.cost.tables import draw_steps, step_text
    from jaxnet.figures import write_figure

    if args.trace:
        check_trace(args.trace)
    for label in args.strategy:  # before anything is started
        labelled_strategy(label, args.bucket_bytes)
    check_workload(args)
    mesh = start_mesh(args, "bench step")
    config, platform = asked_config(args), platform_of(mesh)
    bucket_bytes = args.bucket_bytes or (config.bucket_bytes if config else None)
    workload = asked_workload(args, config, mesh)
    labels = [_chosen(label, workload, bucket_bytes) for label in args.strategy]
    strategies = {label: labelled_strategy(label, bucket_bytes, platform) for label in labels}
    report = bench_steps(workload, strategies, args.rounds, args.steps_per_round, args.trace)
    print_once(json.dumps(report.as_json(), indent=2) if args.json else step_text(report))
    if args.pictures and is_first():
        write_figure(draw_steps(report), args.pictures)
    return 0


def _chosen(label: str, workload: "Workload", bucket_bytes: int | None) -> str:
    """The label, or in place of `auto` that of what training by it takes for a workload, with buckets of that size."""
    from jaxnet.comm import AUTO
    from jaxnet.cost.choice import with_buckets
    from jaxnet.cost.step_bench import in_pieces, name_and_size
    from jaxnet.cost.tuning import default_of

    name, size = name_and_size(label)
    if name != AUTO:
        return label
    default = default_of(workload)
    name, own = name_and_size(default)
    size = size or (str(bucket_bytes) if bucket_bytes else "")
    if size:
        name, own = with_buckets(name), size
    made = f"{name}:{own}" if own else name
    return made + "+pieces" * (in_pieces(label) or in_pieces(default))


def check_workload(args: argparse.Namespace) -> None:
    """Refuse, before anything is started, what cannot be timed."""
    from jaxnet.cost.shapes import SIZES

    if args.config is None:
        if args.overrides:
            raise InputError(f"{args.overrides[0]}: give --config FILE too; a built-in workload has no keys")
        _choose("--model", args.model or "dense", SIZES)
    elif args.model or args.batch:
        raise InputError("--config has a model and a batch of its own: leave --model out, and set batch_size=N")


def asked_config(args: argparse.Namespace) -> "Config | None":
    """The config; None for a built-in workload. It is loaded when devices are there, for its file may use them."""
    if args.config is None:
        return None
    from jaxnet.config.file import load_config

    return load_config(args.config, *args.overrides)


def asked_workload(args: argparse.Namespace, config: "Config | None", mesh: "Mesh") -> "Workload":
    """That of the config, or the built-in workload."""
    from jaxnet.cost.workloads import named_workload

    if config is None:
        return named_workload(args.model or "dense", mesh, args.batch)

    from jaxnet.comm import HOST
    from jaxnet.training.prepare import workload_of

    hosts = mesh.shape[HOST]
    if config.hosts not in (None, hosts):
        raise InputError(f"hosts={config.hosts}: the mesh has {hosts}; leave hosts out, and give --mesh HxD")
    return workload_of(Path(args.config).stem, config, mesh)


def start_mesh(args: argparse.Namespace, command: str) -> "Mesh":
    """Join the job, if there is one, and make the mesh of `jaxnet COMMAND`."""
    import jax

    from jaxnet.cluster.devices import local_device_count
    from jaxnet.cluster.start import start
    from jaxnet.comm import make_mesh, mesh_size

    show_progress()

    emulated = args.mesh or ((2, 4) if getattr(args, "config", None) else None)
    alone = start().process_count == 1
    if alone and emulated:
        # It counts where there is nothing but a CPU; accelerators are what is to be measured.
        jax.config.update("jax_num_cpu_devices", math.prod(emulated))
    local_device_count()  # says in one line why there are none
    if alone and emulated and jax.default_backend() == "cpu":
        args.mesh = emulated
    platform = jax.devices()[0].platform
    if args.mesh and args.mesh[0] * args.mesh[1] != jax.device_count():
        cure = "" if platform == "cpu" else "; to emulate others on the CPU set JAX_PLATFORMS=cpu"
        raise InputError(
            f"--mesh {args.mesh[0]}x{args.mesh[1]}: the job has {jax.device_count()} devices ({platform}){cure}"
        )
    mesh = make_mesh(args.mesh[0] if args.mesh else None)
    if mesh_size(mesh) == 1:
        raise InputError(
            "there is one device, so nothing travels: emulate some with --mesh 2x4, or start several processes, as in "
            f"jaxnet launch local --processes 2 -- jaxnet {command} ..."
        )
    return mesh


def _choose(option: str, name: str, there: Mapping[str, Choice]) -> Choice:
    if name not in there:
        raise InputError(f"{option} {name}: there is {', '.join(there)}")
    return there[name]


def is_first() -> bool:
    """Whether this is the process that prints and draws."""
    import jax

    return jax.process_index() == 0


def print_once(text: str) -> None:
    """Print, on process 0 alone."""
    if is_first():
        end_progress()
        print(text, flush=True)


def _size(text: str) -> int:
    try:
        return byte_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _sizes(text: str) -> list[int]:
    return [_size(part) for part in text.split(",")]
