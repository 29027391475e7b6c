"""Every notebook runs from top to bottom in a kernel of its own, as a reader would run it."""

import ast
import re
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from support.markdown import broken_links
from support.programs import ROOT, clean_environment

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
SHORT = ["07_cluster_on_paper.ipynb"]  # of a few seconds; the others compile and train
PUBLIC = {"flax", "jax", "jaxnet", "matplotlib", "numpy", *sys.stdlib_module_names}
# What Matplotlib says once on a new machine, and what compilers for accelerators say where they are installed.
USUAL = re.compile("building the font cache|All log messages before absl|^I0000")


def read(name):
    return nbformat.read(FOLDER / name, as_version=4)


def execute(notebook, folder):
    """Run all cells with `folder` as the working directory; a cell that fails raises CellExecutionError."""
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    # A bare environment but for this checkout, which need not be the one that is installed.
    environment = clean_environment()
    del environment["PYTHONWARNINGS"]
    return client.execute(env=environment)


def tagged(notebook, tag):
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def printed(cell, stream="stdout"):
    return "".join(output.text for output in cell.outputs if output.get("name") == stream)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SHORT)) for name in NOTEBOOKS]
)
def test_it_runs_in_any_folder_without_a_word_of_complaint_and_leaves_nothing(name, tmp_path):
    notebook = execute(read(name), tmp_path)
    assert list(tmp_path.iterdir()) == []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    complaints = [line for cell in code for line in printed(cell, "stderr").splitlines()]
    assert [line for line in complaints if not USUAL.search(line)] == []
    for cell in tagged(notebook, "accuracy"):
        found = re.search(r"test accuracy (\d\.\d+)", printed(cell))
        assert found
        assert float(found[1]) >= 0.97


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_kept_without_outputs(name):
    code = [cell for cell in read(name).cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_imports_what_its_reader_has_and_its_links_lead_somewhere(name):
    assert broken_links(f"notebooks/{name}") == []
    code = [cell.source for cell in read(name).cells if cell.cell_type == "code"]
    for node in ast.walk(ast.parse("\n".join(code))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert {name.partition(".")[0] for name in names} <= PUBLIC


def test_the_first_one_shows_an_accuracy():
    assert tagged(read("01_first_training.ipynb"), "accuracy")
