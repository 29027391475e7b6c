"""The documentation site, which `make docs` writes to build/docs: the pages of docs/, and what docstrings say."""

import re
from pathlib import Path
from typing import Any

project = "jaxnet"
author = "the jaxnet authors"
root_doc = "site/index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md"]  # site/index.md says the same
html_theme = "furo"
html_title = "jaxnet"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_use_ivar = True


default_role = "code"  # `name` in a docstring


def setup(app: Any) -> None:
    """Pages of the repository that are not below docs/ are not pages of the site: their links become their paths."""
    app.connect("source-read", _leave_out_other_pages)
    app.connect("autodoc-process-docstring", _keep_as_it_stands, priority=400)  # before napoleon, at 500


def _leave_out_other_pages(app: Any, page: str, content: list[str]) -> None:
    docs = Path(app.srcdir)

    def shown(link: re.Match[str]) -> str:
        target = ((docs / page).parent / link[2]).resolve()
        return link[0] if target.is_relative_to(docs) else f"{link[1]} (`{target.relative_to(docs.parent)}`)"

    content[0] = re.sub(r"\[([^\]]+)\]\(([^)#:]+\.md)(?:#[^)]*)?\)", shown, content[0])


def _keep_as_it_stands(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Blocks that are indented, and those in columns, are shown as they are written: code, pictures, tables."""
    blocks = [block.split("\n") for block in "\n".join(lines).strip("\n").split("\n\n")]
    made: list[str] = []
    in_section = False
    for block in blocks:
        if not block[0].startswith(" "):
            in_section = bool(re.fullmatch(r"[A-Z]\w+:", block[0]))
        indented = all(line.startswith("    ") for line in block) and not in_section
        in_columns = len(block) > 1 and all(re.match(r"\S+(?:,? \S+)* {2,}\S", line) for line in block)
        if (indented or in_columns) and not block[0].lstrip().startswith((">>>", "- ", "..")):
            made += ["::", "", *(line if indented else f"    {line}" for line in block), ""]
        else:
            made += [*block, ""]
    lines[:] = made
