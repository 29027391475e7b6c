"""Which networks compile for GPUs and TPUs, and with how many examples a device a training step fits into its memory.

    python -m benchmarks.fitting --out fitting.jsonl [--jobs 2] [--network NAME] [--dtype float32] [--on v5e:1x1]

One device, SGD with momentum. Batches are powers of two: the largest that fits is compiled, and so is the next one,
which does not. Rows that are in the file are not made again. `python -m benchmarks.matrix` writes them into
docs/results_accelerators.md. Needs the compilers: make compilers.
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.compiling import ROOT, add_rows, environment, last_words, read_rows, version
from jaxnet.cost.accelerators import ACCELERATORS, Cluster

NETWORKS = ("alexnet", "vgg16", "googlenet", "inception_v3", "resnet18", "resnet50", "vit_tiny", "lstm", "transformer")
DEVICES = ("v5e:1x1", "h100:1x1", "h200:1x1")
DTYPES = ("bfloat16", "float32", "float16")
_LARGEST = 2**20
_LIMIT_SECONDS = 1200


class Cell(NamedTuple):
    """A network in a dtype on a kind of device."""

    network: str
    dtype: str
    device: str


class Need(NamedTuple):
    """Bytes of a device with a batch; the note says how it was compiled otherwise than it would be on one."""

    bytes: int
    note: str = ""


def largest_batch(need: Callable[[int], Need | None], limit: int, guess: int) -> tuple[int, Need | None]:
    """The largest power of two with which `need` is at most `limit`, or None: not even one example.

    Args:
        need: of a batch; None: the compiler says that it does not fit.
        limit: bytes of the device.
        guess: a batch to begin with.

    >>> largest_batch(lambda batch: Need(100 + 7 * batch), 1000, guess=4)
    (128, Need(bytes=996, note=''))
    """
    most, found, over, batch = 0, None, 2 * _LARGEST, guess
    while most < batch < over:
        needed = need(batch)
        if needed is not None and needed.bytes <= limit:
            most, found = batch, needed
            # So many times as many need at most so many times as much, since parameters are the same.
            times = max(2, 1 << (limit // needed.bytes).bit_length() - 1)
            batch = min(most * times, over // 2)
        else:
            over = batch
            times = max(2, 1 << (math.ceil(needed.bytes / limit) - 1).bit_length()) if needed is not None else 2
            batch = max(over // times, 2 * most, 1)
    return most, found


def measured(cell: Cell, rows: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The row of one cell; `rows` of other versions of JAX tell where to begin."""
    begun, fitted, failed = time.monotonic(), set[int](), dict[int, str]()
    limit = Cluster.named(cell.device).accelerator.memory

    def need(batch: int) -> Need | None:
        answer = _compiled(cell, batch)
        if answer.get("full"):
            return None
        if "error" in answer:
            failed[batch] = f"with {batch:,} examples: {answer['error']}"
            if not fitted:
                raise RuntimeError(failed[batch])
            return None
        found = Need(answer["bytes"], answer["note"])
        if found.bytes <= limit:
            fitted.add(batch)
        return found

    def row(**found: Any) -> dict[str, Any]:
        return {**cell._asdict(), "jax": version(), "seconds": round(time.monotonic() - begun, 1), **found}

    try:
        batch, found = largest_batch(need, limit, _guess(cell, rows))
    except RuntimeError as error:
        return row(error=str(error)[:300])
    note = "; ".join(filter(None, [found.note if found else "", failed.get(2 * batch, "")]))
    return row(batch=batch, bytes=found.bytes if found else None, note=note[:300])


def _guess(cell: Cell, rows: Sequence[dict[str, Any]]) -> int:
    """Near what other figures suggest; only the number of compilations depends on it."""
    if same := [row["batch"] for row in rows if _cell_of(row) == cell and row.get("batch")]:
        return same[-1]
    gigabytes = ACCELERATORS[cell.device.split(":")[0]].memory / 1e9
    each = {"vgg16": 64, "inception_v3": 64, "resnet50": 64, "vit_tiny": 128, "lstm": 16384, "transformer": 1024}
    return 1 << round(each.get(cell.network, 256) * gigabytes / 16).bit_length() - 1


def _cell_of(row: dict[str, Any]) -> Cell:
    return Cell(row["network"], row["dtype"], row["device"])


def _compiled(cell: Cell, batch: int) -> dict[str, Any]:
    """What `--one` prints, from a process of its own, because a compiler may end its process."""
    command = [sys.executable, "-m", "benchmarks.fitting", "--one", *cell, str(batch)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, env=environment(), cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no end after {_LIMIT_SECONDS} s with {batch} examples"}
    return {"error": last_words(done)} if done.returncode else json.loads(done.stdout.splitlines()[-1])


def one(cell: Cell, batch: int) -> dict[str, Any]:
    """Compile one step, in this process."""
    from jaxnet.cost.accelerators import prepare_compilers

    prepare_compilers()
    from jaxnet.errors import InputError
    from jaxnet.training.forecast import forecast
    from jaxnet.training.prepare import prepare

    cluster = Cluster.named(cell.device)
    config, source = _config(cell, batch)
    try:
        made = forecast(prepare(config, cluster.mesh(), source=source), cluster)
    except InputError as error:
        text = str(error)
        return {"error": text, "full": "RESOURCE_EXHAUSTED" in text}
    return {"bytes": made.memory.arguments + made.memory.temporary, "note": made.note}


def _config(cell: Cell, batch: int) -> tuple[Any, Any]:
    """A run of a network, and the examples that it would see."""
    import jaxnet
    from jaxnet.data import open_for_plan
    from jaxnet.data.source import Blank
    from jaxnet.models.zoo import ZOO

    sgd = jaxnet.Optimizer("sgd", learning_rate=0.1, momentum=0.9)
    if cell.network == "transformer":
        config = jaxnet.load_config("configs/text_transformer.py", f"batch_size={batch}", f"model.dtype={cell.dtype}")
        return config, open_for_plan(config.data)[0]
    entry = ZOO[cell.network]
    model = entry.build(num_classes=entry.classes, dtype=cell.dtype)
    config = jaxnet.Config(model=model, data=jaxnet.data.Synthetic(), batch_size=batch, epochs=1, optimizer=sgd)
    return config, Blank(2 * batch, entry.image, entry.classes)


# ---- The table ----------------------------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: a row a network and dtype, a column a device and version of JAX."""
    columns = sorted({(row["device"], row.get("jax", "")) for row in rows}, key=lambda each: (each[1], each[0]))
    heads = [f"{device.split(':')[0]}, JAX {version}" for device, version in columns]
    yield f"| network | dtype | {' | '.join(heads)} |"
    yield "| --- " * (2 + len(columns)) + "|"
    for network, dtype in itertools.product(NETWORKS, DTYPES):
        own = {
            (row["device"], row.get("jax", "")): row
            for row in rows
            if (row["network"], row["dtype"]) == (network, dtype)
        }
        if own:
            cells = [_cell(own.get(column)) for column in columns]
            yield f"| {network} | {dtype} | {' | '.join(cells)} |"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if "error" in row:
        return row["error"]
    if not row["batch"]:
        return "not even 1"
    at_least = "at least " if row["batch"] == _LARGEST else ""
    return f"{at_least}{row['batch']:,} ({row['bytes'] / 2**30:.1f} GiB{', ' + row['note'] if row['note'] else ''})"


def main(argv: Sequence[str] | None = None) -> int:
    """Make the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="a line of JSON for each row")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="compilers at once; default 1")
    parser.add_argument("--network", action="append", choices=NETWORKS, help="may be repeated; default: all")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be repeated; default: all")
    parser.add_argument(
        "--on", action="append", metavar="CLUSTER", help="may be repeated; default: " + ", ".join(DEVICES)
    )
    parser.add_argument("--one", nargs=4, metavar=("NETWORK", "DTYPE", "DEVICE", "BATCH"), help="compile this one step")
    args = parser.parse_args(argv)
    if args.one:
        *names, batch = args.one
        print(json.dumps(one(Cell(*names), int(batch))))
        return 0
    if args.out is None:
        parser.error("wanted --out FILE")
    rows = read_rows(args.out)
    there = {(_cell_of(row), row.get("jax")) for row in rows}
    wanted = map(Cell._make, itertools.product(args.network or NETWORKS, args.dtype or DTYPES, args.on or DEVICES))
    missing = [cell for cell in wanted if (cell, version()) not in there]
    add_rows(args.out, missing, partial(measured, rows=rows), args.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
