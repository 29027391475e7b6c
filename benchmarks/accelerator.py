"""The first minutes on a machine with GPUs or TPUs: are the numbers right, and how fast is a step?

    python -m benchmarks.accelerator --out FOLDER [--small] [--strategy NAME] [--options OPTION] [--torch-python PYTHON]

- numerics: three steps of a small network under every strategy, on the accelerators and on as many emulated CPUs, with
  products in full precision: the largest difference of a parameter, relative to the largest one of its array. Where
  there is one GPU, four processes share it, as two hosts of two: NCCL is told that they are on different hosts, so
  that sums really travel. (Times would mean nothing: a GPU runs the kernels of processes in turn, 10 ms each.)
- networks: ResNet-50 (256 images of 224 x 224 a device) and others, one batch again and again, without input: a step,
  beside the model of it (`jaxnet plan --on here`), and the most memory that the device has had in use, beside what the
  compiler said that the step needs;
- peers, with --torch-python on a GPU: ResNet-50 beside PyTorch, as `benchmarks/throughput.py` measures;
- overhead: milliseconds that the host spends on a step of a small network, and that such a step takes;
- decode: photos a second, as `benchmarks/decode.py` measures them.

Writes FOLDER/accelerator.json and FOLDER/accelerator.md. --small takes one small network and leaves photos out; where
there is only a CPU it is compared with itself. --options are `compiler_options` of the accelerator's steps, to see
whether the numbers stay right with them. Status 1: a strategy's numbers differ.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from benchmarks.accelerator_steps import small_run
from jaxnet import Config, LanguageModel, Optimizer
from jaxnet.cluster.job_token import TOKEN, new_token
from jaxnet.comm import STRATEGIES, GiB, make_mesh, named_strategy
from jaxnet.cost.accelerators import Cluster
from jaxnet.cost.links import places_of
from jaxnet.cost.scheduled import modelled
from jaxnet.data import PythonTopics, Synthetic
from jaxnet.errors import InputError, error_text, exit_cleanly
from jaxnet.models import ZOO, Transformer
from jaxnet.operations.launchers.free_port import free_port
from jaxnet.operations.launchers.local import rank_environment
from jaxnet.training.experiment import Experiment
from jaxnet.training.prepare import prepare

ROOT = Path(__file__).parents[1]
_PEERS = ("jaxnet", "jax by hand", "torch channels_last", "torch compile")
_EXACT, _LOSSY = 1e-4, 1e-1  # what rounding may do in three steps; a codec may round to the other side
_SHARING = 4  # processes, where there is one GPU
_STEPS_SECONDS = 300


# ---- Numerics -----------------------------------------------------------------------------------------------------


def numerics(options: Sequence[str], strategies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of each strategy, how far three steps on the accelerators are from the same on CPUs."""
    platform, devices = devices_here()
    shared = platform == "gpu" and devices == 1
    size = _SHARING if shared else devices
    hosts = ["--hosts", "2"] if platform != "tpu" and size % 2 == 0 else []
    on_cpus = [os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(size)}]
    # Most of the time goes into compiling, a core for each process; but only GPUs take several at once.
    at_once = max(1, len(os.sched_getaffinity(0)) // (_SHARING + 1)) if shared else 1
    groups = min(at_once, len(strategies))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2 * groups) as pool:
        here, there = [], []
        for group in range(groups):
            names, file = strategies[group::groups], Path(folder) / f"{group}.npz"
            there.append(pool.submit(steps_of, file.with_stem(f"there-{group}"), names, hosts, (), on_cpus))
            places = sharing() if shared else [os.environ]
            here.append(pool.submit(steps_of, file.with_stem(f"here-{group}"), names, hosts, options, places))
        found, wanted = (ChainMap(*(part.result() for part in parts)) for parts in (here, there))
    return {name: compared(name, found, wanted) for name in strategies}


def devices_here() -> tuple[str, int]:
    """Platform and number of this machine's devices, asked by another process: this one's would keep what it saw."""
    asked = "import jax; print(jax.default_backend(), jax.device_count())"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"JAX has no devices here: {_last_line(done.stderr)}")
    platform, count = _last_line(done.stdout).split()
    return platform, int(count)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing"])[-1]


def sharing() -> list[Mapping[str, str]]:
    """The environments of processes that share a GPU. Their kernels take turns; none may take most of the memory."""
    shared = {**os.environ, TOKEN: new_token(), "NCCL_SOCKET_IFNAME": "lo", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    port = free_port()
    return [
        rank_environment(shared, rank, _SHARING, port, None) | {"NCCL_HOSTID": f"rank{rank}"}
        for rank in range(_SHARING)
    ]


def steps_of(
    file: Path,
    names: Sequence[str],
    hosts: Sequence[str],
    options: Sequence[str],
    environments: Sequence[Mapping[str, str]],
) -> dict[str, np.ndarray]:
    """What `accelerator_steps.py` found in these processes, or as NAME/error why one failed or there was no end."""
    command = [sys.executable, "-m", "benchmarks.accelerator_steps", str(file), *names, *hosts, "--options", *options]
    running: list[subprocess.Popen[bytes]] = []
    end = time.monotonic() + _STEPS_SECONDS
    try:
        for number, environ in enumerate(environments):
            with file.with_suffix(f".{number}").open("w") as log:
                running.append(subprocess.Popen(command, env=environ, cwd=ROOT, stdout=log, stderr=log))
        while None in (ended := [process.poll() for process in running]) and not any(ended) and time.monotonic() < end:
            time.sleep(0.1)
    finally:
        for process in running:
            process.kill()
            process.wait()
    if all(status == 0 for status in ended):
        return dict(np.load(file))
    reason = f"no end within {_STEPS_SECONDS} s"
    if failed := [number for number, status in enumerate(ended) if status]:
        said = _last_line(file.with_suffix(f".{failed[0]}").read_text())
        reason = f"process {failed[0]} ended with status {ended[failed[0]]}: {said}"
    return {f"{name}/error": np.array(reason) for name in names}


def compared(name: str, here: Mapping[str, np.ndarray], there: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """A strategy's row."""
    for side in (here, there):
        if f"{name}/error" in side:
            return {"good": False, "error": str(side[f"{name}/error"])}
    pairs = [(here[key], there[key]) for key in there if key.startswith(f"{name}/")]
    differ = float(np.max([np.max(np.abs(a - b)) / (np.max(np.abs(b)) or 1) for a, b in pairs]))  # NaN, if one is
    allowed = _EXACT if named_strategy(name).exact else _LOSSY
    return {"good": differ <= allowed, "difference": differ, "allowed": allowed}


# ---- Time and memory ----------------------------------------------------------------------------------------------


def large_runs(devices: int, options: Sequence[str]) -> dict[str, Config]:
    """The runs whose speed is measured, by the names of their networks; all compute in bfloat16."""

    def images(name: str, batch: int) -> Config:
        network = ZOO[name]
        return Config(
            model=network.build(num_classes=1000, dtype="bfloat16"),
            data=Synthetic(network.image, num_classes=1000, num_train=batch * devices, num_test=16),
            epochs=1,
            batch_size=batch * devices,
            optimizer=Optimizer("sgd", learning_rate=0.1, momentum=0.9),
            compiler_options=tuple(options),
        )

    text = Config(
        model=Transformer(positions=1024, dim=768, depth=12, heads=12, dtype="bfloat16"),
        data=PythonTopics(length=1024),
        task=LanguageModel(bytes_per_token=1),
        epochs=1,
        batch_size=16 * devices,
        optimizer=Optimizer("adamw", learning_rate=1e-3),
        compiler_options=tuple(options),
    )
    return {
        "ResNet-50": images("resnet50", 256),
        "VGG-16": images("vgg16", 128),
        "ViT-S": images("vit_small", 256),
        "transformer of 86 million": text,
    }


def speeds(mesh: Mesh, runs: Mapping[str, Config], steps: int) -> dict[str, dict[str, Any]]:
    """Of each run: seconds of a step beside its model, and bytes of a device beside what the compiler said."""
    rows: dict[str, dict[str, Any]] = {}
    prepared = {}
    for name, config in runs.items():
        try:
            experiment = prepare(config, mesh)
            begun = time.perf_counter()
            compiled = experiment.compiled()
        except Exception as error:  # one that the compiler refuses is a row, not the end
            rows[name] = {"error": error_text(error)}
            continue
        said: Any = compiled.memory_analysis()
        rows[name] = {
            "batch_size": config.batch_size,
            "compile_seconds": time.perf_counter() - begun,
            "modelled_seconds": modelled_seconds(compiled, mesh),
            "planned_bytes": int(said.argument_size_in_bytes + said.temp_size_in_bytes),
        }
        prepared[name] = experiment, compiled
    # A device says the most that it ever had in use: so those that need least come first.
    for name in sorted(prepared, key=lambda name: rows[name]["planned_bytes"]):
        experiment, compiled = prepared[name]
        before = _peak_bytes(mesh)
        try:
            seconds, _ = step_seconds(experiment, compiled, rounds=5, steps=steps)
        except Exception as error:
            rows[name]["error"] = error_text(error)
            continue
        peak = _peak_bytes(mesh)
        rows[name] |= {
            "step_seconds": seconds,
            "examples_per_second": experiment.config.batch_size / seconds,
            "peak_bytes": peak if peak != before else None,
        }
    return rows


def modelled_seconds(compiled: jax.stages.Compiled, mesh: Mesh) -> float | None:
    """Of a step, by published rates; None for devices of a kind that is not known."""
    try:
        cluster = Cluster.of(list(mesh.devices.flat))
    except InputError:
        return None
    return modelled(compiled.as_text() or "", cluster, places_of(cluster, mesh.devices.flat)).seconds


def step_seconds(experiment: Experiment, step: Callable[..., Any], rounds: int, steps: int) -> tuple[float, float]:
    """Medians over rounds: seconds of a step, and of the call that launches it."""
    state = experiment.init()
    with closing(experiment.batches()) as batches:
        batch = next(batches)
    state, _ = step(state, batch)
    jax.block_until_ready(state)
    whole, calls = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(steps):
            called = time.perf_counter()
            state, _ = step(state, batch)
            calls.append(time.perf_counter() - called)
        jax.block_until_ready(state)
        whole.append((time.perf_counter() - begun) / steps)
    return statistics.median(whole), statistics.median(calls)


def _peak_bytes(mesh: Mesh) -> int | None:
    return (mesh.devices.flat[0].memory_stats() or {}).get("peak_bytes_in_use")


def overhead(mesh: Mesh, options: Sequence[str]) -> dict[str, float]:
    """Of a step that computes little."""
    experiment = prepare(small_run("auto", mesh.devices.size, options), mesh)
    whole, call = step_seconds(experiment, experiment.step, rounds=5, steps=20)
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
        return {"error": _last_line(done.stderr)}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---- The page -----------------------------------------------------------------------------------------------------


def page(found: dict[str, Any]) -> str:
    """What was found, for people."""
    cost = found["overhead"]
    options = "".join(f", {option}" for option in found["options"])
    lines = [
        f"# {found['devices']} x {found['kind']}, JAX {found['jax']}{options}",
        "",
        f"- a step of a small network: {cost['step_milliseconds']:.2f} ms, of the host "
        f"{cost['call_milliseconds']:.2f} ms",
        *_beside_peers(found["peers"]),
        "",
        "| network, bfloat16 | batch | ms a step | by the model | examples/s | GiB planned | at most in use |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_speed_line(name, row) for name, row in found["networks"].items()),
        "",
        f"Strategies, summed over {_summed_over(found['platform'], found['devices'])}:",
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


def _summed_over(platform: str, devices: int) -> str:
    """What `numerics` sums over."""
    if devices > 1:
        return f"{devices} devices"
    return f"{_SHARING} processes that shared the GPU" if platform == "gpu" else "one device, so nothing was summed"


def _speed_line(name: str, row: dict[str, Any]) -> str:
    """A line of the table of networks."""
    if "error" in row:
        return f"| {name} | {row['error']} | | | | | |"
    modelled, peak = row["modelled_seconds"], row["peak_bytes"]
    cells = [
        name,
        f"{row['batch_size']}",
        f"{1e3 * row['step_seconds']:.1f}",
        "" if modelled is None else f"{1e3 * modelled:.1f}",
        f"{row['examples_per_second']:,.0f}",
        f"{row['planned_bytes'] / GiB:.2f}",
        "" if peak is None else f"{peak / GiB:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _beside_peers(said: dict[str, Any]) -> list[str]:
    """A line for each variant of `peers`, or one for how they failed."""
    if "error" in said:
        return [f"- PyTorch could not be measured: {said['error']}"]
    return [
        f"- {said['model']}, {said['dtype']}, batch {said['batch']}, {row['variant']}: "
        f"{row['examples_per_second']:,.0f} images a second"
        for row in said.get("rows", ())
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--small", action="store_true", help="one small network, and no photos")
    parser.add_argument("--strategy", action="append", choices=list(STRATEGIES), help="again for each; default: all")
    parser.add_argument("--options", nargs="+", default=[], metavar="OPTION", help="NAME=VALUE, or sparse_cores")
    parser.add_argument("--torch-python", metavar="PYTHON", help="one with PyTorch: benchmarks/peers/README.md")
    args = parser.parse_args(argv)
    # First what other processes measure: from its first use of a GPU on, this one holds most of its memory.
    beside = peers(args.torch_python, args.small) if args.torch_python else {}
    numbers = numerics(args.options, args.strategy or list(STRATEGIES))
    mesh = make_mesh()
    first = mesh.devices.flat[0]
    runs = {"a small one": small_run("auto", mesh.devices.size, args.options)}
    if not args.small:
        runs = large_runs(mesh.devices.size, args.options)
    found = {
        "kind": first.device_kind,
        "platform": first.platform,
        "devices": mesh.devices.size,
        "jax": jax.__version__,
        "options": args.options,
        "numerics": numbers,
        "networks": speeds(mesh, runs, steps=3 if args.small else 10),
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
    exit_cleanly(main)
