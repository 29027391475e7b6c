"""`jaxnet plan` shows what a training step will send; `jaxnet strategies` lists and compares the strategies."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxnet.command_line import (
    Commands,
    Parser,
    emulate_devices,
    end_progress,
    given_path,
    mesh_sizes,
    say_progress,
)
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxnet.comm import Strategy
    from jaxnet.config.run import Config
    from jaxnet.cost.accelerators import Cluster
    from jaxnet.data import Source
    from jaxnet.training.experiment import Experiment
    from jaxnet.training.forecast import Forecast


_PLAN_DESCRIPTION = """\
Plan and compile a training step on a mesh of emulated CPU devices, without training. Show the buckets, the bytes that
each device sends over each axis, and the collectives of the compiled program beside the planned ones."""

_PLAN_EXAMPLES = """\
examples:
  jaxnet plan --config configs/fashion_mnist.py strategy=hierarchical
  jaxnet plan --config configs/digits.py --mesh 4x2 strategy=ddp bucket_bytes=65536
  jaxnet plan --config configs/digits.py --json
  jaxnet plan --config configs/digits.py --svg plan.svg strategy=hierarchical bucket_bytes=65536
  jaxnet plan --config configs/imagenet_resnet50.py --on h100:2x8 --png step.png batch_size=2048
"""


def add_plan(commands: Commands) -> None:
    """Add `plan` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "plan", help="show what a training step will send", description=_PLAN_DESCRIPTION, epilog=_PLAN_EXAMPLES
    )
    parser.add_config("a Python file with get_config(); FILE is run", required=True)
    parser.add_argument(
        "--mesh",
        type=mesh_sizes,
        metavar="HxD",
        help="hosts x devices, in place of the config's; default 2x4, or eight devices of `hosts` hosts",
    )
    _add_on(parser)
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
    plan = _prepared(config, _emulated(args, config)).plan
    say_progress("compiling the step for {host} x {device} CPU devices".format(**plan.form.mesh.shape))
    plan = plan.verified()
    if args.pictures:
        write_figure(plan.draw(), args.pictures)
    end_progress()
    print(json.dumps(plan.as_json(), indent=2) if args.json else plan)
    return 0


def _emulated(args: argparse.Namespace, config: "Config") -> "Mesh":
    """The emulated devices as the mesh of `--mesh`, or else with the config's number of hosts, or two."""
    from jaxnet.comm import make_mesh
    from jaxnet.training.processes import mesh_of

    if args.mesh:
        return make_mesh(args.mesh[0])
    return mesh_of(replace(config, hosts=2 if config.hosts is None else config.hosts))


def _prepared(config: "Config", mesh: "Mesh") -> "Experiment":
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


def _cluster(args: argparse.Namespace) -> "Cluster":
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
    cluster = _cluster(args)

    from jaxnet.config.file import load_config
    from jaxnet.figures import write_figure
    from jaxnet.report import draw
    from jaxnet.training.forecast import forecast, less_memory
    from jaxnet.training.prepare import prepare

    config = load_config(args.config, *args.overrides)
    source = source_for_plan(config)
    say_progress("preparing the run")
    experiment = prepare(config, cluster.mesh(config.hosts), source=source)
    say_progress(f"compiling the step for {cluster}; for a large network that takes a minute or more")
    made = forecast(experiment, cluster)
    if args.pictures:
        write_figure(draw(made.picture), args.pictures)
    less = None
    if not made.memory.fits:
        say_progress("it does not fit: compiling it with more microbatches")
        less = less_memory(config, cluster, source)
    end_progress()
    if args.json:
        fits_with = None if less is None else {"microbatches": less[0], **vars(less[1])}
        print(json.dumps({**made.as_json(), "fits_with": fits_with}, indent=2))
        return 0
    print(made)
    if not made.memory.fits:
        with_less = "no number of microbatches" if less is None else f"microbatches={less[0]}: {less[1]}"
        print(f"it fits with {with_less}")
    return 0


def _add_on(parser: Parser) -> None:
    parser.add_argument(
        "--on",
        metavar="KIND:SIZES",
        help="compile for these accelerators, which need not be there: h100:2x8 (hosts x GPUs), v5e:4x4 (a TPU slice); "
        "here: for those of this machine",
    )


# ---- Strategies ----------------------------------------------------------------------------------------


_STRATEGIES_DESCRIPTION = """\
List the communication strategies and their settings: strategy=NAME:key=value. With a config, also show what each would
send in a training step of its model: the number of collectives, the bytes that the busiest device sends over each axis,
and their sum relative to one flat all-reduce. Bytes are the fewest that an operation needs. Where parameters travel
only every few steps, messages are those of one such step, and bytes are the mean over the run."""

_STRATEGIES_EXAMPLES = """\
examples:
  jaxnet strategies
  jaxnet strategies --config configs/digits.py
  jaxnet strategies --config configs/fashion_mnist.py --mesh 4x8 bucket_bytes=1000000
  jaxnet strategies --config configs/digits.py --json
  jaxnet strategies --config configs/digits.py --png bytes.png
  jaxnet strategies --drawings drawings --mesh 2x4
"""


def add_strategies(commands: Commands) -> None:
    """Add `strategies` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "strategies",
        help="list the communication strategies",
        description=_STRATEGIES_DESCRIPTION,
        epilog=_STRATEGIES_EXAMPLES,
    )
    parser.add_config("a Python file with get_config(), which is run; also show what its model would send")
    parser.add_argument(
        "--mesh",
        type=mesh_sizes,
        metavar="HxD",
        help="with --config or --drawings: hosts x devices, in place of the config's; default 2x4",
    )
    _add_on(parser)
    parser.add_argument(
        "--drawings", type=given_path, metavar="FOLDER",
        help="draw what travels between which devices, an SVG a strategy",
    )  # fmt: skip
    parser.add_pictures("with --config: also draw the bytes that each sends")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_overrides()
    parser.set_defaults(run=run_strategies)


def run_strategies(args: argparse.Namespace) -> int:
    """Print every strategy with its schedule and source, or with what it would send; or draw them."""
    if args.drawings:
        return _draw_strategies(args)
    if args.config is not None:
        if args.on is not None:
            return _strategies_on(args)
        say_progress("preparing the run, and planning every strategy")
        rows, lines = _for_config(args)
        end_progress()
        if args.pictures:
            _draw_sent(args, rows)
    else:
        if args.mesh or args.on or args.overrides or args.pictures:
            given = _without_config(args)
            raise InputError(f"{given}: give --config FILE too; without a model there is nothing to send")
        rows = _described()
        lines = (f"{row['name']:<17} {row['schedule']:<8}  {row['summary']}{_settable(row)}" for row in rows)
    print(json.dumps(rows, indent=2) if args.json else "\n".join(lines))
    return 0


def _without_config(args: argparse.Namespace) -> str:
    """The first of what means something only with a config."""
    if args.pictures:
        return f"--{args.pictures[0].suffix[1:]}"
    return "--mesh" if args.mesh else "--on" if args.on else args.overrides[0]


def _draw_strategies(args: argparse.Namespace) -> int:
    given = [f"--{name}" for name in ("config", "on", "json") if getattr(args, name)]
    given += [f"--{args.pictures[0].suffix[1:]}"] if args.pictures else []
    if given := [*given, *args.overrides]:
        raise InputError(f"--drawings draws strategies on any model: leave {given[0]} out")
    hosts, devices = args.mesh or (2, 4)
    emulate_devices(hosts, devices)

    from jaxnet import files
    from jaxnet.report.travel import drawings

    drawn = drawings(hosts, devices)
    try:
        args.drawings.mkdir(parents=True, exist_ok=True)
        for name, text in drawn.items():
            files.replace(args.drawings / f"{name}.svg", text + "\n")
    except OSError as error:
        raise InputError(f"{args.drawings} cannot be written: {error.strerror or error}") from error
    print(f"{len(drawn)} drawings in {args.drawings}")
    return 0


def _draw_sent(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    from jaxnet.figures import write_figure
    from jaxnet.report import draw_sent

    sent = {_called(row): row["wire_bytes_per_axis"] for row in rows if "wire_bytes_per_axis" in row}
    hosts, devices = args.mesh or (2, 4)
    title = f"{args.config.stem}, {hosts} hosts of {devices} devices"
    write_figure(draw_sent(title, sent), args.pictures)


def _strategies_on(args: argparse.Namespace) -> int:
    """Print what the compiler makes of each strategy for accelerators that are described, a line when it is done."""
    if args.pictures:
        raise InputError(f"{_without_config(args)}: leave --on out; what is drawn is what a plan sends")
    cluster = _cluster(args)

    from jaxnet.comm import STRATEGIES
    from jaxnet.config.file import load_config
    from jaxnet.training.forecast import forecasts

    config = load_config(args.config, *args.overrides)
    rows = []
    if not args.json:
        print(_ON_HEAD.format(cluster=cluster))
    source, names = source_for_plan(config), list(STRATEGIES)
    progress = (f"compiling the step under {name}: {number} of {len(names)}" for number, name in enumerate(names, 1))
    say_progress(next(progress))
    for name, made in forecasts(config, cluster, names, source):
        end_progress()
        rows.append({"name": name, "refused": str(made)} if isinstance(made, InputError) else _on_row(name, made))
        if not args.json:
            print(_on_line(rows[-1]), flush=True)
        say_progress(next(progress, ""))
    if args.json:
        print(json.dumps(rows, indent=2))
    return 0


_ON_HEAD = """\
on {cluster}, compiled and not run; times are a model at published rates
                     planned   in the   beside      bytes      ms on   exposed     ms a
strategy         collectives  program  compute  beside it  the links        ms     step"""


def _on_row(name: str, made: "Forecast") -> dict[str, Any]:
    check, timeline = made.check, made.timeline
    return {
        "name": name,
        "planned": len(check.planned),
        "found": len(check.planned) - len(check.missing),
        "collectives": len(check.found),
        "beside_compute": sum(1 for found in check.found if found.compute_during),
        "hidden_share": made.hidden_share,
        "link_seconds": sum(travel.seconds for travel in timeline.travels),
        "exposed_seconds": timeline.exposed,
        "step_seconds": timeline.seconds,
        "fits": made.memory.fits,
        "memory_bytes": made.memory.arguments + made.memory.temporary,
    }


def _on_line(row: dict[str, Any]) -> str:
    if "refused" in row:
        return f"{row['name']:<17} {row['refused']}"
    ms = [1e3 * row[key] for key in ("link_seconds", "exposed_seconds", "step_seconds")]
    planned = row["planned"] or "-"
    found = row["found"] if row["planned"] else "-"
    beside = f"{row['beside_compute']}/{row['collectives']}"
    return (
        f"{row['name']:<17}{planned:>11}{found:>9}{beside:>9}{row['hidden_share']:>11.0%}"
        f"{ms[0]:>11.3f}{ms[1]:>10.3f}{ms[2]:>9.2f}{'' if row['fits'] else '  does not fit'}"
    )


def _settable(row: dict[str, Any]) -> str:
    settings = " ".join(f"{key}={value}" for key, value in row["settings"].items())
    return f" [{settings}]" if settings else ""


def _described() -> list[dict[str, Any]]:
    from jaxnet.comm import STRATEGIES, installed_strategies

    ours = [make() for make in STRATEGIES.values()]
    return [_row(each) for each in [*ours, *_made(installed_strategies())]]


def _made(names: Iterable[str], bucket_bytes: int | None = None) -> Iterator["Strategy"]:
    """The strategies called so; of another package's that cannot be made, a warning."""
    from jaxnet.comm import STRATEGIES, has_bucket_size, named_strategy

    for name in names:
        try:
            yield named_strategy(name, bucket_bytes if has_bucket_size(name) else None)
        except ValueError as error:
            if name.partition(":")[0] in STRATEGIES:
                raise
            print(f"warning: {error}", file=sys.stderr)


def _row(strategy: "Strategy") -> dict[str, Any]:
    from jaxnet.comm import settings_of

    return {
        "name": strategy.name,
        "schedule": strategy.when,
        "exact": strategy.exact,
        "summary": strategy.summary,
        "expression": strategy.expression,
        "settings": settings_of(strategy.name) if strategy.name else {},
    }


def _for_config(args: argparse.Namespace) -> tuple[list[dict[str, Any]], Iterator[str]]:
    import jax

    hosts, devices = args.mesh or (2, 4)
    emulate_devices(hosts, devices)

    from jaxnet.config.file import load_config

    config = load_config(args.config, *args.overrides)
    experiment = _prepared(config, _emulated(args, config))
    shapes = jax.tree.leaves(experiment.layout.whole_shapes.params)
    shapes = [shapes[index] for index in experiment.form.options.order or range(len(shapes))]
    rows = _planned(config, shapes, experiment.mesh, experiment.total_steps)
    return rows, _table(rows)


def _planned(config: "Config", shapes: list[Any], mesh: "Mesh", steps: int) -> list[dict[str, Any]]:
    """What each strategy sends of leaves of these shapes, in backward order; bytes are means over a run of `steps`."""
    from jaxnet.comm import (
        AUTO,
        STRATEGIES,
        Averaging,
        Strategy,
        all_reduce,
        as_sent,
        bucketed,
        installed_strategies,
        platform_of,
        wire_bytes_per_axis,
    )

    platform, sizes = platform_of(mesh), dict(mesh.shape)
    flat = as_sent(bucketed(all_reduce(*sizes), None).plan(shapes, sizes).collectives, platform)
    least = sum(wire_bytes_per_axis(flat).values())
    rows = []
    given = [config.strategy] if isinstance(config.strategy, str) else []
    names = dict.fromkeys([*STRATEGIES, *installed_strategies(), *given])
    strategies = [*_made((name for name in names if name != AUTO), config.bucket_bytes)]
    strategies += [config.strategy] if isinstance(config.strategy, Strategy) else []
    for strategy in strategies:
        row = _row(strategy)
        if strategy.reducer is not None:
            collectives = as_sent(strategy.reducer.plan(shapes, sizes).collectives, platform)
            schedule = strategy.schedule
            share = schedule.exchanges_per_step(steps) if isinstance(schedule, Averaging) else 1.0
            sent = {axis: round(share * given) for axis, given in wire_bytes_per_axis(collectives).items()}
            total = sum(sent.values())
            row |= {
                "messages": len(collectives),
                "wire_bytes_per_axis": sent,
                "wire_bytes_per_step": total,
                "ratio_to_flat": total / least if least else None,
            }
        rows.append(row)
    return rows


def _called(row: dict[str, Any]) -> str:
    return row["name"] or "the config's own"


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    axes = list(dict.fromkeys(axis for row in rows for axis in row.get("wire_bytes_per_axis", ())))
    heads = "".join(f"{axis:>14}" for axis in axes)
    yield f"{'':<17} {'':<8} {'':>8}  bytes that the busiest device sends in a step over"
    yield f"{'strategy':<17} {'schedule':<8} {'messages':>8}{heads}  of flat"
    for row in rows:
        start = f"{_called(row):<17} {row['schedule']:<8}"
        if "messages" not in row:
            yield f"{start} as XLA decides"
            continue
        sent = "".join(f"{row['wire_bytes_per_axis'].get(axis, 0):>14,}" for axis in axes)
        ratio = row["ratio_to_flat"]
        yield f"{start} {row['messages']:>8}{sent}  {'' if ratio is None else f'{ratio:7.3f}'}"
