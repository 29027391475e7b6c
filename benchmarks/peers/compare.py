"""jaxnet's strategies beside PyTorch DDP: the same workload, on the same hosts, in alternate rounds of one run.

Runs once a host, under `jaxnet launch local` or `jaxnet lab`. On each host it keeps one long-lived worker of each
framework and lets them time one variant after the other, never two at once: a round ends on all hosts
together, and a worker that is not asked waits for its next line. Process 0 prints the table.

    jaxnet lab --hosts 2 --rate 1gbit --cpus-per-host 1 -- benchmarks/peers/compare.py --threads 1
    jaxnet launch local --processes 2 -- benchmarks/peers/compare.py --model small --rounds 3
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers.rounds import in_turn
from benchmarks.peers.workers import PEERS, Worker, add_torch_python, find_torch_python
from jaxnet.errors import InputError, exit_cleanly

_FULL_PRECISION = ("ddp-1MiB", "ddp-4MiB", "ddp-25MiB", "ddp-1MiB-static", "ddp-4MiB-static")
_HANGS = "ddp-powersgd"  # its hook's callbacks may wait for each other: in a worker of its own, which may be ended
_PEERS = (*_FULL_PRECISION, "ddp-fp16", _HANGS)
_LIMIT_SECONDS = 120
_SPENT = ("user", "system", "interrupts", "idle")
_STRATEGIES = ("xla", "per_leaf", "ddp:4MiB", "flat")


def main() -> int:
    args = _arguments()
    if "JAX_PROCESS_ID" not in os.environ:
        raise InputError("compare.py runs once a host: start it with jaxnet lab or jaxnet launch local")
    torch_python = find_torch_python(args.torch_python)
    common = ["--model", args.model, *(["--batch", str(args.batch)] if args.batch else [])]
    ours = [word for label in args.strategy for word in ("--strategy", label)]
    peers = [name for name in ("torch-compute", *args.peer) if name != _HANGS]
    theirs = [word for name in peers for word in ("--variant", name)]
    threads = ["--threads", str(args.threads)] if args.threads else []
    turns = [("jaxnet", "jaxnet-compute"), *(("jaxnet", label) for label in args.strategy)]
    turns += [("torch", name) for name in peers]
    torch_command = [torch_python, str(PEERS / "ddp.py"), "--serve", *common, *threads]
    with contextlib.ExitStack() as stack:
        start = lambda *given: stack.enter_context(Worker(*given))  # noqa: E731
        workers = {
            "jaxnet": start("jaxnet", [sys.executable, str(PEERS / "jaxnet_worker.py"), *common, *ours]),
            "torch": start("PyTorch", [*torch_command, *theirs]),
        }
        if _HANGS in args.peer:
            port = {"MASTER_PORT": str(int(os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")[2]) + 2)}
            workers[_HANGS] = start(_HANGS, [*torch_command, "--variant", _HANGS], port, _LIMIT_SECONDS)
            turns.append((_HANGS, _HANGS))
        times: dict[str, list[float]] = {variant: [] for _, variant in turns}
        spent: dict[str, list[list[float]]] = {variant: [] for _, variant in turns}
        for _, (framework, variant) in in_turn(turns, args.rounds):
            before = processor_milliseconds()
            times[variant].append(workers[framework].milliseconds(variant, args.steps_per_round))
            after = processor_milliseconds()
            ran = args.steps_per_round + variant.startswith("priority")  # a step more begins its rounds
            spent[variant].append([(b - a) / ran for a, b in zip(before, after, strict=True)])
    if os.environ["JAX_PROCESS_ID"] == "0":
        print(json.dumps(times) if args.json else table(times, spent))
    return 0


def processor_milliseconds() -> list[float]:
    """What the cores of this process have spent since the machine started, by `_SPENT`; empty where it isn't told."""
    with contextlib.suppress(OSError):
        own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.split()[0] in own]
        user, nice, system, idle, wait, irq, softirq = (sum(int(row[column]) for row in rows) for column in range(1, 8))
        tick = 1e3 / os.sysconf("SC_CLK_TCK")
        return [tick * ticks for ticks in (user + nice, system, irq + softirq, idle + wait)]
    return []


def table(times: dict[str, list[float]], spent: dict[str, list[list[float]]]) -> str:
    """Milliseconds a step; then how many times as fast as others, by ratios of medians; then, if known, of which
    processor time, on the host of process 0."""
    median = {name: statistics.median(values) for name, values in times.items()}
    ddp = min((median[name] for name in _FULL_PRECISION if name in median), default=None)
    known = _SPENT if any(row for rounds in spent.values() for row in rounds) else ()
    head = f"{'variant':<16} {'median':>9} {'min':>9} {'spread':>7} {'x best ddp':>11} {'x xla':>7}"
    lines = [head + "".join(f" {name:>10}" for name in known)]
    for name, values in times.items():
        if math.isinf(median[name]):
            lines.append(f"{name:<16} no answer within {_LIMIT_SECONDS} s")
            continue
        spread = 100 * (max(values) - min(values)) / median[name]
        ratios = [f"{other / median[name]:.2f}" if other else "-" for other in (ddp, median.get("xla"))]
        line = f"{name:<16} {median[name]:>9.2f} {min(values):>9.2f} {spread:>6.0f}% {ratios[0]:>11} {ratios[1]:>7}"
        parts = [statistics.median(column) for column in zip(*spent[name], strict=True)] if known else []
        lines.append(line + "".join(f" {part:>10.0f}" for part in parts))
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dense")
    parser.add_argument("--batch", type=int, help="examples a host; default: the model's")
    parser.add_argument("--strategy", action="append", help=f"NAME[:BYTES]; default: {' '.join(_STRATEGIES)}")
    parser.add_argument("--peer", action="append", choices=_PEERS, help="default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps-per-round", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of PyTorch; 1 where each host has one core")
    add_torch_python(parser)
    parser.add_argument("--json", action="store_true", help="print the times of every round")
    args = parser.parse_args()
    args.strategy = args.strategy or list(_STRATEGIES)
    args.peer = args.peer or list(_PEERS)
    return args


if __name__ == "__main__":
    exit_cleanly(main)
