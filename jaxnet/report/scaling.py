"""Pictures of how a run grows: efficiency against devices, and which strategy is best where."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from jaxnet.figures import COLOURS, curve_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points: TypeAlias = Sequence[tuple[int, float]]  # (devices, efficiency)

_PANELS = 3  # beside each other


class Scaling(NamedTuple):
    """Efficiency against the number of devices.

    Attributes:
        title: what is simulated.
        curves: by strategy.
        limit: what no strategy exceeds that sends the gradients as they are.
        unhidden: what the first curve would be if nothing travelled before the end of backward; between is shaded.
        published: measured by others, as stars.
    """

    title: str
    curves: Mapping[str, Points]
    limit: Points
    unhidden: Points = ()
    published: Points = ()


def draw_scaling(scaling: Scaling, best: Mapping[tuple[int, int], str] | None = None) -> "Figure":
    """One of them.

    Args:
        scaling: what is drawn.
        best: the best strategy for (devices, examples of a device), as a map beside the curves.

    Raises:
        InputError: matplotlib is missing.
    """
    figure = new_figure(11 if best else 7, 4.2)
    curve_axis, *map_axis = figure.subplots(1, 2 if best else 1, squeeze=False)[0]
    _draw_curves(curve_axis, scaling)
    if best:
        _draw_map(map_axis[0], best, list(scaling.curves))
    return figure


def draw_scalings(scalings: Sequence[Scaling]) -> "Figure":
    """Several, three beside each other.

    Raises:
        InputError: matplotlib is missing.
    """
    rows = -(-len(scalings) // _PANELS)
    figure = new_figure(4.5 * _PANELS, 3.2 * rows)
    axes = list(figure.subplots(rows, _PANELS, squeeze=False).flat)
    for axis, scaling in zip(axes, scalings, strict=False):
        _draw_curves(axis, scaling)
    for axis in axes[len(scalings) :]:
        axis.set_visible(False)
    return figure


def _draw_curves(axis: "Axes", scaling: Scaling) -> None:
    axis.set_title(scaling.title, loc="left", fontsize=9)
    axis.plot(*zip(*scaling.limit, strict=True), color="0.6", linestyle="--", label="at most")
    for index, (label, points) in enumerate(scaling.curves.items()):
        style = curve_style(index)
        colour = style["color"]
        axis.plot(*zip(*points, strict=True), label=label, markersize=4, color=colour, marker=style["marker"])
        _mark_where_it_shows(axis, points, colour)
    if scaling.unhidden:
        devices, lowest = zip(*scaling.unhidden, strict=True)
        highest = [efficiency for _, efficiency in next(iter(scaling.curves.values()))]
        axis.fill_between(
            devices, lowest, highest, label="down to: nothing hidden", color=COLOURS[0], alpha=0.15, linewidth=0
        )
    if scaling.published:
        axis.plot(*zip(*scaling.published, strict=True), "k*", markersize=9, label="published")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.set(xlabel="devices", ylabel="efficiency", ylim=(0, 1.05))
    axis.spines[["right", "top"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower left")


def _mark_where_it_shows(axis: "Axes", points: Points, colour: str) -> None:
    """An arrow at the first number of devices with which a tenth of the rate is lost."""
    for devices, efficiency in points:
        if efficiency < 0.9:
            axis.annotate(
                f"{devices:,}", (devices, efficiency), (0, -16), textcoords="offset points",
                ha="center", fontsize=7, color=colour, arrowprops={"arrowstyle": "-", "color": colour},
            )  # fmt: skip
            return


def _draw_map(axis: "Axes", best: Mapping[tuple[int, int], str], labels: Sequence[str]) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    devices = sorted({each for each, _ in best})
    batches = sorted({each for _, each in best})
    cells = [[labels.index(best[count, batch]) for count in devices] for batch in batches]
    shown = ListedColormap([COLOURS[index % len(COLOURS)] for index in range(len(labels))])
    axis.imshow(cells, origin="lower", aspect="auto", cmap=shown, vmin=-0.5, vmax=len(labels) - 0.5, alpha=0.6)
    for row, column in ((row, column) for row in range(len(batches)) for column in range(len(devices))):
        axis.text(column, row, chr(ord("A") + cells[row][column]), ha="center", va="center", fontsize=8)
    axis.set_xticks(range(len(devices)), [f"{count:,}" for count in devices], rotation=45, fontsize=7)
    axis.set_yticks(range(len(batches)), [f"{batch:,}" for batch in batches], fontsize=7)
    axis.set(xlabel="devices", ylabel="examples of a device")
    axis.set_title("the fastest strategy", loc="left", fontsize=9)
    found = {index for row in cells for index in row}
    handles = [
        Patch(facecolor=COLOURS[index % len(COLOURS)], alpha=0.6, label=f"{chr(ord('A') + index)}: {labels[index]}")
        for index in sorted(found)
    ]
    axis.legend(handles=handles, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
