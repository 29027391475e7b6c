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


def setup(app: Any) -> None:
    """Pages of the repository that are not below docs/ are not pages of the site: their links become their paths."""
    app.connect("source-read", _leave_out_other_pages)


def _leave_out_other_pages(app: Any, page: str, content: list[str]) -> None:
    docs = Path(app.srcdir)

    def shown(link: re.Match[str]) -> str:
        target = ((docs / page).parent / link[2]).resolve()
        return link[0] if target.is_relative_to(docs) else f"{link[1]} (`{target.relative_to(docs.parent)}`)"

    content[0] = re.sub(r"\[([^\]]+)\]\(([^)#:]+\.md)(?:#[^)]*)?\)", shown, content[0])
