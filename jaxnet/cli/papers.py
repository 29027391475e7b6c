"""`jaxnet simulate --paper`: published scaling tables beside what is simulated of them."""

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxnet.command_line import end_progress, say_progress
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from jaxnet.cost.papers import Compared, Paper, Reduction
    from jaxnet.report import Scaling

REDUCTION = "s_caffe_reduction"


def show_papers(args: argparse.Namespace) -> int:
    """Each row of published tables beside what is simulated."""
    import difflib

    from jaxnet.cost.papers import PAPERS, compared

    for name in args.paper:
        if name == REDUCTION:
            raise InputError(f"--paper {REDUCTION}: it has sizes of messages and no devices; ask for it alone")
        if name != "all" and name not in PAPERS:
            names = [*PAPERS, REDUCTION]
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise InputError(f"--paper {name}: there is no such table; {hint}")
    everything = "all" in args.paper
    papers = list(PAPERS.values()) if everything else [PAPERS[name] for name in dict.fromkeys(args.paper)]
    rows = {}
    for number, paper in enumerate(papers, 1):
        say_progress(f"{paper.name}: {number} of {len(papers)}")
        rows[paper.name] = compared(paper)
    end_progress()
    if args.pictures:
        _draw_papers(args.pictures, papers, rows)
    if args.json:
        print(json.dumps([_as_json(paper, rows[paper.name]) for paper in papers], indent=2))
    elif everything:
        print("\n".join(all_lines(papers, rows)))
    else:
        print("\n\n".join("\n".join(_paper_lines(paper, rows[paper.name])) for paper in papers))
    return 0


def show_reduction(args: argparse.Namespace) -> int:
    """S-Caffe's reduction beside others: its paper has ratios of times, and no sizes of messages."""
    from jaxnet.cost.machines import MACHINES
    from jaxnet.cost.papers import reduction

    if args.pictures:
        raise InputError(f"--png, --svg: --paper {REDUCTION} has no picture")
    machine = MACHINES["k80-fdr"]
    rows = [reduction(bytes_, machine, 160) for bytes_ in (4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20)]
    if args.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        print("\n".join(reduction_lines(machine.title, rows)))
    return 0


def reduction_lines(title: str, rows: "Sequence[Reduction]") -> Iterator[str]:
    """A table of reductions, and how many times as long as S-Caffe's others take."""
    yield "Awan et al., 2017 (S-Caffe): on 160 K80 a reduction 133 times as fast as OpenMPI's, 2.6 times as MVAPICH2's"
    yield f"of the algorithms alone, on {title}:"
    yield f"{'bytes':>11} {'one by one ms':>14} {'binomial ms':>12} {'S-Caffe ms':>11} {'times':>14}"
    for row in rows:
        ms = [1e3 * each for each in (row.one_by_one, row.binomial, row.tuned)]
        times = f"{row.one_by_one / row.tuned:.1f} and {row.binomial / row.tuned:.1f}"
        yield f"{row.bytes:>11,} {ms[0]:>14.2f} {ms[1]:>12.2f} {ms[2]:>11.2f} {times:>14}"


def _draw_papers(paths: Sequence[Path], papers: "Sequence[Paper]", rows: "Mapping[str, Sequence[Compared]]") -> None:
    """The published rows of tables beside what is simulated."""
    from jaxnet.figures import write_figure
    from jaxnet.report import draw_scaling, draw_scalings

    if len(papers) == 1:
        [paper] = papers
        one = _paper_scaling(paper, f"{paper.title}\n{paper.source}", rows[paper.name])
        write_figure(draw_scaling(one), paths)
    else:
        write_figure(draw_scalings([_paper_scaling(paper, paper.name, rows[paper.name]) for paper in papers]), paths)


def _paper_scaling(paper: "Paper", title: str, rows: "Sequence[Compared]") -> "Scaling":
    from jaxnet.cost.papers import work_of
    from jaxnet.cost.simulation import scaled
    from jaxnet.report import Scaling

    machine, strategy, work = work_of(paper)
    hosts, devices = machine.hosts(max(count for count, _ in paper.rows))
    found = [each for _, each in scaled(work, strategy, machine, (hosts, devices), strong=False)]
    base = next(each for each in found if each.devices == paper.base)
    shown = [each for each in found if each.devices >= paper.base]
    simulated = [(each.devices, each.efficiency / base.efficiency) for each in shown]
    unhidden = [(each.devices, each.unhidden / base.unhidden) for each in shown]
    limit = [(each.devices, each.limit / base.efficiency) for each in shown]
    published = [(row.devices, row.published) for row in rows]
    return Scaling(title, {paper.strategy: simulated}, limit, unhidden, published)


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
    yield f"{'devices':>8} {'published':>10} {'simulated':>10} {'points':>7} {'unhidden':>9}"
    for row in rows:
        shares = f"{row.published:>10.1%} {row.simulated:>10.1%} {row.points:>+7.1f} {row.unhidden:>9.1%}"
        yield f"{row.devices:>8} {shares}"


def all_lines(papers: "list[Paper]", rows: "dict[str, list[Compared]]") -> Iterator[str]:
    """All tables with their differences, and how many rows are near."""
    yield f"{'table':<34} {'devices: points of efficiency that the simulation is too high'}"
    for paper in papers:
        yield f"{paper.name:<34} " + "  ".join(f"{row.devices}: {row.points:+.1f}" for row in rows[paper.name])
    off = sorted(abs(row.points) for each in rows.values() for row in each)
    within = sum(points <= 5 for points in off)
    yield f"{within} of {len(off)} rows within 5 points; median {statistics.median(off):.1f}, largest {off[-1]:.1f}"
    between = sum(row.between() for each in rows.values() for row in each)
    yield f"{between} of {len(off)} rows between the simulation and one that hides nothing, 5 points allowed"
