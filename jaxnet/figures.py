"""Pictures with matplotlib, which is imported when one is drawn: an empty figure, its colours, and its files."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxnet.errors import InputError
from jaxnet.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart. Markers, hatches or letters say the same.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07800", "#56b4e9", "#333333")
COLLECTIVE_COLOURS = {
    "reduce-scatter": COLOURS[0],
    "all-reduce": COLOURS[1],
    "all-gather": COLOURS[2],
    "all-to-all": COLOURS[3],
    "collective-permute": COLOURS[4],
}
_MARKERS = "os^Dvx+*P<>"
HATCHES = {
    "reduce-scatter": "//",
    "all-reduce": "",
    "all-gather": "\\\\",
    "all-to-all": "..",
    "collective-permute": "xx",
}


def curve_style(index: int) -> dict[str, str]:
    """Colour and marker of a picture's curve number `index`."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": _MARKERS[index % len(_MARKERS)]}


def require_matplotlib() -> None:
    """Refuse what would end in a picture before it is measured; InputError if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            "the picture needs matplotlib, which is not installed: pip install matplotlib, or install jaxnet with "
            "its extra 'notebooks'"
        )


def new_figure(width: float, height: float) -> "Figure":
    """An empty picture of so many inches; InputError if matplotlib is missing."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def write_figure(figure: "Figure", paths: Iterable[Path]) -> None:
    """Write a picture into each of these files, PNG or SVG by their names; whole or not at all.

    Raises:
        InputError: a file cannot be written.
    """
    for path in paths:
        try:
            with replacing(path) as fresh:
                figure.savefig(fresh, format=path.suffix[1:], dpi=150)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
