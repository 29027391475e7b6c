"""The first eight minutes on a machine with GPUs or TPUs: are the numbers right, and how fast is a step?

    python -m benchmarks.accelerator --out FOLDER [--small] [--options sparse_cores] [--torch-python PYTHON]

- numerics: three steps of a small network under every strategy, on the accelerators and on as many emulated CPUs, with
  products in full precision: the largest difference of a parameter, relative to the largest one of its array;
- throughput: ResNet-50, bfloat16, 256 images of 224 x 224 a device, one batch again and again, without input;
- peers, with --torch-python on a GPU: the same beside PyTorch, as `benchmarks/throughput.py` measures;
- overhead: milliseconds that the host spends on a step of a small network, and that such a step takes;
- memory: what the compiler said that the ResNet's step needs, beside the most that the device has had in use;
- decode: photos a second, as `benchmarks/decode.py` measures them.

Writes FOLDER/accelerator.json and FOLDER/accelerator.md. --small takes small networks for the ResNet and leaves photos
out; where there is only a CPU it is compared with itself. --options are `compiler_options` of the accelerator's steps,
to see whether the numbers stay right with them. Status 1: a strategy's numbers differ.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxnet import Config, Optimizer
from jaxnet.comm import STRATEGIES, make_mesh, named_strategy
from jaxnet.data import Synthetic
from jaxnet.models import CNN
from jaxnet.models.resnet import resnet50
from jaxnet.training.experiment import Experiment
from jaxnet.training.prepare import prepare

ROOT = Path(__file__).parents[1]
_PEERS = ("jaxnet", "jax by hand", "torch channels_last", "torch compile")
_STEPS = 3
_EXACT, _LOSSY = 1e-4, 1e-1  # what rounding may do in three steps; a codec may round to the other side
_SMALL = CNN(10, widths=(8, 16), hidden=1024)  # 1 MB of gradients: a TPU's SparseCores take no small messages


def small_run(strategy: str, devices: int, options: Sequence[str] = ()) -> Config:
    """A run of a small network."""
    return Config(
        model=_SMALL,
        data=Synthetic((16, 16, 3), num_train=16 * devices, num_test=16),
        epochs=1,
        batch_size=16 * devices,
        optimizer=Optimizer("sgd", learning_rate=0.1, momentum=0.9),
        strategy=strategy,
        compiler_options=tuple(options),
    )


# ---- Numerics -----------------------------------------------------------------------------------------------------


def params_after(config: Config, mesh: Mesh, steps: int) -> list[np.ndarray]:
    """Whole parameters after some steps."""
    experiment = prepare(config, mesh)
    state = experiment.init()
    with closing(experiment.batches()) as batches:
        for _, batch in zip(range(steps), batches, strict=False):
            state, _ = experiment.step(state, batch)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.device_get(experiment.layout.whole(state).params))]


def numerics(mesh: Mesh, options: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of each strategy, how far three steps on the mesh are from the same on CPUs."""
    cpus = make_mesh(mesh.shape["host"], jax.devices("cpu")[: mesh.devices.size])
    rows: dict[str, dict[str, Any]] = {}
    for name in STRATEGIES:
        size = mesh.devices.size
        try:
            with jax.default_matmul_precision("highest"):
                here = params_after(small_run(name, size, options), mesh, _STEPS)
                there = params_after(small_run(name, size), cpus, _STEPS)
        except Exception as error:  # one strategy that fails is a row, not the end
            rows[name] = {"good": False, "error": f"{type(error).__name__}: {error}"[:300]}
            continue
        differ = max(float(np.max(np.abs(a - b)) / (np.max(np.abs(b)) or 1)) for a, b in zip(here, there, strict=True))
        allowed = _EXACT if named_strategy(name).exact else _LOSSY
        rows[name] = {"good": differ <= allowed, "difference": differ, "allowed": allowed}
    return rows


# ---- Time and memory ----------------------------------------------------------------------------------------------


def large_run(devices: int, small: bool, options: Sequence[str]) -> Config:
    """The run whose speed is measured."""
    if small:
        return small_run("auto", devices, options)
    return Config(
        model=resnet50(num_classes=1000, dtype="bfloat16"),
        data=Synthetic((224, 224, 3), num_classes=1000, num_train=256 * devices, num_test=16),
        epochs=1,
        batch_size=256 * devices,
        optimizer=Optimizer("sgd", learning_rate=0.1, momentum=0.9),
        compiler_options=tuple(options),
    )


def step_seconds(experiment: Experiment, rounds: int, steps: int) -> tuple[float, float]:
    """Medians over rounds: seconds of a step, and of the call that launches it."""
    state = experiment.init()
    with closing(experiment.batches()) as batches:
        batch = next(batches)
    state, _ = experiment.step(state, batch)
    jax.block_until_ready(state)
    whole, calls = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(steps):
            called = time.perf_counter()
            state, _ = experiment.step(state, batch)
            calls.append(time.perf_counter() - called)
        jax.block_until_ready(state)
        whole.append((time.perf_counter() - begun) / steps)
    return statistics.median(whole), statistics.median(calls)


def throughput(mesh: Mesh, small: bool, options: Sequence[str]) -> dict[str, Any]:
    """Images a second, and memory beside what the compiler said."""
    config = large_run(mesh.devices.size, small, options)
    experiment = prepare(config, mesh)
    said: Any = experiment.compiled().memory_analysis()
    seconds, _ = step_seconds(experiment, rounds=5, steps=3 if small else 10)
    used = (mesh.devices.flat[0].memory_stats() or {}).get("peak_bytes_in_use")
    return {
        "network": "a small one" if small else "ResNet-50, bfloat16",
        "batch_size": config.batch_size,
        "step_seconds": seconds,
        "images_per_second": config.batch_size / seconds,
        "planned_bytes": int(said.argument_size_in_bytes + said.temp_size_in_bytes),
        "peak_bytes": used,
    }


def overhead(mesh: Mesh, options: Sequence[str]) -> dict[str, float]:
    """Of a step that computes little."""
    experiment = prepare(small_run("auto", mesh.devices.size, options), mesh)
    whole, call = step_seconds(experiment, rounds=5, steps=20)
    return {"step_milliseconds": 1e3 * whole, "call_milliseconds": 1e3 * call}


def peers(python: str, small: bool) -> dict[str, Any]:
    """What `benchmarks/throughput.py` says of jaxnet, of a JAX loop written by hand and of PyTorch."""
    size = "--model alexnet --batch 4 --rounds 2 --side 256 --steps-per-round 1"
    full = "--model resnet50 --batch 256 --rounds 5 --side 16384 --steps-per-round 10 --dtype bfloat16"
    variants = [word for name in _PEERS for word in ("--variant", name)]
    return _said_by("throughput.py", *(size if small else full).split(), *variants, "--torch-python", python)


def decoded() -> dict[str, Any]:
    """What `benchmarks/decode.py` says."""
    return _said_by("decode.py", "--rounds", "3", "--images", "512")


def _said_by(script: str, *arguments: str) -> dict[str, Any]:
    """The JSON that another benchmark prints, in a process of its own."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["nothing"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---- The page -----------------------------------------------------------------------------------------------------


def page(found: dict[str, Any]) -> str:
    """What was found, for people."""
    speed, cost = found["throughput"], found["overhead"]
    peak = "unknown" if speed["peak_bytes"] is None else f"{speed['peak_bytes'] / 2**30:.2f} GiB"
    options = "".join(f", {option}" for option in found["options"])
    lines = [
        f"# {found['devices']} x {found['kind']}, JAX {found['jax']}{options}",
        "",
        f"- {speed['network']}, batch {speed['batch_size']}: {speed['images_per_second']:,.0f} images a second, "
        f"{1e3 * speed['step_seconds']:.1f} ms a step",
        f"- memory of a device: {speed['planned_bytes'] / 2**30:.2f} GiB planned, {peak} at most in use",
        f"- a step of a small network: {cost['step_milliseconds']:.2f} ms, of the host "
        f"{cost['call_milliseconds']:.2f} ms",
        *_beside_peers(found["peers"]),
        "",
        "| strategy | difference from CPUs | allowed |",
        "| --- | --- | --- |",
    ]
    for name, row in found["numerics"].items():
        if "error" in row:
            lines.append(f"| {name} | {row['error']} | |")
        else:
            lines.append(
                f"| {name}{'' if row['good'] else ', wrong'} | {row['difference']:.1e} | {row['allowed']:.0e} |"
            )
    return "\n".join([*lines, ""])


def _beside_peers(said: dict[str, Any]) -> list[str]:
    """A line for each variant of `peers`, or one for how they failed."""
    if "error" in said:
        return [f"- PyTorch could not be measured: {said['error']}"]
    return [
        f"- {said['model']}, {said['dtype']}, batch {said['batch']}, {row['variant']}: "
        f"{row['images_per_second']:,.0f} images a second"
        for row in said.get("rows", ())
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--small", action="store_true", help="a small network in place of ResNet-50, and no photos")
    parser.add_argument("--options", nargs="+", default=[], metavar="OPTION", help="NAME=VALUE, or sparse_cores")
    parser.add_argument("--torch-python", metavar="PYTHON", help="one with PyTorch: benchmarks/peers/README.md")
    args = parser.parse_args(argv)
    # First, because from its first use of a GPU on this process holds most of its memory.
    beside = peers(args.torch_python, args.small) if args.torch_python else {}
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", 8)  # at least as many as accelerators of a machine
    mesh = make_mesh()
    first = mesh.devices.flat[0]
    found = {
        "kind": first.device_kind,
        "platform": first.platform,
        "devices": mesh.devices.size,
        "jax": jax.__version__,
        "options": args.options,
        "numerics": numerics(mesh, args.options),
        "throughput": throughput(mesh, args.small, args.options),
        "peers": beside,
        "overhead": overhead(mesh, args.options),
        "decode": {} if args.small else decoded(),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "accelerator.json").write_text(json.dumps(found, indent=2))
    (args.out / "accelerator.md").write_text(page(found))
    print(page(found))
    return int(not all(row["good"] for row in found["numerics"].values()))


if __name__ == "__main__":
    sys.exit(main())
