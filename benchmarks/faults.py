"""What a run survives: faults planted in a small training, and what each one costs.

    python -m benchmarks.faults [--fault NAME ...] [--tries N] [--out DIR] [--json]

Two processes train on digits under `jaxnet launch local`, or on two hosts of a lab. One job meets a fault up to five
times, at places and times drawn from the seed, and ends; its final state, to the last bit of optimizer and parameters,
is compared with that of a run that met none. With --out, tries that were made are kept there and not made again: the
same command continues after an interruption. Such a directory is for one version of the code. Root and iproute2 are
needed for links and full disks.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.faulting import kept, launchers, links, moments, processes, storage, values
from benchmarks.faulting.kept import Tried
from benchmarks.faulting.rounds import Fault, Outcome, Round, Unbroken
from benchmarks.faulting.watched import Unmet
from jaxnet.errors import InputError
from jaxnet.report.goodput import read_ledger

FAULTS = (
    Fault("kill", "kill -9 of a random rank at a random time", 30, processes.killed),
    Fault("start-up", "kill -9 of a rank while it starts", 10, processes.killed_starting),
    Fault("stuck", "SIGSTOP of a rank: alive but stuck", 5, processes.stuck),
    Fault("told", "SIGTERM of one rank", 10, processes.told_to_end),
    Fault("save", "kill -9 inside a checkpoint save", 30, processes.killed_in_a_save),
    Fault("link-5s", "a host's link down for 5 s", 5, links.cut_for_a_while),
    Fault("link-down", "a host's link down for ever, both hosts again", 5, links.cut_for_ever),
    Fault("host-lost", "a host's link down for ever, on with the other host", 3, links.host_lost, at_once=1),
    Fault("disk-full", "disk full during a save", 5, storage.disk_full, at_once=3),
    Fault("flipped-bit", "one flipped bit in each kind of checkpoint file", storage.KINDS, storage.flipped_bit),
    Fault("truncated", "each kind of checkpoint file truncated", storage.KINDS, storage.truncated),
    Fault("nan", "NaN batch", 5, values.nan_batch),
    Fault("nan-row", "NaN in five batches in a row", 3, values.nan_batches, at_once=3),
    Fault("parameter", "a replica's parameter changed in memory", 3, values.flipped_parameter, at_once=3),
    Fault("record", "a corrupt record", 5, values.cut_record),
    Fault("evaluation", "kill -9 during an evaluation", 5, moments.killed_in_evaluation),
    Fault("last-save", "kill -9 inside the last save", 5, moments.killed_in_the_last_save, at_once=1),
    Fault("read-only", "checkpoints on a read-only file system for a save", 5, storage.read_only),
    Fault("emptied", "newest checkpoint replaced by an empty directory", 3, storage.emptied, at_once=3),
    Fault("devices", "told to end, on with 3 devices instead of 8, and back", 4, moments.on_other_devices, at_once=4),
    Fault("cut-2x2", "a host's link down for 5 s, hierarchical, 2x2", 3, links.cut_in_a_hierarchy, at_once=3),
    Fault("lossy-2x2", "a host's link drops packets, hierarchical, 2x2", 3, links.lossy_in_a_hierarchy, at_once=3),
    Fault("second-run", "a second run on the same workdir", 4, processes.second_run, at_once=2),
    Fault("keeper", "kill -9 of the launcher's keeper, then of a rank", 5, launchers.keeper_killed),
    Fault("launcher-stopped", "SIGSTOP of the launcher, then SIGCONT", 5, launchers.launcher_stopped),
    Fault("launcher", "kill -9 of the launcher", 5, launchers.launcher_killed),
    Fault("two-starts", "two starts at one instant on the same workdir", 5, launchers.two_starts),
)


def run_round(fault: Fault, numbers: Sequence[int], seed: int, out: Path) -> list[Tried]:
    """A job that meets the fault as often as there are numbers; the tries, whatever became of it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{fault.name}-", dir=out))
    draw = random.Random(f"{seed} {fault.name} {numbers[0]}")
    job = Round(draw, len(numbers), numbers[0], folder, Unbroken(out))
    try:
        outcomes = list(fault.plant(job))
        started, compiled = _restarts(job.workdir)
    except (Unmet, InputError, OSError) as error:
        outcomes = [Outcome(False, 0, None, None, str(error))] * len(numbers)
        started = compiled = None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not all(outcome.survived and outcome.same is not False for outcome in outcomes):
        said = "\n\n".join(run.text for run in job.jobs)
        (out / f"failed-{fault.name}-{numbers[0]}.txt").write_text(f"{outcomes}\n{said}\n")
    load = os.getloadavg()[0]
    return [
        Tried(fault.name, number, seed, *outcome, started, compiled, load)
        for number, outcome in zip(numbers, outcomes, strict=True)
    ]


def _restarts(workdir: Path) -> tuple[float | None, float | None]:
    """Seconds of start-up and of compilation in the attempts after the first, the medians."""
    ledger = workdir / "ledger.jsonl"
    later = [attempt for attempt in read_ledger(ledger)[1:] if attempt.first] if ledger.exists() else []
    if not later:
        return None, None
    start_up, compiling = (
        statistics.median(attempt.seconds.get(kind, 0.0) for attempt in later) for kind in ("start-up", "compile")
    )
    return round(start_up, 2), round(compiling, 2)


def rounds(
    faults: Sequence[Fault], args: argparse.Namespace, done: Sequence[Tried]
) -> Iterator[tuple[Fault, list[int]]]:
    """The faults, each with the numbers of the tries that one job is to make."""
    for fault in faults:
        left = kept.missing(done, fault.name, args.seed, args.first, args.tries or fault.tries)
        for start in range(0, len(left), fault.at_once):
            yield fault, left[start : start + fault.at_once]


def measure(faults: Sequence[Fault], args: argparse.Namespace, out: Path) -> list[Tried]:
    """Make the tries that were not made yet; all that there are then."""
    path = out / "tries.jsonl"
    for fault, numbers in rounds(faults, args, kept.read(path)):
        made = run_round(fault, numbers, args.seed, out)
        kept.append(path, made)
        for each in made:
            print(f"{each._asdict()}", file=sys.stderr, flush=True)
    names = {fault.name for fault in faults}
    return [each for each in kept.read(path) if each.fault in names]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--fault", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--tries", type=int, help="of each, instead of as many as the table of results has")
    parser.add_argument("--first", type=int, default=0, help="number of the first; a round's draws follow from its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where tries are kept; none: nowhere")
    parser.add_argument("--json", action="store_true", help="the tries, an object a line, instead of a table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; status 1 if anything was not survived."""
    args = parse(argv)
    faults = [fault for fault in FAULTS if fault.name in args.fault]
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        out = Path(scratch) if args.out is None else args.out.absolute()
        out.mkdir(parents=True, exist_ok=True)
        tries = measure(faults, args, out)
    if args.json:
        print(*(json.dumps(each._asdict()) for each in tries), sep="\n")
    else:
        print(f"seed {args.seed}\n\n{kept.table(tries, {fault.name: fault.title for fault in faults})}\n")
        print(kept.where_time_goes(tries))
    return int(not all(each.survived and each.same is not False for each in tries))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all that was started ends
    sys.exit(main())
