"""Seconds from a command to the first step of a run: one process and two on the same cores, caches empty and full.

    python -m benchmarks.start_up [--config configs/digits.py] [--rounds 7] [--against CHECKOUT] [--json]

An empty compile cache is that of a first start, a full one that of a restart. `--against` starts another checkout of
jaxnet in the same rounds, in turn. Also told: commands that train nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compiling import ROOT

_LIMIT_SECONDS = 300.0
_COMMANDS = (["--help"], ["models"])


def first_step(checkout: Path, config: str, processes: int, cache: Path) -> float:
    """Seconds until the first line of metrics is there; the run is then killed."""
    train = [sys.executable, "-m", "jaxnet", "train", "--config", config]
    launch = [sys.executable, "-m", "jaxnet", "launch", "local", "--processes", str(processes), "--"]
    with tempfile.TemporaryDirectory() as workdir:
        metrics = Path(workdir) / "metrics.jsonl"
        command = [*train, "--workdir", workdir, "log.every_steps=1", f"compile_cache={cache}"]
        begun = time.perf_counter()
        run = subprocess.Popen(
            command if processes == 1 else launch + command,
            env=os.environ | {"PYTHONPATH": str(checkout)},
            cwd=checkout,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not (metrics.exists() and metrics.stat().st_size):
                taken = time.perf_counter() - begun
                if run.poll() is not None or taken > _LIMIT_SECONDS:
                    raise SystemExit(f"{' '.join(command)} has made no step after {taken:.0f} s")
                time.sleep(0.005)
            return time.perf_counter() - begun
        finally:
            run.terminate()
            run.wait()


def command_seconds(checkout: Path, command: Sequence[str]) -> float:
    """Of a command that trains nothing."""
    begun = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    subprocess.run([sys.executable, "-m", "jaxnet", *command], env=environment, capture_output=True, check=True)
    return time.perf_counter() - begun


def measured(checkouts: Sequence[Path], config: str, rounds: int) -> dict[str, dict[str, float]]:
    """Medians by checkout and case."""
    seconds: dict[Path, dict[str, list[float]]] = {checkout: defaultdict(list) for checkout in checkouts}
    for _ in range(rounds):
        for checkout in checkouts:
            for processes in (1, 2):
                with tempfile.TemporaryDirectory() as cache:
                    for filled in ("empty", "full"):
                        case = f"{processes} process{'es' * (processes > 1)}, cache {filled}"
                        seconds[checkout][case].append(first_step(checkout, config, processes, Path(cache)))
            for command in _COMMANDS:
                seconds[checkout][f"jaxnet {' '.join(command)}"].append(command_seconds(checkout, command))
    return {
        str(checkout): {case: statistics.median(each) for case, each in cases.items()}
        for checkout, cases in seconds.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="configs/digits.py", metavar="FILE", help="in each checkout")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of jaxnet")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    others = [args.against.resolve()] if args.against else []
    found = measured([*others, ROOT], args.config, args.rounds)
    if args.json:
        print(json.dumps(found))
        return 0
    print(f"| seconds | {' | '.join(found)} |\n| --- |{' --- |' * len(found)}")
    for case in found[str(ROOT)]:
        print(f"| {case} | {' | '.join(f'{cases[case]:.2f}' for cases in found.values())} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
