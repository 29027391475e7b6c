"""What users type and what becomes of files, drawn at random: each case must train, or be refused by one line.

    python -m benchmarks.fuzz [--cases 2000] [--first 0] [--seconds S] [--workers 2] [--limit 120] [--train-every 10]
    python -m benchmarks.fuzz --files [--cases 2000] [--first 0] [--seconds S] [--limit 120]

A case is a config file, overrides and sometimes a second run in the same workdir, all from one number, the seed:
`--first SEED --cases 1` runs a failure again and prints it whole. A quarter of the cases have a part that is wrong in
itself (`fuzzing/wrong`), two fifths an odd value at a key of a config that comes along or of a small one of each task
and data set (`fuzzing/templates.py`), the others combine what is plausible.

Afterwards no file may be half-written, every checkpoint must be good, nothing may have been written outside the workdir
(home, current directory and temporary files are a folder of the worker's own), and no case may have taken more than
60 s of the processor. Every third seed runs on one device, the others on four. Of ten cases nine end where their
program would be compiled, which takes a tenth of the time; `--train-every 1` trains all that may be trained.

With `--files` a case is a file of a run, weights, an exported program or a picture that is harmed, and a command that
reads it (`benchmarks/fuzzing/files.py`): status 0, 1 or 2 without a traceback, within 20 s, nothing written elsewhere.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.fuzzing.draw import all_kinds, draw_case

ROOT = Path(__file__).parents[1]
_FRESH_AFTER = 60  # cases, after which a process has compiled enough
_MOST_SECONDS = 60.0  # of the processor, for one case: the longest takes 16 on a quiet machine


class Worker:
    """A process that runs cases on so many devices; ended and started again when one hangs or ends it."""

    def __init__(self, devices: int, limit: float, module: str = "benchmarks.fuzzing.trial") -> None:
        self._devices, self._limit, self._module = devices, limit, module
        self._home = tempfile.TemporaryDirectory(prefix="fuzz-")
        self._said = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115  as long as this worker
        self._process: subprocess.Popen[str] | None = None
        self._done = 0
        self.said: dict[str, Any] = {}

    def verdict(self, seed: int, trains: bool = True) -> str:
        """What became of the case of `seed`; without `trains`, it ends where its program would be compiled."""
        if self._done >= _FRESH_AFTER:
            self._end()
        with tempfile.TemporaryDirectory(prefix="case-", dir=self._home.name) as folder:
            process = self._running()
            assert process.stdin is not None
            process.stdin.write(json.dumps({"seed": seed, "folder": folder, "trains": trains}) + "\n")
            process.stdin.flush()
            self._done += 1
            return self._answer(process)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [sys.executable, "-m", self._module, str(self._devices)]
            home = self._home.name
            environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HOME": home, "TMPDIR": home, "PYTHONPATH": str(ROOT)}
            self._process = subprocess.Popen(
                command,
                cwd=home,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
            )
            self._done = 0
        return self._process

    def _answer(self, process: subprocess.Popen[str]) -> str:
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        assert process.stdout is not None
        threading.Thread(target=lambda read=process.stdout: lines.put(read.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=self._limit)
        except queue.Empty:
            self._end()
            return f"FAILED: no end after {self._limit:g} s"
        if not line:
            status = process.wait()
            self._end()
            self._said.seek(0)
            return f"FAILED: the process ended with status {status}: {self._said.read()[-300:]!r}"
        self.said = answer = json.loads(line)
        if answer["seconds"] > _MOST_SECONDS and not answer["verdict"].startswith("FAILED"):
            return f"FAILED: it took {answer['seconds']:.0f} s of the processor, and then {answer['verdict']}"
        return str(answer["verdict"])

    def close(self) -> None:
        """End the process, and remove what it had for a home."""
        self._end()
        self._said.close()
        self._home.cleanup()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def run(seeds: Sequence[int], workers: int, limit: float, until: float, train_every: int) -> dict[int, str]:
    """The verdicts by seed, of as many cases as there is time for."""
    verdicts: dict[int, str] = {}
    of_devices = {devices: iter([seed for seed in seeds if devices_of(seed) == devices]) for devices in (1, 4)}
    lock = threading.Lock()

    def work(devices: int) -> None:
        worker = Worker(devices, limit)
        while time.monotonic() < until:
            with lock:
                seed = next(of_devices[devices], None)
            if seed is None:
                break
            trains = seed % train_every == 0
            found = worker.verdict(seed, trains)
            verdicts[seed] = "taken" if found == "trained" and not trains else found
            if verdicts[seed].startswith("FAILED"):
                show(seed, verdicts[seed])
        worker.close()

    threads = [threading.Thread(target=work, args=(1 if index % 2 else 4,)) for index in range(max(2, workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return verdicts


def run_files(seeds: Sequence[int], limit: float, until: float) -> dict[int, str]:
    """The verdicts by seed on files that are harmed; each failure is printed."""
    verdicts: dict[int, str] = {}
    worker = Worker(1, limit, "benchmarks.fuzzing.files")
    for seed in seeds:
        if time.monotonic() > until:
            break
        worker.said = {}
        verdicts[seed] = worker.verdict(seed)
        if verdicts[seed].startswith("FAILED") or len(seeds) == 1:
            print(json.dumps({"seed": seed, **worker.said, "verdict": verdicts[seed]}, indent=1), flush=True)
    worker.close()
    return verdicts


def devices_of(seed: int) -> int:
    """On how many devices the case of `seed` runs."""
    return 1 if seed % 3 == 0 else 4


def show(seed: int, verdict: str) -> None:
    """Print a case with what became of it."""
    case = draw_case(seed, all_kinds())
    print(f"seed {seed}: {verdict}\n  {case.about}\n  {case.overrides!r:.600} again={case.again!r:.600}", flush=True)


def main() -> int:
    """The command line; status 1 if any case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="harm files, instead of drawing configs")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so many")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time, at least 2")
    parser.add_argument(
        "--train-every", type=int, default=10, metavar="N", help="of so many cases, how many train: one"
    )
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a case counts as hanging")
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.cases)
    until = time.monotonic() + args.seconds
    if args.files:
        verdicts = run_files(seeds, args.limit, until)
    else:
        verdicts = run(seeds, args.workers, args.limit, until, args.train_every)
    counts = collections.Counter(verdict.split(":")[0] for verdict in verdicts.values())
    if args.cases == 1 and not args.files:
        show(args.first, verdicts[args.first])
    print(json.dumps({"cases": len(verdicts), **counts}))
    return int(counts["FAILED"] > 0)


if __name__ == "__main__":
    sys.exit(main())
