"""kill -9 inside a checkpoint save: is a good checkpoint ever lost?

    python benchmarks/faults_save.py --tries 30

A process restores the newest checkpoint, compares every bit with what its step must hold, and saves on. It is killed at
a moment drawn from the length of a save, after it has said that one begins; then the next process is started.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ELEMENTS = 2_000_000


class Kill(NamedTuple):
    """One kill, and what the process after it found.

    Attributes:
        seconds: from the beginning of the save to the kill.
        saving: the step that was being saved.
        promised: the last step that was known to be saved.
        restored: the step that was restored.
        good: whether every bit of it was right, and no checkpoint was damaged.
    """

    seconds: float
    saving: int
    promised: int
    restored: int
    good: bool

    @property
    def survived(self) -> bool:
        """Whether nothing was lost that had been saved."""
        return self.good and self.promised <= self.restored <= self.saving


def kill_inside_saves(directory: Path, tries: int, seed: int = 0) -> list[Kill]:
    """Kill a process that saves into `directory`, so often, and look at what is left each time."""
    draw, kills = random.Random(seed), []
    pending: tuple[float, int, int] | None = None
    for number in range(tries + 1):
        command = [sys.executable, __file__, "--child", str(directory)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                _, restored, right = _line(process, "restored").split()
                if pending is not None:
                    good = right == "True" and not (directory / "damaged").exists()
                    kills.append(Kill(*pending, int(restored), good))
                if number < tries:
                    pending = _kill(process, draw)
            finally:
                process.kill()
    return kills


def _kill(process: "subprocess.Popen[str]", draw: random.Random) -> tuple[float, int, int]:
    """Let it save twice, and kill it inside the third save; how long after its beginning, its step, the one before."""
    lengths = []
    for _ in range(2):
        _line(process, "saving")
        began = time.perf_counter()
        promised = int(_line(process, "saved").split()[1])
        lengths.append(time.perf_counter() - began)
    saving = int(_line(process, "saving").split()[1])
    seconds = draw.uniform(0, min(lengths))
    time.sleep(seconds)
    process.kill()
    assert process.stdout is not None
    for line in process.stdout:  # said before the kill, which may have come later than was meant
        word, step = line.split()
        saving, promised = (int(step), promised) if word == "saving" else (saving, int(step))
    return seconds, saving, promised


def _line(process: "subprocess.Popen[str]", word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line
    raise RuntimeError(f"the process ended without saying {word!r}")


def _save_for_ever(directory: Path) -> None:
    import jax
    import numpy as np

    from jaxnet.checkpoints import Checkpoints

    def values(step: int) -> dict[str, jax.Array]:
        return {"w": jax.numpy.asarray(np.random.default_rng(step).random(ELEMENTS, np.float32))}

    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {"w": jax.ShapeDtypeStruct((ELEMENTS,), np.float32, sharding=sharding)}
    checkpoints = Checkpoints(directory, keep=2)
    found = checkpoints.restore_latest(like)
    step = 0 if found is None else found.step
    right = found is None or bool((found.state["w"] == values(step)["w"]).all())
    print("restored", step, right, flush=True)
    while True:
        step += 1
        state = values(step)
        print("saving", step, flush=True)
        checkpoints.save(step, state, extra={})
        checkpoints.wait()
        print("saved", step, flush=True)


def main() -> None:
    """Print how many of the tries were survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=30)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        _save_for_ever(args.child)
    with tempfile.TemporaryDirectory() as directory:
        kills = kill_inside_saves(Path(directory), args.tries)
    survived, whole = sum(kill.survived for kill in kills), sum(kill.restored == kill.saving for kill in kills)
    print(f"kill -9 inside a save: {len(kills)} tries, {survived} survived; in {whole} the step was already saved")
    for kill in kills:
        if not kill.survived:
            print(f"  lost: {kill}")


if __name__ == "__main__":
    main()
