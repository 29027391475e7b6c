"""The README and the pages under docs/: programs run, links lead somewhere, design notes stay short."""

import re

import pytest

from support.markdown import blocks, broken_links, check_python, pages
from support.programs import ROOT

PAGES = ["README.md", *pages("docs")]
# test_ten_minutes.py runs that page as a whole.
PROGRAMS = [block for page in PAGES if page != "docs/guide/ten_minutes.md" for block in blocks(page, "python")]
# tests/training/test_front_door.py does the same, and test_readme.py trains what my_config.py holds.
AGAIN = [block for block in PROGRAMS if "configs/digits.py" in block.text or "my_config" in block.text]
QUICK = [block for block in PROGRAMS if block.page in ("README.md", "docs/using_comm.md") and block not in AGAIN]
OURS = {"jaxnet", "configs", "tests", "benchmarks", "launch", "notebooks", "docs", "tools"}
NOTES = [page for page in pages("docs/design") if not page.endswith("README.md")]


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, id=str(block), marks=[pytest.mark.slow] * (block not in QUICK)) for block in PROGRAMS],
)
def test_a_program_runs_as_it_stands(block, tmp_path):
    check_python(block, tmp_path)


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/peers/README.md"])
def test_links_lead_somewhere(page):
    assert broken_links(page) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/LOG.md"])  # the log is as it was written
def test_files_that_are_named_are_there(page):
    named = re.findall(r"`((?:[\w.]+/)+[\w.]*)`", (ROOT / page).read_text())
    ours = [path for path in named if path.split("/")[0] in OURS]
    assert [path for path in ours if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", NOTES)
def test_a_design_note_is_one_page_and_listed(page):
    text = (ROOT / page).read_text()
    assert text.count("\n") <= 60
    assert f"]({page.rpartition('/')[2]})" in (ROOT / "docs/design/README.md").read_text()
