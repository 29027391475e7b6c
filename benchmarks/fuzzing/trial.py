"""One process that runs cases and judges them: a seed a line comes in, a verdict a line goes out, as JSON."""

import json
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 12 * 2**30  # of memory: a case that wants more is refused by the system, not by what kills processes
_SCRATCH = (".fresh", ".partial")


def verdict(status: int, out: str, err: str, workdir: Path) -> str:
    """'trained', 'refused: MESSAGE', or 'FAILED: WHY'."""
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if wrong := _left_wrong(workdir):
        return f"FAILED: status {status}, {wrong}"
    if "Traceback" in err:
        return f"FAILED: status {status}, a traceback: {_raised(err)}"
    if status == 0 and not errors:
        return "trained" if _is_summary(out) else f"FAILED: the last line is no summary: {out[-200:]!r}"
    if status == 2 and len(errors) == 1 and err.splitlines()[-1] == errors[0] and len(errors[0]) > len("error: "):
        return f"refused: {errors[0].removeprefix('error: ')}"
    return f"FAILED: status {status}, {len(errors)} error lines, at the end {err[-300:]!r}"


def _raised(err: str) -> str:
    """The last exception of a traceback; JAX puts a remark of its own below."""
    found = [line for line in err.splitlines() if re.match(r"[\w.]*(Error|Exception|Exit|Iteration|Interrupt)\b", line)]
    return found[-1] if found else err.splitlines()[-1]


def _is_summary(out: str) -> bool:
    lines = out.splitlines()
    return bool(lines) and lines[-1].startswith("{") and "steps" in json.loads(lines[-1])


def _left_wrong(workdir: Path) -> str:
    """What in a workdir is not whole."""
    for path in workdir.rglob("*") if workdir.exists() else ():
        if path.name.endswith(_SCRATCH):
            return f"{path.name} is left"
    for name in ("config.json", "summary.json", "metrics.jsonl"):
        path = workdir / name
        lines = [] if not path.exists() else [path.read_text()] if name.endswith(".json") else _lines(path)
        for line in lines:
            try:
                json.loads(line)
            except ValueError:
                return f"{name} holds {line[-80:]!r}"
    return _damaged(workdir / "checkpoints")


def _lines(path: Path) -> list[str]:
    """The lines of a file; one that has no end too. A file of a run that ended before its first line is empty."""
    text = path.read_text()
    return text.split("\n")[:-1] if text.endswith("\n") or not text else text.split("\n")


def _damaged(checkpoints: Path) -> str:
    """Every step that is there can be restored."""
    from jaxnet.checkpoints.files import CheckpointFiles

    if not checkpoints.exists():
        return ""
    files = CheckpointFiles(checkpoints)
    damaged = [found for step in files.steps() for found in files.examine(step).damaged]
    return f"checkpoints are damaged: {damaged}" if damaged else ""


def ended(run: Callable[[], int]) -> int:
    """The status with which `run` ends the process, a traceback printed as Python does."""
    from jaxnet.errors import exit_cleanly

    try:
        exit_cleanly(run)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


def run_case(seed: int, folder: Path, trains: bool) -> str:
    """The verdict on the case of `seed`, run in this process; `folder` is new. Without `trains`, up to its program."""
    import train
    from benchmarks.fuzzing.draw import all_kinds, draw_case

    case = draw_case(seed, all_kinds())
    path = folder / "case.py"
    path.write_bytes(case.config)
    if not (trains and case.trains):
        found = _captured(lambda: _trace(path, case.overrides), folder)
        return "FAILED: it was taken" if case.must_fail and found == "trained" and trains else found
    command = ["--config", str(path), "--workdir", str(folder / "run"), "--json"]
    found = "trained"
    for overrides in [case.overrides, case.again]:
        if found == "trained" and overrides is not None:
            found = _captured(partial(train.main, [*command, *overrides]), folder)
    return "FAILED: it was trained" if case.must_fail and found == "trained" else found


def _trace(config: Path, overrides: Sequence[str]) -> int:
    """As train.py does, up to the program that it would compile."""
    from jaxnet.config.file import load_config
    from jaxnet.config.keys import flatten
    from jaxnet.data import open_split
    from jaxnet.training.checkpointing import begins_anew
    from jaxnet.training.prepare import prepare
    from jaxnet.training.processes import mesh_of

    asked = load_config(config, *overrides)
    source, test = open_split(asked.data, "train"), open_split(asked.data, "test")
    experiment = prepare(asked, mesh_of(asked), source=source)
    experiment.check_tests()
    experiment.check_programs()
    if begins_anew(Path(config).parent / "run"):
        experiment.check_initial_weights()
    flatten(asked)
    print(json.dumps({"steps": experiment.total_steps, "tests": test.num_examples}))
    return 0


def _captured(run: Callable[[], int], folder: Path) -> str:
    return verdict(*outputs(run, folder), folder / "run")


def outputs(run: Callable[[], int], folder: Path) -> tuple[int, str, str]:
    """The status, stdout and stderr of `run`, also of its C++, by way of files in `folder`."""
    kept = [os.dup(1), os.dup(2)]
    names = [folder / "out.txt", folder / "err.txt"]
    for number, name in zip((1, 2), names, strict=True):
        file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    try:
        status = ended(run)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
    out, err = (name.read_text(errors="replace") for name in names)
    return status, out, err


def _outside(folder: Path) -> set[str]:
    """The files of this process's home, which is its current directory and its place for temporary files too.

    `folder` is the case's, and may hold what it likes; so may the directory in which FashionMNIST is prepared.
    """
    home = Path.home()
    files = (path.relative_to(home) for path in home.rglob("*") if folder not in path.parents and path.is_file())
    return {str(path) for path in files if "fashion_mnist" not in path.parts}


def main() -> NoReturn:
    """Answer `{"seed": ..., "folder": ..., "trains": ...}` lines until there are no more."""
    import jax

    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
    commands = os.fdopen(os.dup(0))  # a case may call exit(), which closes sys.stdin
    for line in commands:
        asked: dict[str, Any] = json.loads(line)
        folder, began = Path(asked["folder"]), time.process_time()
        before = _outside(folder)
        answer = run_case(asked["seed"], folder, asked["trains"])
        seconds = time.process_time() - began
        if written := sorted(_outside(folder) - before):
            answer = f"FAILED: it wrote {', '.join(written[:3])}"
        jax.clear_caches()
        print(json.dumps({"seed": asked["seed"], "verdict": answer, "seconds": seconds}), flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
