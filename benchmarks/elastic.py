"""Hosts that vanish and come back while a job trains on them: what is lost, and is every example seen exactly once?

    sudo python benchmarks/elastic.py [--json] [--keep FOLDER]

`jaxnet launch ssh` trains digits on four hosts of the lab, each with an ssh server, from a fifth. The links of two of
them, one being that of process 0, are cut; the job goes on with the other two. Then one link is mended, and it goes on
with three to its end. All that a run does not lose must be that of an unbroken run in one process: the order of the
examples exactly, the loss but for rounding. Needs root, iproute2, nsenter and an ssh server; takes three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.elastic_digits import BATCH, SEED, STEPS  # noqa: E402 (needs the path)
from jaxnet.data import Digits  # noqa: E402
from jaxnet.data.batches import example_ids  # noqa: E402

CUT_AT = 45  # steps
WORKERS = ("host1", "host2", "host3", "host4")  # host0 is the launcher's
CUT, MENDED = ("host1", "host3"), "host3"
_LIMIT_SECONDS = 400.0


# ---- On the hosts of the lab -------------------------------------------------------------------------------------


class Launched:
    """The launcher, and when it said what."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "jaxnet", "launch", "ssh", "--hosts", ",".join(WORKERS)]
        command += ["--max-restarts", "5", "--min-hosts", "2", "--env", "ELASTIC_IDS"]
        command += ["--ssh-config", f"{folder}/ssh_config", "--", *training(folder / "run")]
        environment = os.environ | {"ELASTIC_IDS": str(folder)}
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        self.said: list[tuple[float, str]] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream,))
            for stream in (self._process.stdout, self._process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any) -> None:
        for line in stream:
            text = line.decode(errors="replace").rstrip()
            self.said.append((time.monotonic(), text))
            if text.startswith(("launch:", "error:")):
                print(text, file=sys.stderr, flush=True)

    def said_that(self, text: str) -> Callable[[], bool]:
        """Whether such a line has come."""
        return lambda: any(text in line for _, line in self.said)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition, which the end of the launcher makes impossible."""
        end = time.monotonic() + _LIMIT_SECONDS
        while not holds():
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"error: what was waited for did not come: {self.said[-20:]}")
            time.sleep(0.05)

    def finish(self) -> int:
        """Wait for the end; the status."""
        status = self._process.wait(_LIMIT_SECONDS)
        for reader in self._readers:
            reader.join()
        return status


def training(workdir: Path) -> list[str]:
    """The command of the run."""
    return [
        str(ROOT / "train.py"),
        "--config",
        str(ROOT / "benchmarks" / "elastic_digits.py"),
        "--workdir",
        str(workdir),
    ]


def inside(folder: Path) -> int:
    """What runs on each host of the lab: a server on the workers, the launcher and the faults on host0."""
    from support.sshd import await_server, serve

    host = int(os.environ["JAX_PROCESS_ID"])
    if host > 0:
        serve(folder, host)
        return 0
    for name in WORKERS:
        await_server(name)
    launched, metrics = Launched(folder), folder / "run" / "metrics.jsonl"
    launched.until(lambda: len(steps_of(metrics)) >= CUT_AT)
    for name in CUT:
        set_link(name, "down")
    cut = time.monotonic()
    launched.until(launched.said_that("launch: attempt 2 on "))
    so_far = len(steps_of(metrics))
    launched.until(lambda: len(steps_of(metrics)) >= so_far + 10)
    set_link(MENDED, "up")
    mended = time.monotonic()
    status = launched.finish()
    (folder / "seen.json").write_text(
        json.dumps({"status": status, "cut": cut, "mended": mended, "said": launched.said})
    )
    return status


def set_link(host: str, state: str) -> None:
    """At the switch, whose network is that of the lab's first process."""
    port = host.replace("host", "port")
    subprocess.run(["nsenter", "--net=/proc/1/ns/net", "ip", "link", "set", port, state], check=True)


def steps_of(metrics: Path) -> list[dict[str, Any]]:
    """The lines of training steps so far."""
    if not metrics.exists():
        return []
    lines = [line for line in metrics.read_text().split("\n")[:-1] if line]
    return [found for found in map(json.loads, lines) if found["split"] == "train"]


# ---- What became of it -------------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """One start: on which hosts, from which step on, up to which, how it ended, and what of it is in the final run."""

    hosts: str
    after: int
    step: int
    kept: int
    how: str


def attempts_of(said: list[tuple[float, str]]) -> list[Attempt]:
    """The attempts, as the launcher and process 0 tell them."""
    lines = [line for _, line in said]
    hosts = {int(number): names for number, names in found(r"launch: attempt (\d+) on ([\w, ]+)", lines)}
    ends = found(r"launch: attempt \d+: (.*?),? (?:at step|before its) (\d+)?(.*)", lines)
    starts = [0, *(int(step) for (step,) in found(r".* continuing .* from step (\d+)", lines)), STEPS]
    if len(ends) != len(starts) - 1:
        raise SystemExit(f"the attempts cannot be told apart: {ends}, {starts}")
    return [
        Attempt(
            hosts.get(number + 1, ", ".join(WORKERS)), starts[number], int(step or 0), starts[number + 1], how + rest
        )
        for number, (how, step, rest) in enumerate(ends)
    ]


def found(pattern: str, lines: list[str]) -> list[tuple[str, ...]]:
    """The groups in each line that begins like this."""
    return [match.groups() for line in lines if (match := re.match(pattern, line))]


def served(folder: Path, attempts: list[Attempt]) -> np.ndarray:
    """The examples of the final run in the order of its steps, from the lists that its processes wrote."""
    stream: list[str] = []
    for number, attempt in enumerate(attempts, start=1):
        count = len(attempt.hosts.split(", "))
        lists = [(folder / f"{number}-{rank}.ids").read_text().splitlines() for rank in range(count)]
        for step in range(attempt.kept - attempt.after):
            for lines in lists:
                stream += lines[step].split()
    return np.array(stream, np.int32)


def epochs_exactly_once(stream: np.ndarray, examples: int) -> tuple[int, int]:
    """Of how many whole epochs in `stream`, how many hold every example exactly once."""
    whole = stream[: len(stream) // examples * examples].reshape(-1, examples)
    return len(whole), int((np.sort(whole, axis=1) == np.arange(examples)).all(axis=1).sum())


def curve(workdir: Path) -> np.ndarray:
    """The loss of every step; of one that was done twice, the later."""
    losses = {line["step"]: line["loss"] for line in steps_of(workdir / "metrics.jsonl")}
    return np.array([losses[step] for step in range(1, STEPS + 1)])


def seconds_after(event: float, said: list[tuple[float, str]], text: str) -> float:
    """From `event` to the first later line with `text`."""
    return next(at for at, line in said if at > event and text in line) - event


def measure(folder: Path) -> dict[str, Any]:
    """Run all, and say what became of it."""
    from support.sshd import missing, write_keys

    if reason := missing():
        raise SystemExit(f"error: {reason}")
    write_keys(folder, hosts=1 + len(WORKERS))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "JAX_PLATFORMS": "cpu"}
    unbroken = training(folder / "unbroken")
    with (folder / "unbroken.log").open("w") as log:
        subprocess.run([sys.executable, *unbroken], env=environment, stdout=log, check=True)
    lab = [sys.executable, "-m", "jaxnet", "lab", "--hosts", str(1 + len(WORKERS)), "--"]
    subprocess.run([*lab, __file__, "--inside", str(folder)], env=environment, check=True)
    seen = json.loads((folder / "seen.json").read_text())
    said, attempts = seen["said"], attempts_of(seen["said"])
    stream, examples = served(folder, attempts), Digits().load("train").num_examples
    whole, right = epochs_exactly_once(stream, examples)
    one, other = curve(folder / "run"), curve(folder / "unbroken")
    noticed = seconds_after(seen["cut"], said, " all start again in ")
    next_step = re.search(r"the next step came ([\d.]+) s later", attempts[0].how)
    grown = seconds_after(seen["mended"], said, " answers again; ")
    return {
        "attempts": [attempt._asdict() for attempt in attempts],
        "seconds_from_cut_until_noticed_and_ended": noticed,
        "seconds_from_failure_to_next_step": float(next_step[1]) if next_step else None,
        "seconds_from_mended_until_asked_to_stop": grown,
        "steps": STEPS,
        "examples_served": len(stream),
        "same_order_as_unbroken": bool((stream == example_ids(SEED, examples, 0, STEPS * BATCH)).all()),
        "whole_epochs": whole,
        "epochs_with_every_example_once": right,
        "largest_loss_difference": float(np.abs(one - other).max()),
        "largest_relative_loss_difference": float((np.abs(one - other) / other).max()),
    }


def table(result: dict[str, Any]) -> str:
    """What a reader wants to see of it."""
    rows = ["| attempt | hosts | steps | done | in the final run | how it ended |", "|---|---|---|---|---|---|"]
    for number, attempt in enumerate(result["attempts"], start=1):
        place = f"{attempt['after'] + 1}-{attempt['step']}"
        kept = attempt["kept"] - attempt["after"]
        rows.append(
            f"| {number} | {attempt['hosts']} | {place} | {attempt['step'] - attempt['after']} | {kept} |"
            f" {attempt['how']} |"
        )
    rest = [f"{name.replace('_', ' ')}: {value}" for name, value in result.items() if name != "attempts"]
    return "\n".join([*rows, "", *rest])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave what the runs wrote in FOLDER")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return inside(args.inside)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        result = measure(folder)
    print(json.dumps(result, indent=2) if args.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
