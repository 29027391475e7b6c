"""`jaxnet report` shows where the time of a run went; `jaxnet timeline` shows one of its steps."""

import argparse
import errno
import json
from collections.abc import Sequence
from pathlib import Path

from jaxnet.command_line import Commands, given_path
from jaxnet.errors import InputError, printable, show_warnings
from jaxnet.files import read_object
from jaxnet.object_storage.store import remote_url

_REPORT_DESCRIPTION = """\
Show where the time of a run went, from the ledger in its workdir: start-up, compilation, waiting for data, steps,
evaluation, checkpoints; work that was lost and done again; the time from an attempt's last sign of life to the next
start; and the time that each rank needs for a step, with the stragglers.
goodput = time of useful steps / time since the first start. Of several runs, their final figures beside each other.
With --html, one page about one run or several: curves over each other, speed, time, what a step sends, a step in time,
configs with their differences, checkpoints, faults, environment. --serve shows it and follows the runs."""

_REPORT_EXAMPLES = """\
examples:
  jaxnet report runs/digits
  jaxnet report runs/digits --json
  jaxnet report runs/xla runs/ddp
  jaxnet report runs/xla runs/ddp --html page.html
  jaxnet report runs/digits --serve
"""


def add_report(commands: Commands) -> None:
    """Add `report` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "report",
        help="show where the time of a run went, or compare runs, or a page about them",
        description=_REPORT_DESCRIPTION,
        epilog=_REPORT_EXAMPLES,
    )
    parser.add_argument("workdirs", type=given_path, nargs="+", metavar="WORKDIR", help="the directory of a run")
    parser.add_argument("--html", type=given_path, metavar="FILE", help="write a page about these runs")
    parser.add_argument(
        "--serve", type=_port, nargs="?", const=8000, metavar="PORT", help="serve that page until Ctrl-C; default 8000"
    )
    parser.add_argument("--address", metavar="IP", help="of --serve; default 127.0.0.1: this machine alone")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_report)


def run_report(args: argparse.Namespace) -> int:
    """Write or serve a page; else read the ledger, add up, print."""
    show_warnings()
    if args.address is not None and args.serve is None:
        raise InputError("--address is that of --serve: give both, or leave it out")
    if args.html or args.serve is not None:
        if args.json or (args.html and args.serve is not None):
            raise InputError("give one of --html, --serve and --json")
        return _write_page(args) if args.html else _serve(args)
    if len(args.workdirs) > 1:
        return _compare(args.workdirs, as_json=args.json)
    return _show_goodput(args.workdirs[0], as_json=args.json)


def _compare(workdirs: Sequence[Path], *, as_json: bool) -> int:
    from jaxnet.training.results import compare

    compared = compare(workdirs)
    print(json.dumps(compared.rows, indent=2) if as_json else printable(str(compared), keep="\n"))
    return 0


def _show_goodput(workdir: Path, *, as_json: bool) -> int:
    from jaxnet.report.goodput import goodput, goodput_json, goodput_text, read_ledger

    path = workdir / "ledger.jsonl"
    if remote_url(workdir):
        from jaxnet.object_storage.reading import fetched_files  # takes a while to import

        path = fetched_files(workdir, path.name) / path.name
    try:
        found = goodput(read_ledger(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; wanted the workdir of a run") from error
    print(json.dumps(goodput_json(found), indent=2) if as_json else printable(goodput_text(found), keep="\n"))
    return 0


def _write_page(args: argparse.Namespace) -> int:
    from jaxnet.files import replace
    from jaxnet.report.page import page
    from jaxnet.report.run_files import labels_of, read_run

    made = page([read_run(*each) for each in zip(labels_of(args.workdirs), args.workdirs, strict=True)])
    try:
        replace(args.html, made)
    except OSError as error:
        raise InputError(f"{args.html} cannot be written: {error.strerror or error}") from error
    print(f"written to {args.html}: {len(made.encode()):,} bytes")
    return 0


def _serve(args: argparse.Namespace) -> int:
    from jaxnet.report.run_files import labels_of
    from jaxnet.report.served import page_server

    address = args.address or "127.0.0.1"
    for workdir in args.workdirs:
        if url := remote_url(workdir):
            raise InputError(f"{url}: only runs on this machine are followed; --html FILE makes a page of it")
    try:
        server = page_server(dict(zip(labels_of(args.workdirs), args.workdirs, strict=True)), address, args.serve)
    except (OSError, UnicodeError) as error:  # the second of a name that no host can have
        of_port = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        where = f"--serve {args.serve}" if of_port else f"--address {address}"
        cure = "give another port" if of_port else "give an IPv4 address or a name of this machine"
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{where}: cannot listen there: {reason}; {cure}") from error
    with server:
        print(f"http://{address}:{server.server_address[1]}/ until Ctrl-C", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise argparse.ArgumentTypeError(f"{text!r} must be a port, 0 to 65535; 0 takes one that is free")
    return int(text)


# ---- Timeline ------------------------------------------------------------------------------------------


_TIMELINE_DESCRIPTION = """\
Show one step from a trace of the JAX profiler: for each collective its bucket, bytes, start, end, and the part of it
during which the same device computed; for each device the totals. overlap = 1 - exposed / communication."""

_TIMELINE_EXAMPLES = """\
examples:
  jaxnet train --config configs/digits.py profile.steps=3 && jaxnet timeline runs/digits
  jaxnet timeline runs/digits --step 11 --png step.png
  jaxnet timeline /tmp/trace --json        (a directory that jax.profiler.trace wrote)
"""


def add_timeline(commands: Commands) -> None:
    """Add `timeline` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "timeline",
        help="show when the buckets of a step travelled",
        description=_TIMELINE_DESCRIPTION,
        epilog=_TIMELINE_EXAMPLES,
    )
    parser.add_argument(
        "trace", type=given_path, metavar="TRACE", help="a workdir, a profile directory or an *.xplane.pb file"
    )
    parser.add_argument(
        "--step", type=_step, metavar="N", help="number of the step; default: the step of median length"
    )
    parser.add_pictures("also draw it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_timeline)


def run_timeline(args: argparse.Namespace) -> int:
    """Read the traces, then print and draw one step."""
    from jaxnet.figures import write_figure
    from jaxnet.report import draw, read_traces, timeline, timeline_json, timeline_text

    if url := remote_url(args.trace):
        raise InputError(f"{url}: traces are read from a directory; copy {url}/profile to one, and give that")
    made = timeline(read_traces(args.trace), args.step, _mesh(args.trace))
    if args.pictures:
        write_figure(draw(made), args.pictures)
    print(json.dumps(timeline_json(made), indent=2) if args.json else printable(timeline_text(made), keep="\n"))
    return 0


def _mesh(workdir: Path) -> dict[str, int]:
    """The shape of the mesh, if this is the workdir of a finished run; else nothing."""
    summary = workdir / "summary.json"
    try:
        mesh = read_object(summary).get("mesh") if summary.is_file() else {}
    except (OSError, ValueError) as error:
        raise InputError(f"{summary} is not the summary of a run: {error}") from error
    if not isinstance(mesh, dict) or not all(isinstance(size, int) for size in mesh.values()):
        raise InputError(f"{summary} is not the summary of a run: it does not say how large the mesh is")
    return mesh


def _step(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} must be the number of a step")
    return int(text)
