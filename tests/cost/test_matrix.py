"""`python -m benchmarks.matrix` and `python -m benchmarks.fitting`: which cells, what is kept, what the tables say."""

import json

import pytest

from benchmarks import fitting, matrix
from benchmarks.compiling import read_rows
from benchmarks.fitting import Need, largest_batch
from jaxnet.errors import InputError

ROW = {
    "model": "digits",
    "cluster": "h100:2x8",
    "jax": "0.10.2",
    "planned": 4,
    "missing": 1,
    "collectives": 5,
    "beside": 2,
    "hidden_share": 0.47,
    "exposed_seconds": 3e-5,
    "step_seconds": 4e-5,
    "memory_bytes": 2**29,
    "fits": True,
}


def test_sparse_cores_are_a_row_where_there_are_some():
    cells = list(matrix.cells(["digits"], ["v5e:4x4", "v5p:2x2x4"], ["xla", "ddp"]))
    assert [(cell.cluster, cell.strategy) for cell in cells] == [
        ("v5e:4x4", "xla"),
        ("v5e:4x4", "ddp"),
        ("v5p:2x2x4", "xla"),
        ("v5p:2x2x4", "ddp"),
        ("v5p:2x2x4", "ddp with sparse_cores"),
    ]


def test_in_short_marks_the_default_and_what_is_longer_than_one_sum():
    longer = {**ROW, "missing": 0, "step_seconds": 5e-5}
    rows = [
        {**ROW, "strategy": "xla", "planned": 0, "missing": 0},
        {**longer, "strategy": "hierarchical"},
        {**longer, "strategy": "ddp", "cluster": "v5e:4x4"},
    ]
    lines = [line for line in matrix.page(rows).splitlines() if line.startswith("| ")]
    assert lines[:5] == [
        "| strategy | h100:2x8 | v5e:4x4 |",
        "| --- | --- | --- |",
        "| xla | 47%, 0.03 | not tried |",
        "| ddp | not tried | **47%, 0.03** |",
        "| hierarchical | **> 47%, 0.03** | not tried |",
    ]


def test_cells_that_are_there_are_not_made_again(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(matrix, "compiled", lambda cell: made.append(cell) or {**ROW, **cell._asdict()})
    command = ["--out", str(tmp_path / "m.jsonl"), "--model", "digits", "--on", "h100:2x8", "--strategy", "ddp"]
    assert matrix.main([*command, "--strategy", "xla"]) == matrix.main([*command, "--strategy", "zero"]) == 0
    assert [cell.strategy for cell in made] == ["ddp", "xla", "zero"]


def test_a_cell_that_failed_is_made_again(tmp_path, monkeypatch):
    """Such as one that a busy machine did not end in time; the page has what came of it last."""
    answers = iter([{"error": "no end after 1800 s"}, {}])
    monkeypatch.setattr(matrix, "compiled", lambda cell: {**ROW, **cell._asdict(), **next(answers)})
    command = ["--out", str(tmp_path / "m.jsonl"), "--model", "digits", "--on", "h100:2x8", "--strategy", "ddp"]
    assert [matrix.main(command) for _ in range(3)] == [0, 0, 0]
    rows = read_rows(tmp_path / "m.jsonl")
    assert [row.get("error") for row in rows] == ["no end after 1800 s", None]
    assert "no end" not in matrix.page(rows)


def test_a_page_has_a_line_for_each_cell(tmp_path):
    rows = [
        {**ROW, "strategy": "xla", "planned": 0, "missing": 0},
        {**ROW, "strategy": "ddp with sparse_cores", "fits": False},
        {**ROW, "strategy": "ddp"},
        {"model": "digits", "cluster": "h100:2x8", "strategy": "zero", "error": "killed by signal 6"},
    ]
    page = matrix.page(rows)
    assert "JAX 0.10.2." in page
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert "0 of 2 plans were found whole." in page
    assert lines[2:6] == [
        "| xla | 47%, 0.03 |",
        "| ddp | 47%, 0.03, lacks 1 |",
        "| ddp with sparse_cores | 47%, 0.03, lacks 1 |",
        "| zero | fails |",
    ]
    assert lines[8:] == [
        "| xla | — | — | 2 of 5 | 47% | 0.03 | 0.04 | 0.50 |",
        "| ddp | 4 | 3 | 2 of 5 | 47% | 0.03 | 0.04 | 0.50 |",
        "| ddp with sparse_cores | 4 | 3 | 2 of 5 | 47% | 0.03 | 0.04 | 0.50, does not fit |",
        "| zero | killed by signal 6 | | | | | | |",
    ]
    with pytest.raises(InputError, match="has no cells yet"):
        matrix.main(["--out", str(tmp_path / "none.jsonl"), "--page", str(tmp_path / "page.md")])


@pytest.mark.parametrize("guess", [1, 4, 128, 4096])
@pytest.mark.parametrize(("limit", "batch"), [(1000, 128), (107, 1), (106, 0), (10**9, 2**20)])
def test_the_largest_batch_is_found_from_any_guess(guess, limit, batch):
    found = largest_batch(lambda size: Need(100 + 7 * size), limit, guess)
    assert found == (batch, Need(100 + 7 * batch) if batch else None)


def test_a_compiler_that_says_that_it_is_full_is_asked_for_less():
    assert largest_batch(lambda size: None if size > 10 else Need(1), 5, guess=64) == (8, Need(1))


@pytest.mark.parametrize(
    ("fails_above", "batch", "note"),
    [
        (4096, 4096, "with 8,192 examples: killed by signal 6"),
        (10**5, 65536, "with 131,072 examples: killed by signal 6"),
    ],
)
def test_a_batch_that_fits_is_kept_where_more_end_the_compiler(monkeypatch, fails_above, batch, note):
    def compiled(cell, batch):
        return {"bytes": 10**9, "note": ""} if batch <= fails_above else {"error": "killed by signal 6"}

    monkeypatch.setattr(fitting, "_compiled", compiled)
    row = fitting.measured(fitting.Cell("alexnet", "bfloat16", "h100:1x1"))
    assert (row["batch"], row["note"]) == (batch, note)


def test_few_compilations_find_it():
    """A step whose parameters need little needs twice as much for twice as many examples."""
    asked = []
    found = largest_batch(lambda size: asked.append(size) or Need(100 + 7 * size), 7 * 10**6, guess=64)
    assert found[0] == 2**19
    assert asked == [64, 2**19, 2**20]


def test_the_tables_have_a_column_a_device_and_version(tmp_path, monkeypatch):
    answers = {"alexnet": {"bytes": 10**10, "note": ""}, "lstm": {"error": "no such kernel", "full": False}}
    monkeypatch.setattr(fitting, "_compiled", lambda cell, batch: answers[cell.network])
    out = tmp_path / "f.jsonl"
    command = ["--out", str(out), "--dtype", "bfloat16", "--on", "h100:1x1"]
    assert fitting.main([*command, "--network", "alexnet"]) == 0
    assert fitting.main([*command, "--network", "alexnet", "--network", "lstm"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["network"] for row in rows] == ["alexnet", "lstm"]
    lines = list(fitting.tables([{**row, "jax": "0.10.2"} for row in rows]))
    assert lines[0] == "| network | dtype | h100, JAX 0.10.2 |"
    page = matrix.page([], rows)
    assert "## The largest batch of a device" in page
    assert page.count("| alexnet |") == 1
    assert lines[2:] == [
        "| alexnet | bfloat16 | at least 1,048,576 (9.3 GiB) |",
        "| lstm | bfloat16 | with 65,536 examples: no such kernel |",
    ]
