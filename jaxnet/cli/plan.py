"""`jaxnet plan` shows what a training step will send; `jaxnet strategies` lists and compares the strategies."""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jaxnet.command_line import Commands, emulate_devices, mesh_sizes
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from jaxnet.comm import Strategy
    from jaxnet.config.run import Config


_PLAN_DESCRIPTION = """\
Plan and compile a training step on a mesh of emulated CPU devices, without training. Show the buckets, the bytes that
each device sends over each axis, and the collectives of the compiled program beside the planned ones."""

_PLAN_EXAMPLES = """\
examples:
  jaxnet plan --config configs/fashion_mnist.py strategy=hierarchical
  jaxnet plan --config configs/digits.py --mesh 4x2 strategy=ddp bucket_bytes=65536
  jaxnet plan --config configs/digits.py --json
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
        default=(2, 4),
        metavar="HxD",
        help="hosts x devices, in place of the config's; default 2x4",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_overrides()
    parser.set_defaults(run=run_plan)


def run_plan(args: argparse.Namespace) -> int:
    """Plan, compile and compare."""
    hosts, devices = args.mesh
    emulate_devices(hosts, devices)

    from jaxnet.comm import make_mesh
    from jaxnet.config.file import load_config
    from jaxnet.training.prepare import prepare

    config = load_config(args.config, *args.overrides)
    plan = prepare(config, make_mesh(hosts)).plan.verified()
    print(json.dumps(plan.as_json(), indent=2) if args.json else plan)
    return 0


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
        help="with --config: hosts x devices, in place of the config's; default 2x4",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_overrides()
    parser.set_defaults(run=run_strategies)


def run_strategies(args: argparse.Namespace) -> int:
    """Print every strategy with its schedule and source, or with what it would send."""
    if args.config is not None:
        rows, lines = _for_config(args)
    else:
        if args.mesh or args.overrides:
            given = "--mesh" if args.mesh else args.overrides[0]
            raise InputError(f"{given}: give --config FILE too; without a model there is nothing to send")
        rows = _described()
        lines = (f"{row['name']:<17} {row['schedule']:<8}  {row['summary']}{_settable(row)}" for row in rows)
    print(json.dumps(rows, indent=2) if args.json else "\n".join(lines))
    return 0


def _settable(row: dict[str, Any]) -> str:
    settings = " ".join(f"{key}={value}" for key, value in row["settings"].items())
    return f" [{settings}]" if settings else ""


def _described() -> list[dict[str, Any]]:
    from jaxnet.comm import STRATEGIES

    return [_row(make()) for make in STRATEGIES.values()]


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

    from jaxnet.comm import make_mesh
    from jaxnet.config.file import load_config
    from jaxnet.training.prepare import prepare

    config = load_config(args.config, *args.overrides)
    experiment = prepare(config, make_mesh(hosts))
    shapes = jax.tree.leaves(experiment.layout.whole_shapes.params)
    shapes = [shapes[index] for index in experiment.form.options.order or range(len(shapes))]
    rows = _planned(config, shapes, dict(experiment.mesh.shape), experiment.total_steps)
    return rows, _table(rows)


def _planned(config: "Config", shapes: list[Any], mesh: dict[str, int], steps: int) -> list[dict[str, Any]]:
    """What each strategy sends of leaves of these shapes, in backward order; bytes are means over a run of `steps`."""
    import jax

    from jaxnet.comm import (
        STRATEGIES,
        Averaging,
        Strategy,
        all_reduce,
        as_sent,
        bucketed,
        has_bucket_size,
        named_strategy,
        wire_bytes_per_axis,
    )

    platform = jax.default_backend()
    flat = as_sent(bucketed(all_reduce(*mesh), None).plan(shapes, mesh).collectives, platform)
    least = sum(wire_bytes_per_axis(flat).values())
    rows = []
    strategies = [
        named_strategy(name, config.bucket_bytes if has_bucket_size(name) else None)
        for name in dict.fromkeys([*STRATEGIES, *([config.strategy] if isinstance(config.strategy, str) else [])])
    ]
    strategies += [config.strategy] if isinstance(config.strategy, Strategy) else []
    for strategy in strategies:
        row = _row(strategy)
        if strategy.reducer is not None:
            collectives = as_sent(strategy.reducer.plan(shapes, mesh).collectives, platform)
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


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    axes = list(dict.fromkeys(axis for row in rows for axis in row.get("wire_bytes_per_axis", ())))
    heads = "".join(f"{axis:>14}" for axis in axes)
    yield f"{'':<17} {'':<8} {'':>8}  bytes that the busiest device sends in a step over"
    yield f"{'strategy':<17} {'schedule':<8} {'messages':>8}{heads}  of flat"
    for row in rows:
        start = f"{row['name']:<17} {row['schedule']:<8}"
        if "messages" not in row:
            yield f"{start} as XLA decides"
            continue
        sent = "".join(f"{row['wire_bytes_per_axis'].get(axis, 0):>14,}" for axis in axes)
        ratio = row["ratio_to_flat"]
        yield f"{start} {row['messages']:>8}{sent}  {'' if ratio is None else f'{ratio:7.3f}'}"
