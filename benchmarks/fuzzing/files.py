"""One process that harms files and judges what commands make of them: a seed a line comes in, a verdict goes out.

The files are real: those of a run (its config, ledger, metrics, lock, compiled programs, manifests and arrays), weights
of three formats, an exported program, pictures. A case copies them, harms one of them, or what stands in its place, and
runs one command that reads it.
"""

import hashlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fuzzing.trial import MOST_BYTES, ended, outputs

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_CONFIG = """
from jaxnet import Checkpoints, Config, Log, Optimizer
from jaxnet.data import Digits
from jaxnet.models import CNN

def get_config():
    return Config(
        model=CNN(10, widths=(4,), hidden=8), data=Digits(), epochs=0.3, batch_size=48, eval_batch_size=360,
        optimizer=Optimizer("adamw", learning_rate=1e-3), checkpoints=Checkpoints(every_steps=3),
        log=Log(every_steps=1, tensorboard=False),
    )
"""
_MORE = ("epochs=0.4", "--allow-config-change")  # than the run has trained


class Case(NamedTuple):
    """What is harmed, how, and which command reads it.

    Attributes:
        victim: path from the folder of the case.
        harm: its name, for a person.
        command: its name, for a person.
    """

    victim: str
    harm: str
    command: str


# ---- Files ------------------------------------------------------------------------------------------------------


def make_originals(folder: Path) -> int:
    """The files to harm, each as jaxnet or PyTorch writes it."""
    import train
    from jaxnet.data import Digits

    folder.mkdir()
    (folder / "config.py").write_text(_CONFIG)
    _done(partial(train.main, ["--config", str(folder / "config.py"), "--workdir", str(folder / "run")]))
    images = Digits().load("test").rows(np.arange(4))["image"]
    _write_pictures(folder / "pictures", images[..., 0])
    _write_weights(folder)
    export = ["export", "run", "--out", "net.stablehlo", "--weights", "separate", "--platforms", "cpu"]
    _done(partial(_jaxnet, folder, export))
    return 0


def _done(run: Callable[[], int]) -> None:
    status = ended(run)
    if status != 0:
        raise SystemExit(f"the files to harm could not be made: status {status}")


def _write_pictures(folder: Path, images: np.ndarray) -> None:
    from PIL import Image

    folder.mkdir()
    for number, suffix in enumerate(("png", "jpg", "gif", "bmp")):
        Image.fromarray(images[number].repeat(8, 0).repeat(8, 1)).save(folder / f"{number}.{suffix}")


def _write_weights(folder: Path) -> None:
    import safetensors.numpy

    from jaxnet.models import ZOO
    from jaxnet.weights.convert import torch_shape
    from jaxnet.weights.names import tensor_name
    from jaxnet.weights.target import target_of

    entry = ZOO["cifar10_quick"]
    target = target_of(lambda classes: entry.build(num_classes=classes), 10, entry.image)
    draw = np.random.default_rng(0)
    tensors = {
        tensor_name(name): draw.normal(0, 0.05, torch_shape(name, shape)).astype(np.float32)
        for name, shape in target.shapes.items()
    }
    safetensors.numpy.save_file(tensors, folder / "foreign.safetensors")
    of_torch = importlib.import_module("tests.support.state_dicts")  # what torch.save writes, made without PyTorch
    (folder / "foreign.pth").write_bytes(of_torch.state_dict(tensors))
    words = ["import", "--from", "torchvision", "foreign.pth", "--model", "cifar10_quick", "--out", "own.safetensors"]
    _done(partial(_jaxnet, folder, words))


# ---- What is done to them ---------------------------------------------------------------------------------------


def _flip(draw: random.Random, data: bytearray) -> None:
    for _ in range(draw.choice((1, 1, 8, 64))):
        place = draw.randrange(8 * len(data))
        data[place // 8] ^= 1 << place % 8


def _cut(draw: random.Random, data: bytearray) -> None:
    del data[draw.randrange(len(data)) :]


def _extend(draw: random.Random, data: bytearray) -> None:
    data += draw.choice((draw.randbytes(64), bytes(4096), b"{" * 100_000, bytes(data)))


def _overwrite(draw: random.Random, data: bytearray) -> None:
    start = draw.randrange(len(data))
    end = min(len(data), start + draw.choice((1, 4, 8, 512)))
    data[start:end] = draw.choice((b"\xff", b"\x00", b"\x80", b"[", b"9")) * (end - start)


def _remove(draw: random.Random, data: bytearray) -> None:
    start = draw.randrange(len(data))
    del data[start : start + draw.choice((1, 8, 512))]


def _repeat(draw: random.Random, data: bytearray) -> None:
    start = draw.randrange(len(data))
    data[start:start] = data[start : start + draw.choice((8, 512, 8192))]


_ODD_JSON = (
    *(
        "null",
        "true",
        "-1",
        "0",
        "1e308",
        "-1e308",
        "NaN",
        "Infinity",
        "1e-320",
        "9" * 400,
        str(2**63),
        "0.5",
        '""',
        '"x"',
    ),
    *("[]", "{}", "[" * 100_000 + "]" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000, '"\\u0000"', '"\\ud800"'),
    *(
        '"\\u001b[31m\\u202e"',
        '"../../../../victim"',
        '"/dev/zero"',
        f'"{"x" * 1_000_000}"',
        "[[1]]",
        '{"":{}}',
        "1e999",
    ),
)


def _odd_json(draw: random.Random, data: bytearray) -> None:
    """One value of one line is another; or a key is another, is missing, or is there twice."""
    lines = data.decode(errors="replace").splitlines()
    try:
        which = draw.randrange(len(lines)) if lines and _is_json(lines[0]) else None
        value = json.loads(lines[which] if which is not None else data)
    except ValueError:
        return _flip(draw, data)
    holders: list[tuple[Any, Any]] = []
    _walk(value, holders)
    if not holders:
        return _flip(draw, data)
    holder, key = draw.choice(holders)
    match draw.randrange(8):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[draw.choice(("", "\x1b[2J", "\ud800", "a/../b", "x" * 10_000))] = holder.pop(key)
        case _:
            holder[key] = "@odd@"
    text = json.dumps(value).replace('"@odd@"', draw.choice(_ODD_JSON), 1)
    if which is not None:
        lines[which] = text
        text = "\n".join(lines) + "\n"
    data[:] = text.encode(errors="surrogatepass")
    return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _walk(value: Any, holders: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        holders.append((value, key))
        _walk(inner, holders)


BYTES = {"flip": _flip, "cut": _cut, "extend": _extend, "overwrite": _overwrite, "remove": _remove, "repeat": _repeat}
ODD = ("missing", "empty", "directory", "fifo", "loop", "dangling", "to-victim", "to-zero", "huge", "unreadable")


def harm(draw: random.Random, path: Path, how: str) -> None:
    """Harm what stands at `path`, a file or a directory."""
    if how in BYTES or how == "json":
        data = bytearray(path.read_bytes())
        if data:
            (_odd_json if how == "json" else BYTES[how])(draw, data)
        path.write_bytes(data)
        return
    if how == "unreadable":
        path.chmod(0)
        return
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    match how:
        case "empty":
            path.touch()
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path.name)
        case "dangling":
            path.symlink_to("nowhere")
        case "to-victim":
            path.symlink_to(Path(os.environ["HOME"]) / "victim")
        case "to-zero":
            path.symlink_to("/dev/zero")
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 40)


# ---- Cases ------------------------------------------------------------------------------------------------------


def _jaxnet(folder: Path, words: Sequence[str]) -> int:
    from jaxnet.cli.main import run

    os.chdir(folder)
    return run(list(words))


_OUT = ["--out", "out"]
_IMPORT = ["--model", "cifar10_quick", "--out", "out"]
READERS: dict[str, tuple[str, tuple[list[str], ...]]] = {
    "run": (
        "run/**/*",
        (
            ["train", "--config", "config.py", "--workdir", "run", *_MORE],
            ["train", "--config", "config.py", "--workdir", "run"],
            ["report", "run"],
            ["predict", "run", "pictures/0.png"],
            ["export", "run", *_OUT, "--platforms", "cpu"],
            ["train", "--config", "config.py", "--workdir", "other", "initial_weights=run"],
        ),
    ),
    "pictures": ("pictures/*", (["predict", "run", "pictures"],)),
    "own": (
        "own.safetensors",
        (["predict", "own.safetensors", "pictures/0.png"], ["export", "own.safetensors", *_OUT, "--platforms", "cpu"]),
    ),
    "foreign": (
        "foreign.*",
        (
            ["import", "--from", "torchvision", "foreign.pth", *_IMPORT],
            ["import", "--from", "safetensors", "foreign.safetensors", *_IMPORT],
        ),
    ),
    "program": ("net.stablehlo*", (["predict", "net.stablehlo", "pictures/0.png"],)),
}


def draw_case(draw: random.Random, folder: Path) -> tuple[Case, list[str]]:
    """What a seed harms of the files in `folder`, and the command that reads them."""
    kind = draw.choices(list(READERS), weights=(12, 2, 2, 3, 2))[0]
    pattern, commands = READERS[kind]
    there = sorted(path for path in folder.glob(pattern) if path.is_file() or (path.is_dir() and draw.random() < 0.5))
    # A run has many files of arrays: each kind of file is drawn as often, whatever its number.
    named: dict[str, list[Path]] = {}
    for path in there:
        named.setdefault(re.sub(r"[0-9a-f]{12,}|\d+", "*", path.relative_to(folder).as_posix()), []).append(path)
    victim = draw.choice(named[draw.choice(sorted(named))])
    command = draw.choice(commands)
    if kind == "foreign":
        command = commands[0 if victim.suffix == ".pth" else 1]
    hows = [*ODD] if victim.is_dir() else [*BYTES, *BYTES, *ODD]
    if victim.is_file() and (victim.suffix in (".json", ".jsonl") or victim.parent.name == "lock"):
        hows += ["json"] * 2 * len(hows)
    how = draw.choice(hows)
    harm(draw, victim, how)
    if victim.name == "manifest.json" and how == "json" and draw.random() < 0.5 and _seal(victim):
        how = "json, sealed again"
    return Case(victim.relative_to(folder).as_posix(), how, " ".join(command)), command


def _seal(path: Path) -> bool:
    """Write what the manifest says of the run as its writer would; False if it is nothing of the kind."""
    from jaxnet.checkpoints import manifest

    try:
        about = json.loads(path.read_bytes())["about"]
        path.unlink()
        manifest.write(path.parent, about)
    except (ValueError, KeyError, TypeError, RecursionError):
        path.touch()
        return False
    return True


def verdict(status: int, out: str, err: str) -> str:
    """'taken', 'partly', 'refused' or 'FAILED: WHY'."""
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if "Traceback (most" in err:
        return f"FAILED: status {status}, a traceback: {err.strip().splitlines()[-1][:300]}"
    if found := _CONTROL.search(out + err):
        return f"FAILED: status {status}, control character {found[0]!r} is printed"
    if any(len(line) > 4100 for line in (out + err).splitlines()):
        return f"FAILED: status {status}, a line of {max(map(len, (out + err).splitlines()))} characters"
    if status == 0 and not errors:
        return "taken"
    if status == 1 and err.strip():
        return "partly"
    if status == 2 and len(errors) == 1 and err.splitlines()[-1] == errors[0]:
        return "refused"
    return f"FAILED: status {status}, {len(errors)} error lines, at the end {err[-300:]!r}"


def run_case(seed: int, folder: Path, originals: Path) -> dict[str, Any]:
    """What became of the case of `seed`, run in this process; `folder` is empty."""
    draw = random.Random(seed)
    home = Path(os.environ["HOME"])
    (home / "victim").write_text("not for you\n")
    shutil.copytree(originals, folder, dirs_exist_ok=True)
    case, command = draw_case(draw, folder)
    before = _outside(folder, home)
    began = time.process_time()
    status, out, err = outputs(partial(_jaxnet, folder, command), home)
    seconds = time.process_time() - began
    found = verdict(status, out, err)
    if (changed := _outside(folder, home)) != before:
        found = f"FAILED: written outside the workdir: {sorted(set(changed.items()) ^ set(before.items()))[:4]}"
    return {**case._asdict(), "verdict": found, "status": status, "seconds": round(seconds, 1), "said": err[-400:]}


def _outside(folder: Path, home: Path) -> dict[str, str]:
    """What lies where no command has to write: all but workdirs and what was asked for."""
    names = [path for path in folder.iterdir() if path.name not in ("run", "other") and not path.name.startswith("out")]
    files = [*names, *(path for path in home.rglob("*") if path.name not in ("out.txt", "err.txt"))]
    return {str(path): _digest(path) for path in files}


def _digest(path: Path) -> str:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 24:
        return f"mode {path.lstat().st_mode:o}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    """Answer `{"seed": ..., "folder": ...}` lines until there are no more."""
    import tempfile

    import jax

    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
    root = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-files-") as scratch:
        os.environ["HOME"] = str(Path(scratch) / "home")
        Path(os.environ["HOME"]).mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = os.environ["HOME"]
        originals = Path(scratch) / "originals"
        _, out, err = outputs(partial(make_originals, originals), Path(os.environ["HOME"]))
        if not (originals / "net.stablehlo").exists():
            raise SystemExit(f"the files to harm could not be made: {out[-500:]} {err[-2000:]}")
        for line in sys.stdin:
            asked: dict[str, Any] = json.loads(line)
            answer = run_case(asked["seed"], Path(asked["folder"]), originals)
            os.chdir(root)
            jax.clear_caches()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
