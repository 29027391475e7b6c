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
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers.rounds import in_turn
from jaxnet.errors import InputError, exit_cleanly

_HERE = Path(__file__).resolve().parent
_FULL_PRECISION = ("ddp-1MiB", "ddp-4MiB", "ddp-25MiB", "ddp-1MiB-static", "ddp-4MiB-static")
_HANGS = "ddp-powersgd"  # its hook's callbacks may wait for each other: in a worker of its own, which may be ended
_PEERS = (*_FULL_PRECISION, "ddp-fp16", _HANGS)
_LIMIT_SECONDS = 120
_STRATEGIES = ("xla", "per_leaf", "ddp:4MiB", "flat")


class Worker:
    """A process that times a round of one variant when asked; killed on leaving, or when it is late.

    Args:
        name: for messages.
        command: that starts it.
        environment: variables besides those of this process.
        limit: seconds until an answer; None: it may take its time. A worker that is late, or that ends although it has
            a limit, is lost: it answers no more.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] = MappingProxyType({}),
        limit: float | None = None,
    ) -> None:
        self.name = name
        self.limit = limit
        self.lost = False
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()  # it is warm

    def milliseconds(self, variant: str, steps: int) -> float:
        """Of a step; infinite if the worker is lost."""
        if self.lost:
            return math.inf
        assert self.process.stdin is not None
        try:
            print(variant, steps, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            self._ended()
        return float(self._answer().get("ms", math.inf))

    def _answer(self) -> dict[str, Any]:
        """Its next line of JSON; libraries print other lines too."""
        assert self.process.stdout is not None
        timer = threading.Timer(self.limit or threading.TIMEOUT_MAX, self._lose)
        timer.daemon = True
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
                print(line, end="", file=sys.stderr)
        finally:
            timer.cancel()
        # Of two that wait for each other the one that is ended first takes the other's connection with it.
        self.lost = self.lost or self.limit is not None
        return {} if self.lost else self._ended()

    def _lose(self) -> None:
        self.lost = True
        self.process.kill()

    def _ended(self) -> Any:
        raise InputError(f"the worker of {self.name} ended with status {self.process.wait()}; see its message above")

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def main() -> int:
    args = _arguments()
    if "JAX_PROCESS_ID" not in os.environ:
        raise InputError("compare.py runs once a host: start it with jaxnet lab or jaxnet launch local")
    if not Path(args.torch_python).is_file():
        raise InputError(f"no Python at {args.torch_python}: make it with benchmarks/peers/environment.sh")
    common = ["--model", args.model, *(["--batch", str(args.batch)] if args.batch else [])]
    ours = [word for label in args.strategy for word in ("--strategy", label)]
    peers = [name for name in ("torch-compute", *args.peer) if name != _HANGS]
    theirs = [word for name in peers for word in ("--variant", name)]
    threads = ["--threads", str(args.threads)] if args.threads else []
    turns = [("jaxnet", "jaxnet-compute"), *(("jaxnet", label) for label in args.strategy)]
    turns += [("torch", name) for name in peers]
    torch_command = [args.torch_python, str(_HERE / "ddp.py"), "--serve", *common, *threads]
    with contextlib.ExitStack() as stack:
        start = lambda *given: stack.enter_context(Worker(*given))  # noqa: E731
        workers = {
            "jaxnet": start("jaxnet", [sys.executable, str(_HERE / "jaxnet_worker.py"), *common, *ours]),
            "torch": start("PyTorch", [*torch_command, *theirs]),
        }
        if _HANGS in args.peer:
            port = {"MASTER_PORT": str(int(os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")[2]) + 2)}
            workers[_HANGS] = start(_HANGS, [*torch_command, "--variant", _HANGS], port, _LIMIT_SECONDS)
            turns.append((_HANGS, _HANGS))
        times: dict[str, list[float]] = {variant: [] for _, variant in turns}
        for _, (framework, variant) in in_turn(turns, args.rounds):
            times[variant].append(workers[framework].milliseconds(variant, args.steps_per_round))
    if os.environ["JAX_PROCESS_ID"] == "0":
        print(json.dumps(times) if args.json else table(times))
    return 0


def table(times: dict[str, list[float]]) -> str:
    """Milliseconds a step; the last columns say how many times as fast as others, by ratios of medians."""
    median = {name: statistics.median(values) for name, values in times.items()}
    ddp = min((median[name] for name in _FULL_PRECISION if name in median), default=None)
    lines = [f"{'variant':<16} {'median':>9} {'min':>9} {'spread':>7} {'x best ddp':>11} {'x xla':>7}"]
    for name, values in times.items():
        if math.isinf(median[name]):
            lines.append(f"{name:<16} no answer within {_LIMIT_SECONDS} s")
            continue
        spread = 100 * (max(values) - min(values)) / median[name]
        ratios = [f"{other / median[name]:.2f}" if other else "-" for other in (ddp, median.get("xla"))]
        lines.append(
            f"{name:<16} {median[name]:>9.2f} {min(values):>9.2f} {spread:>6.0f}% {ratios[0]:>11} {ratios[1]:>7}"
        )
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
    parser.add_argument("--torch-python", default=".venv-torch/bin/python", help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="print the times of every round")
    args = parser.parse_args()
    args.strategy = args.strategy or list(_STRATEGIES)
    args.peer = args.peer or list(_PEERS)
    return args


if __name__ == "__main__":
    exit_cleanly(main)
