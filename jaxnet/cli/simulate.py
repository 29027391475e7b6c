"""`jaxnet simulate` says what a run would do on machines that are not here, and tries itself on published tables."""

import argparse
import json
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jaxnet.command_line import Commands, batch_size
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from jaxnet.cost.papers import Compared, Paper
    from jaxnet.cost.simulation import Simulated

_DESCRIPTION = """\
Say how fast a network of the zoo (`jaxnet models`) would train on many devices, from the rate of one and the links of a
machine. A model, not a measurement: computation takes as long as on one device, messages travel beside it by the
strategy's plan, and devices differ by a percent. Or compare it with a published scaling table (--paper)."""

_EXAMPLES = """\
examples:
  jaxnet simulate --model resnet50 --batch 128 --rate 397 --on v100-edr:4x8
  jaxnet simulate --model vgg16 --batch 64 --rate 2500 --on h100:128x8 --strategy hierarchical --json
  jaxnet simulate --model resnet50 --batch 256 --rate 2500 --on h100:128x8 --examples 115e6 --failure-hours 20000
  jaxnet simulate --paper horovod_44_vgg16_tcp
  jaxnet simulate --paper all
"""


def add_simulate(commands: Commands) -> None:
    """Add `simulate` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "simulate", help="what a run would do on more devices", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    parser.add_argument("--model", metavar="NAME", help="a network that `jaxnet models` lists")
    parser.add_argument("--batch", type=batch_size, metavar="N", help="examples of a device")
    parser.add_argument("--rate", type=_number, metavar="R", help="examples a second of one device alone, as measured")
    parser.add_argument("--on", metavar="MACHINE:HxD", help="hosts of a machine, with so many devices each")
    parser.add_argument("--strategy", default="hierarchical", metavar="NAME", help="default hierarchical")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"], help="of gradients")
    parser.add_argument("--examples", type=_number, metavar="N", help="of the whole run: also hours and device-hours")
    parser.add_argument(
        "--failure-hours", type=_number, metavar="H", help="a host fails once in so many hours: also goodput"
    )
    parser.add_argument(
        "--save-seconds", type=_number, default=10.0, metavar="S", help="training waits so long for a save; default 10"
    )
    parser.add_argument("--restart-seconds", type=_number, default=120.0, metavar="S", help="of a restart; default 120")
    parser.add_argument("--paper", metavar="NAME", help="a published table; 'all': how far off each is")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_simulate)


def run_simulate(args: argparse.Namespace) -> int:
    """Simulate and print."""
    import jax

    jax.config.update("jax_platforms", "cpu")  # shapes need no accelerator

    given = {name: getattr(args, name) for name in ("model", "batch", "rate", "on")}
    if args.paper is None:
        if missing := [f"--{name}" for name, value in given.items() if value is None]:
            raise InputError(f"give {', '.join(missing)} too: wanted --model, --batch, --rate and --on, or --paper")
        return _show_machine(args)
    if said := [f"--{name}" for name, value in given.items() if value is not None]:
        raise InputError(f"--paper has a network and a machine of its own: leave {' and '.join(said)} out")
    return _show_papers(args)


def _show_machine(args: argparse.Namespace) -> int:
    from jaxnet.cost.machines import machine_named
    from jaxnet.cost.papers import layers_of
    from jaxnet.cost.simulation import Work, grown, simulated
    from jaxnet.cost.step_bench import labelled_strategy
    from jaxnet.models.zoo import ZOO, nearest

    machine, hosts, devices = machine_named(args.on)
    strategy = labelled_strategy(args.strategy, platform="gpu")
    if args.model not in ZOO:
        raise InputError(f"--model {args.model}: there is no such network; {nearest(args.model)}")
    work = Work(args.model, layers_of(args.model), args.batch, args.rate, args.dtype)
    sizes = grown(hosts, devices)
    rows = [_row(args, simulated(work, strategy, machine, *each), each[0]) for each in sizes]
    if args.json:
        about = {"machine": machine.name, "source": machine.source, "strategy": args.strategy}
        print(json.dumps({**about, "rows": rows}, indent=2))
    else:
        print(f"{args.model}, batch {args.batch} a device, {args.strategy}, on {machine.title}: {machine.source}")
        print("\n".join(_machine_lines(rows)))
    return 0


def _row(args: argparse.Namespace, found: "Simulated", hosts: int) -> dict[str, float]:
    """A step on so many hosts; with the hours of the whole run, and what failures leave of them."""
    from jaxnet.cost.simulation import upkeep

    row: dict[str, float] = found._asdict()
    goodput = 1.0
    if args.failure_hours:
        kept = upkeep(hosts, 3600 * args.failure_hours, args.save_seconds, args.restart_seconds)
        goodput = kept.goodput
        row |= {"save_every_seconds": kept.interval, "goodput": goodput}
    if args.examples:
        hours = args.examples / found.rate / goodput / 3600
        row |= {"hours": hours, "device_hours": hours * found.devices}
    return row


_COLUMNS = {
    "devices": ("devices", 8, "{:,.0f}"),
    "seconds": ("s a step", 10, "{:.5f}"),
    "exposed": ("exposed", 9, "{:.5f}"),
    "rate": ("examples/s", 13, "{:,.0f}"),
    "efficiency": ("efficiency", 11, "{:.1%}"),
    "save_every_seconds": ("save every s", 13, "{:,.0f}"),
    "goodput": ("goodput", 8, "{:.1%}"),
    "hours": ("hours", 10, "{:,.2f}"),
    "device_hours": ("device-hours", 13, "{:,.0f}"),
}


def _machine_lines(rows: list[dict[str, float]]) -> Iterator[str]:
    shown = [_COLUMNS[name] for name in rows[0]]
    yield " ".join(f"{title:>{width}}" for title, width, _ in shown)
    for row in rows:
        yield " ".join(
            f"{text.format(value):>{width}}" for value, (_, width, text) in zip(row.values(), shown, strict=True)
        )


def _show_papers(args: argparse.Namespace) -> int:
    import difflib

    from jaxnet.cost.papers import PAPERS, compared

    if args.paper != "all" and args.paper not in PAPERS:
        near = difflib.get_close_matches(args.paper, PAPERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PAPERS)}"
        raise InputError(f"--paper {args.paper}: there is no such table; {hint}")
    papers = list(PAPERS.values()) if args.paper == "all" else [PAPERS[args.paper]]
    rows = {paper.name: compared(paper) for paper in papers}
    if args.json:
        print(json.dumps([_as_json(paper, rows[paper.name]) for paper in papers], indent=2))
    else:
        print("\n".join(all_lines(papers, rows) if args.paper == "all" else _paper_lines(papers[0], rows[args.paper])))
    return 0


def _as_json(paper: "Paper", rows: "list[Compared]") -> dict[str, Any]:
    return {
        "name": paper.name,
        "title": paper.title,
        "source": paper.source,
        "machine": paper.machine,
        "strategy": paper.strategy,
        "assumed": paper.assumed,
        "rows": [{**row._asdict(), "points": row.points} for row in rows],
    }


def _paper_lines(paper: "Paper", rows: "list[Compared]") -> Iterator[str]:
    from jaxnet.cost.machines import MACHINES

    yield f"{paper.title} ({paper.source})"
    machine = MACHINES[paper.machine]
    yield f"machine {machine.name}: {machine.title}; strategy {paper.strategy}; gradients {paper.dtype}"
    yield f"one device {paper.rate:,.1f} examples/s" + (f"; assumed: {paper.assumed}" if paper.assumed else "")
    yield f"{'devices':>8} {'published':>10} {'simulated':>10} {'points':>7}"
    for row in rows:
        yield f"{row.devices:>8} {row.published:>10.1%} {row.simulated:>10.1%} {row.points:>+7.1f}"


def all_lines(papers: "list[Paper]", rows: "dict[str, list[Compared]]") -> Iterator[str]:
    """All tables with their differences, and how many rows are near."""
    yield f"{'table':<34} {'devices: points of efficiency that the simulation is too high'}"
    for paper in papers:
        yield f"{paper.name:<34} " + "  ".join(f"{row.devices}: {row.points:+.1f}" for row in rows[paper.name])
    off = sorted(abs(row.points) for each in rows.values() for row in each)
    within = sum(points <= 5 for points in off)
    yield f"{within} of {len(off)} rows within 5 points; median {statistics.median(off):.1f}, largest {off[-1]:.1f}"


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e18:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return number
