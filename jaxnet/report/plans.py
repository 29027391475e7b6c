"""What a step sends, as pictures: the messages of one plan, and the bytes of several strategies beside each other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jaxnet.figures import COLLECTIVE_COLOURS, COLOURS, HATCHES, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
_NARROWEST = 0.025  # of the picture's width, for a number in a box
_MOST_NUMBERED = 60


class Sent(NamedTuple):
    """A message, or the part of one that the busiest device sends.

    Attributes:
        kind: of collective; '' for a bucket before it travels.
        bytes: of a step.
    """

    kind: str
    bytes: float


def draw_plan(title: str, rows: Mapping[str, Sequence[Sent]]) -> "Figure":
    """A row of boxes for the buckets and for each axis: a message a box, as long as its bytes, in order of issue.

        buckets  |  0  |    1    | 2 |
        device   | RS  |AG |   RS    |   AG ...
        host     |  AR  |   AR  | AR |

    Args:
        title: above it.
        rows: by the name of the row, from above.

    Raises:
        InputError: matplotlib is missing.
    """
    longest = max((sum(sent.bytes for sent in row) for row in rows.values()), default=0)
    size, unit = _unit(longest)
    figure = new_figure(10, 1.5 + 0.55 * len(rows))
    axis = figure.subplots()
    for place, row in enumerate(rows.values()):
        _draw_row(axis, place, row, size, longest / size)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set(xlabel=f"{unit}; below the buckets: sent by the busiest device in a step", xlim=(0, 1.12 * longest / size))
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_title(title, loc="left", fontsize=9, wrap=True)
    axis.spines[["right", "top", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    _add_legend(figure, {sent.kind for row in rows.values() for sent in row})
    return figure


def _draw_row(axis: "Axes", place: int, row: Sequence[Sent], size: int, longest: float) -> None:
    left = 0.0
    for number, sent in enumerate(row):
        width = sent.bytes / size
        colour, hatch = COLLECTIVE_COLOURS.get(sent.kind, "0.75"), HATCHES.get(sent.kind, "")
        axis.barh(place, width, 0.6, left, facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0.6)
        if not sent.kind and width > _NARROWEST * longest and len(row) <= _MOST_NUMBERED:
            axis.text(left + width / 2, place, str(number), ha="center", va="center", fontsize=8)
        left += width
    axis.text(left + 0.006 * longest, place, f"{left:.3g} in {len(row)}", va="center", fontsize=8)


def _add_legend(figure: "Figure", kinds: set[str]) -> None:
    from matplotlib.patches import Patch

    shown = [kind for kind in COLLECTIVE_COLOURS if kind in kinds]
    handles = [
        Patch(facecolor=COLLECTIVE_COLOURS[kind], hatch=HATCHES[kind], edgecolor="white", label=kind) for kind in shown
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False, fontsize=8)


def draw_sent(title: str, sent: Mapping[str, Mapping[str, float]]) -> "Figure":
    """Bytes of a step by strategy, a bar each, cut by the axes over which they travel.

    Args:
        title: above it.
        sent: by strategy, bytes by axes; the first strategy on top.

    Raises:
        InputError: matplotlib is missing.
    """
    longest = max((sum(row.values()) for row in sent.values()), default=0)
    size, unit = _unit(longest)
    figure = new_figure(8, 1.4 + 0.26 * len(sent))
    bars = figure.subplots()
    ends = [0.0] * len(sent)
    for index, axis in enumerate(dict.fromkeys(axis for row in sent.values() for axis in row)):
        lengths = [row.get(axis, 0) / size for row in sent.values()]
        for bar in bars.barh(range(len(sent)), lengths, 0.7, ends, label=f"over {axis}"):
            bar.set(facecolor=COLOURS[index % len(COLOURS)], hatch=("", "//", "..")[index % 3], edgecolor="white")
        ends = [end + length for end, length in zip(ends, lengths, strict=True)]
    bars.set_yticks(range(len(sent)), list(sent), fontsize=8)
    bars.set(xlabel=f"{unit} that the busiest device sends in a step", xlim=(0, 1.05 * longest / size))
    bars.set_ylim(len(sent) - 0.4, -0.6)
    bars.set_title(title, loc="left", fontsize=10)
    bars.spines[["right", "top"]].set_visible(False)
    figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=8)
    return figure


def _unit(longest: float) -> tuple[int, str]:
    """The largest unit that is no longer than a bar, in bytes and by name."""
    return next((each for each in _UNITS if longest >= each[0]), _UNITS[-1])
