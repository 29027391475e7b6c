"""Models, tasks, data sets, optimizers, strategies and files that are wrong: one line, status 2, nothing is written.

The cases are those of `python -m benchmarks.fuzz`. A few of each kind run with every change, all with `-m slow`.
"""

from pathlib import Path

import numpy as np
import pytest

import jaxnet
import train
from benchmarks.fuzzing.wrong import WRONG
from jaxnet.errors import InputError, exit_cleanly
from support.refusals import TINY, one_line, refused, says

# What nobody knows before the run: it has a workdir by then.
IN_THE_RUN = {
    ("task", "weights that are all 0"),
    ("task", "a report that fails later"),
    ("data", "rows that exit later"),
    ("data", "rows of another shape later"),
}
OFTEN = {
    "model": (
        "no parameters",
        "a tuple",
        "integer logits",
        "complex logits",
        "logits of the whole batch",
        "integer parameters",
        "parameters that depend on the batch",
        "running averages that change shape",
        "an exception",
        "an exception in training",
        "an exception in evaluation",
        "an exception of its own kind",
        "an exception that cannot be shown",
        "an exit",
        "a failing repr of its own",
        "an init that gives nothing",
        "more classes than memory in an own model",
    ),
    "task": (
        "measures that raise no Exception",
        "an integer loss",
        "weights of another shape",
        "augmentation that fails",
        "a report of text",
        "a best mode",
        "a group of 0",
        "units of text",
        "warnings that fail",
        "a loss of its own with one result",
        "a failing attribute",
    ),
    "data": (
        "a load that exits",
        "a data class that holds itself",
        "a failing repr of its own",
        "fields that fail",
        "no examples",
        "nan examples",
        "more examples than there are",
        "rows without a label",
        "rows of another shape",
        "rows of objects",
        "rows of another shape later",
        "labels below 0",
        "a height of 0",
        "classes below 0",
        "threads without end",
        "random rows of another length",
        "items without a length",
    ),
    "optimizer": ("a function that exits", "a factory of Optax", "an update of other shapes", "a state that changes"),
    "strategy": ("reduce that fails", "reduce that gives another structure"),
    "file": (
        "binary",
        "sums without end",
        "an exception that cannot be shown",
        "an exception of one's own kind",
        "an exit of a generator",
        "no end of calls",
        "a coroutine",
        "a value whose repr fails",
        "a config without a field",
        "an exception with control characters",
    ),
}
CASES = [
    pytest.param(kind, name, id=f"{kind}: {name}", marks=[] if name in OFTEN[kind] else pytest.mark.slow)
    for kind, cases in WRONG.items()
    for name, wrong in cases.items()
    if wrong.words
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_part_that_is_wrong(kind, name, tmp_path, capsys):
    wrong = WRONG[kind][name]
    path, workdir = tmp_path / "wrong.py", tmp_path / "run"
    path.write_bytes(wrong.file())
    message = refused(lambda: train.main(["--config", str(path), "--workdir", str(workdir), "--json"]), capsys)
    says(message, wrong.words)
    assert message.isprintable()
    assert workdir.exists() == ((kind, name) in IN_THE_RUN)


def test_the_often_tested_cases_are_there():
    assert not [(kind, name) for kind, names in OFTEN.items() for name in names if name not in WRONG[kind]]


# ---- From Python: the same errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("epochs", "1", "epochs is '1', wanted a number"),
        ("epochs", True, "epochs is True, wanted a number"),
        ("batch_size", 16.0, "batch_size is 16.0, wanted an integer"),
        ("log", None, "log is None, wanted Log"),
        ("shard_dense", ["fc"], r"shard_dense is \['fc'\], wanted a comma-separated tuple"),
        ("mode", [], r"mode is \[\], wanted one of auto"),
        ("eval_every_epochs", 1e308, "eval_every_epochs=1e\\+308: wanted .* this is infinite"),
        ("epochs", 1e-320, "epochs=1e-320: wanted 0, or at least 1e-38"),
        ("epochs", float("nan"), "epochs is nan, wanted a number"),
        ("initial_weights", "/nowhere", "/nowhere"),
    ],
)
def test_a_config_of_python_is_refused_as_one_of_a_file(field, value, said, tmp_path):
    config = jaxnet.Config(
        jaxnet.models.CNN(2, widths=(2,), hidden=4), jaxnet.data.Synthetic((8, 8, 1), 2, 32, 16), 1, 16
    )
    object.__setattr__(config, field, value)
    with pytest.raises(InputError, match=said):
        jaxnet.train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_are_numbers(tmp_path):
    config = jaxnet.Config(
        jaxnet.models.CNN(2, widths=(2,), hidden=4), jaxnet.data.Synthetic((8, 8, 1), 2, 32, 16), 1, np.int64(16)
    )
    experiment = jaxnet.prepare(config)
    assert experiment.total_steps == 2
    assert jaxnet.config.keys.flatten(config)["batch_size"] == 16


# ---- The traceback of the user's own code -------------------------------------------------------------------------

FAILING = """
import flax.linen as nn

class Mine(nn.Module):
    @nn.compact
    def __call__(self, images):
        return self.nothing  # HERE
"""


@pytest.mark.parametrize("where", ["the model", "the file"])
@pytest.mark.parametrize("verbose", [False, True])
def test_verbose_shows_the_users_own_traceback(where, verbose, tmp_path, capsys):
    path = tmp_path / "wrong.py"
    own = FAILING + TINY.replace("CNN(2, widths=(2,), hidden=4)", "Mine()")
    path.write_text(own if where == "the model" else "def broken():\n    1 / 0  # HERE\nbroken()\n")
    command = ["--config", str(path), "--workdir", str(tmp_path / "run"), *(["--verbose"] if verbose else [])]
    with pytest.raises(SystemExit) as ended:
        exit_cleanly(lambda: train.main(command))
    printed = capsys.readouterr()
    assert ended.value.code == 2
    *before, last = printed.err.splitlines()
    assert one_line(printed.out, last + "\n")
    assert ("Traceback" in printed.err, any("# HERE" in line for line in before)) == (verbose, verbose)


def test_an_error_of_a_file_on_a_disk_that_fails_is_no_mistake(monkeypatch):
    source = jaxnet.data.Synthetic((8, 8, 1), 2, 32, 16).load("train")
    like = jaxnet.data.example_shapes(source)
    monkeypatch.setattr(type(source), "rows", lambda self, indices: Path("/nowhere").read_text())
    with pytest.raises(FileNotFoundError):  # a launcher starts such a job again
        jaxnet.data.source.read_rows(source, [0], like)
