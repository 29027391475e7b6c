"""What a notebook shows of a value: HTML in place of text. All text of others is escaped."""

import html
from collections.abc import Iterable, Sequence

_MOST_ROWS = 200


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; of very many rows the first ones, and how many more there are.

    >>> html_table(["axis", "bytes"], [["host", 2000]])
    '<table><thead><tr><th>axis</th><th>bytes</th></tr></thead><tbody><tr><td>host</td><td>2,000</td></tr></tbody></table>'
    """
    whole = list(rows)
    shown = [*whole[:_MOST_ROWS], *([[f"{len(whole) - _MOST_ROWS:,} more"]] if len(whole) > _MOST_ROWS else [])]
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in shown)
    first = "".join(f"<th>{_text(name)}</th>" for name in head)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"


def html_code(text: str) -> str:
    """Python, with its spaces as they are.

    >>> html_code("a < b")
    '<code style="white-space: pre-wrap">a &lt; b</code>'
    """
    return f'<code style="white-space: pre-wrap">{html.escape(text)}</code>'


def html_line(text: str) -> str:
    """A paragraph.

    >>> html_line("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{html.escape(text)}</p>"


def html_folded(title: str, inside: str) -> str:
    """HTML that is shown once the reader clicks on the title.

    >>> html_folded("more", "<p>text</p>")
    '<details><summary>more</summary><p>text</p></details>'
    """
    return f"<details><summary>{html.escape(title)}</summary>{inside}</details>"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else html.escape(str(value))
