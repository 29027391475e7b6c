"""`jaxnet plan`: what a training step will send, and what the compiler makes of it, before anything is trained."""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jaxnet.command_line import Commands, mesh_sizes
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from jaxnet.comm import Strategy
    from jaxnet.config.run import Config


_PLAN_DESCRIPTION = """\
Plan the communication of a training step on a mesh of emulated CPU devices: the buckets, the bytes that each
device sends over each axis, and the collectives of the compiled program beside those planned."""

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
    parser.set_defaults(run=run_plan)


def run_plan(args: argparse.Namespace) -> int:
    """Plan, compile and compare."""
    import jax

    hosts, devices = args.mesh
    # Emulated devices have to be asked for before any device is used.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", hosts * devices)

    from jaxnet.comm import make_mesh, verify
    from jaxnet.config.file import load_config
    from jaxnet.data import open_split
    from jaxnet.training.plan import plan_json, plan_text
    from jaxnet.training.prepare import prepare

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


# ---- `jaxnet strategies`: the ways in which gradients can travel, and with a config, what each would send


_STRATEGIES_DESCRIPTION = """\
List the communication strategies, with what can be set of them: strategy=NAME:key=value. With a config, also what each
would send in a training step of that model: collectives, bytes that the busiest device sends over each axis, and their
sum beside that of one flat all-reduce. Bytes are the fewest that the operation needs. Where parameters travel every so
many steps, messages are those of one such step and bytes the mean over the run."""

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
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a Python file with get_config(), which is run: also show what its model would send",
    )
    parser.add_argument(
        "--mesh", type=mesh_sizes, metavar="HxD", help="with --config: hosts x devices, whatever it says; default 2x4"
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
        "schedule": strategy.schedule,
        "exact": strategy.exact,
        "summary": strategy.summary,
        "settings": settings_of(strategy.name),
    }


def _for_config(args: argparse.Namespace) -> tuple[list[dict[str, Any]], Iterator[str]]:
    import jax

    hosts, devices = args.mesh or (2, 4)
    # Emulated devices have to be asked for before any device is used.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", hosts * devices)

    from jaxnet.comm import make_mesh
    from jaxnet.config.file import load_config
    from jaxnet.data import open_split
    from jaxnet.training.prepare import prepare

    config = load_config(args.config, args.overrides)
    mesh = make_mesh(hosts)
    experiment = prepare(config, mesh, open_split(config.data, "train"))
    shapes = jax.tree.leaves(experiment.layout.whole_shapes.params)
    shapes = [shapes[index] for index in experiment.order]
    rows = _planned(config, shapes, dict(mesh.shape), experiment.total_steps)
    return rows, _table(rows)


def _planned(config: "Config", shapes: list[Any], mesh: dict[str, int], steps: int) -> list[dict[str, Any]]:
    """What each strategy sends of leaves of these shapes, in backward order; bytes are means over a run of `steps`."""
    from jaxnet.comm import STRATEGIES, all_reduce, bucketed, has_bucket_size, named_strategy, wire_bytes_per_axis

    flat = bucketed(all_reduce(*mesh), None).plan(shapes, mesh).collectives
    least = sum(wire_bytes_per_axis(flat).values())
    rows = []
    for name in dict.fromkeys([*STRATEGIES, config.strategy]):
        strategy = named_strategy(name, config.bucket_bytes if has_bucket_size(name) else None)
        row = _row(strategy)
        if strategy.reducer is not None:
            collectives = strategy.reducer.plan(shapes, mesh).collectives
            share = 1.0 if strategy.averaging is None else strategy.averaging.exchanges_per_step(steps)
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
