"""`jaxnet strategies` lists and compares the strategies."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jaxnet.cli.plan import add_on, cluster_of, emulated_mesh, prepared, source_for_plan
from jaxnet.command_line import Commands, emulate_devices, end_progress, given_path, mesh_sizes, say_progress
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxnet.comm import Strategy
    from jaxnet.config.run import Config
    from jaxnet.training.forecast import Forecast


_DESCRIPTION = """\
List the communication strategies and their settings: strategy=NAME:key=value. With a config, also show what each would
send in a training step of its model: the number of collectives, the bytes that the busiest device sends over each axis,
and their sum relative to one flat all-reduce. Bytes are the fewest that an operation needs. Where parameters travel
only every few steps, messages are those of one such step, and bytes are the mean over the run."""

_EXAMPLES = """\
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
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_config("a Python file with get_config(), which is run; also show what its model would send")
    parser.add_argument(
        "--mesh",
        type=mesh_sizes,
        metavar="HxD",
        help="with --config or --drawings: hosts x devices, in place of the config's; default 2x4",
    )
    add_on(parser)
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
        rows, sizes = _for_config(args)
        lines = _table(rows)
        end_progress()
        if args.pictures:
            _draw_sent(args, rows, sizes)
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


def _draw_sent(args: argparse.Namespace, rows: list[dict[str, Any]], sizes: Mapping[str, int]) -> None:
    from jaxnet.figures import write_figure
    from jaxnet.report import draw_sent

    sent = {_called(row): row["wire_bytes_per_axis"] for row in rows if "wire_bytes_per_axis" in row}
    title = "{}, {host} hosts of {device} devices".format(args.config.stem, **sizes)
    write_figure(draw_sent(title, sent), args.pictures)


def _strategies_on(args: argparse.Namespace) -> int:
    """Print what the compiler makes of each strategy for accelerators that are described, a line when it is done."""
    if args.pictures:
        raise InputError(f"{_without_config(args)}: leave --on out; what is drawn is what a plan sends")
    cluster = cluster_of(args)

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


def _for_config(args: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The rows of a config's model, and the sizes of the mesh's axes."""
    import jax

    hosts, devices = args.mesh or (2, 4)
    emulate_devices(hosts, devices)

    from jaxnet.config.file import load_config
    from jaxnet.config.strategy import require_whole_gradients
    from jaxnet.parallel import averaged_state

    config = load_config(args.config, *args.overrides)
    require_whole_gradients(config, "compared")
    experiment = prepared(config, emulated_mesh(args, config))
    state = experiment.layout.whole_shapes
    shapes = jax.tree.leaves(state.params)
    shapes = [shapes[index] for index in experiment.form.options.order or range(len(shapes))]
    rows = _planned(config, shapes, averaged_state(state.optimizer), experiment.mesh, experiment.total_steps)
    return rows, dict(experiment.mesh.shape)


def _planned(
    config: "Config", shapes: list[Any], optimizer: list[Any], mesh: "Mesh", steps: int
) -> list[dict[str, Any]]:
    """What each strategy sends of leaves of these shapes, in backward order; bytes are means over a run of `steps`.

    Strategies that average the optimizer's state, too, send its leaves of the shapes `optimizer` with the parameters.
    """
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
            gradients = means = as_sent(strategy.reducer.plan(shapes, sizes).collectives, platform)
            of_gradients, of_means = 1.0, 0.0
            if isinstance(averaging := strategy.schedule, Averaging):
                of_gradients, of_means = averaging.synchronous_share(steps), averaging.averaging_share(steps)
                if averaging.with_optimizer:
                    means = as_sent(strategy.reducer.plan([*shapes, *optimizer], sizes).collectives, platform)
            shares = [of_gradients] * len(gradients) + [of_means] * len(means)
            sent = wire_bytes_per_axis([*gradients, *means], shares)
            total = sum(sent.values())
            row |= {
                "messages": len(means),
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
