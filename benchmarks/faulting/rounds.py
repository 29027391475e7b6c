"""A round: one job that meets a fault several times, and is then compared with one that met none."""

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.faulting import digits
from benchmarks.faulting.story import failures
from benchmarks.faulting.watched import Unmet, Watched
from jaxnet.checkpoints import find_checkpoint, read_leaves

ROOT = Path(__file__).parents[2]
CONFIG = digits.__file__
SHORT_LIMITS = ("watchdog.floor_seconds=5", "watchdog.factor=10", "watchdog.other_seconds=45")
_TOLERANCE = 1e-4  # of parameters trained in part on another number of devices
_CLUSTER = ("JAX", "SLURM", "OMPI", "XLA", "TPU", "KUBERNETES", "FAULTS")

State = dict[str, np.ndarray]


class Outcome(NamedTuple):
    """What became of one try.

    Attributes:
        survived: whether the run went on to its end, having said what had to be said.
        lost: steps that were done again, or not at all.
        seconds: from the fault to the next step; None where another fault came before it.
        same: whether the final state has the bits of an unbroken run; None where it need not.
        note: for a person.
    """

    survived: bool
    lost: int
    seconds: float | None
    same: bool | None = None
    note: str = ""


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    Attributes:
        name: on the command line.
        title: in the table.
        tries: how many are asked for.
        plant: runs a round; gives an outcome for each of its tries.
        at_once: tries that one job meets.
    """

    name: str
    title: str
    tries: int
    plant: "Callable[[Round], Sequence[Outcome]]"
    at_once: int = 5


@dataclass(frozen=True)
class Unbroken:
    """Final states of runs that met no fault, made when they are first needed and kept in `out`."""

    out: Path
    _states: dict[str, State] = field(default_factory=dict)

    def state(self, devices: int = 1, *overrides: str) -> State:
        """That of two processes of so many devices."""
        name = "-".join([f"unbroken-2x{devices}", *overrides])
        workdir = self.out / name
        if not workdir.exists():
            with tempfile.TemporaryDirectory(dir=self.out) as folder:
                made = Path(folder) / "run"
                command = launch_command(train_command(made, *overrides), 0, devices)
                with Watched(command, environment(Path(folder))) as run:
                    if run.finish() != 0:
                        raise Unmet("the unbroken run failed")
                made.rename(workdir)
        if name not in self._states:
            self._states[name] = final_state(workdir / "checkpoints")
        return self._states[name]


@dataclass(frozen=True)
class Round:
    """What a fault may use.

    Attributes:
        draw: random numbers of this round.
        count: how many tries it is to make.
        first: the number of the first.
        folder: of this round alone.
        unbroken: the runs to compare with.
    """

    draw: random.Random
    count: int
    first: int
    folder: Path
    unbroken: Unbroken
    jobs: list[Watched] = field(default_factory=list)

    @property
    def workdir(self) -> Path:
        """Of the run."""
        return self.folder / "run"

    def launch(
        self,
        *overrides: str,
        restarts: int = 0,
        devices: int = 1,
        processes: int = 2,
        config: str = CONFIG,
        **planted: str,
    ) -> Watched:
        """The run, started on two processes, or on so many."""
        command = train_command(self.workdir, *overrides, config=config)
        return self.start(launch_command(command, restarts, devices, processes), **planted)

    def start(self, command: Sequence[str], **planted: str) -> Watched:
        """Any command, started; its lines are kept for who looks for the reason of a failure."""
        self.jobs.append(Watched(command, environment(self.folder) | planted))
        return self.jobs[-1]

    def same(self, devices: int = 1, *overrides: str) -> bool:
        """Whether the final state has the bits of an unbroken run."""
        got, wanted = final_state(self.workdir / "checkpoints"), self.unbroken.state(devices, *overrides)
        return got.keys() == wanted.keys() and all(got[name].tobytes() == wanted[name].tobytes() for name in wanted)

    def near(self, devices: int = 1, *overrides: str) -> str:
        """How far the parameters are from those of an unbroken run; Unmet if further than rounding may bring them."""
        got, wanted = final_state(self.workdir / "checkpoints"), self.unbroken.state(devices, *overrides)
        furthest = max(float(np.abs(got[name] - wanted[name]).max()) for name in wanted if name.startswith("params"))
        if furthest > _TOLERANCE:
            raise Unmet(f"parameters differ by {furthest:.1e} from those of an unbroken run")
        return f"parameters within {furthest:.1e}"

    def summary(self) -> dict[str, Any]:
        """Of the run, which has ended."""
        read: dict[str, Any] = json.loads((self.workdir / "summary.json").read_text())
        return read

    def finished(self) -> bool:
        """Whether the run came to its last step."""
        return bool(self.summary()["finished"])

    def restarted(self, run: Watched, expected: Sequence[tuple[int, str, float]]) -> list[Outcome]:
        """Outcomes of a job that its launcher started again.

        `expected` has for each try the rank that had to fail, how, and the seconds until that was noticed.
        """
        ended_well = run.finish() == 0 and self.finished()
        same = ended_well and self.same()
        met = failures(run.lines)
        outcomes = []
        for number, (rank, how, noticed) in enumerate(expected):
            failure = met[number] if number < len(met) else None
            if failure is None:
                outcomes.append(Outcome(False, 0, None, same, "the launcher does not report it"))
                continue
            seconds = None if failure.seconds is None else failure.seconds + noticed
            right = (failure.rank, failure.how) == (rank, how) and len(met) == len(expected)
            note = "" if right else f"reported: rank {failure.rank} {failure.how}"
            outcomes.append(Outcome(ended_well and right, failure.lost, seconds, same, note))
        return outcomes


def launch_command(command: Sequence[str], restarts: int, devices: int, processes: int = 2) -> list[str]:
    """`jaxnet launch local` of a command."""
    places = ["--processes", str(processes), "--devices-per-process", str(devices), "--max-restarts", str(restarts)]
    return [sys.executable, "-m", "jaxnet", "launch", "local", *places, "--", *command]


def train_command(workdir: Path, *overrides: str, config: str = CONFIG) -> list[str]:
    """The training."""
    return [sys.executable, str(ROOT / "train.py"), "--config", config, "--workdir", str(workdir), *overrides]


def environment(folder: Path) -> dict[str, str]:
    """This process's environment without anything that describes a cluster; temporary files go to `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLUSTER)}
    return kept | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TMPDIR": str(folder)}


def final_state(checkpoints: Path) -> State:
    """Every leaf of the last state, by name; Unmet if the run has not come to its end."""
    found = find_checkpoint(checkpoints)
    if found.step != digits.STEPS:
        raise Unmet(f"the newest checkpoint is of step {found.step}, not of {digits.STEPS}")
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {name: _abstract(text, here) for name, text in found.leaves.items()}
    return {name: np.asarray(leaf) for name, leaf in read_leaves(found, like).items()}


def _abstract(described: str, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    dtype, _, dims = described.rstrip("]").partition("[")
    return jax.ShapeDtypeStruct([int(size) for size in dims.split(",") if size], dtype, sharding=sharding)
