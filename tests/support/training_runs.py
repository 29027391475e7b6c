"""Training as a user starts it: `train.py`, alone or under `jaxnet launch local`, and what it leaves behind."""

import contextlib
import json
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxnet.checkpoints import Checkpointer, manifest
from jaxnet.checkpoints.leaves import nested
from support.paced_digits import STEPS
from support.programs import PATIENCE, ROOT, Program, launch

CONFIG = ROOT / "tests/support/paced_digits.py"
OWN_CACHE = "compile_cache=compile_cache"  # in the workdir, as by default; else the runs of all tests share one


class Place(NamedTuple):
    """How many processes, of how many devices each."""

    processes: int = 1
    devices: int = 1


ONE, EIGHT, TWO, FOUR = Place(), Place(devices=8), Place(2), Place(4)


def start(workdir, place, *overrides, **environment):
    """A run in `workdir`, started; alone, it is started without a launcher."""
    arguments = [str(ROOT / "train.py"), "--config", str(CONFIG), "--workdir", str(workdir), *overrides]
    environment = {"JAX_NUM_CPU_DEVICES": str(place.devices), **environment}
    if place.processes == 1:
        return Program([sys.executable, *arguments], **environment)
    return launch(*arguments, processes=place.processes, **environment)


def finish(workdir, place, *overrides, **environment):
    """Run until it ends well; the program, with its lines."""
    with start(workdir, place, *overrides, **environment) as program:
        assert program.finish() == 0, program.err
        return program


def pid_of(launcher, rank):
    """The process of a rank under a launcher."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    wanted = f"JAX_PROCESS_ID={rank}".encode()
    (pid,) = (int(child) for child in children if wanted in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"))
    return pid


def await_path(path):
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.02)


def summary(workdir):
    return json.loads((workdir / "summary.json").read_text())


def metrics(workdir, split="train"):
    """The lines of metrics.jsonl by step; of a step that was run again, the later one."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line for line in lines if line["split"] == split}


def losses(workdir):
    """The loss of every step, in order."""
    by_step = metrics(workdir)
    assert sorted(by_step) == list(range(1, STEPS + 1))
    return np.array([by_step[step]["loss"] for step in range(1, STEPS + 1)])


def saved_steps(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())


def arrays(workdir, step=STEPS):
    """Every leaf of a saved state, by name: parameters, running averages, optimizer, key."""
    directory = workdir / "checkpoints"
    described = manifest.check(directory / f"{step:06d}").about["leaves"]
    like = nested({name: _shape(text) for name, text in described.items()})
    with contextlib.closing(Checkpointer(directory)) as checkpoints:
        return jax.device_get(checkpoints.restore(step, like).state)


def _shape(text):
    dtype, dims = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()
    shape = [int(size) for size in dims.split(",") if size]
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
