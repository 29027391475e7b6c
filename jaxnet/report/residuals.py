"""A picture of what a model of a step gets wrong: messages beside their line, steps beside their predictions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from jaxnet.figures import COLOURS, curve_style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Pair(NamedTuple):
    """A time beside what a model says of it, in seconds.

    Attributes:
        said: by the model.
        measured: and so.
        learned: whether the model has learned from it.
    """

    said: float
    measured: float
    learned: bool = False

    @property
    def off(self) -> float:
        """How much too high the model is, as a part of what was measured.

        >>> round(Pair(said=0.9, measured=1.2).off, 6)
        -0.25
        """
        return self.said / self.measured - 1


def draw_residuals(title: str, messages: Mapping[str, Mapping[int, Pair]], steps: Mapping[str, Pair]) -> "Figure":
    """How far lines are from messages by their bytes, and predictions from steps by their plans.

    Args:
        title: what was measured.
        messages: of each kind of collective, by bytes.
        steps: by label of the plan; pale where the prediction was learned from it.

    Raises:
        InputError: matplotlib is missing.
    """
    figure = new_figure(10, max(3.0, 1.2 + 0.25 * len(steps)))
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    by_bytes, by_plan = figure.subplots(1, 2)
    for index, (kind, pairs) in enumerate(messages.items()):
        by_bytes.plot([*pairs], [pair.off for pair in pairs.values()], label=kind, **curve_style(index))
    by_bytes.set_xscale("log", base=2)
    by_bytes.xaxis.set_major_formatter(lambda value, _: f"{value / 1024:,.0f}")
    by_bytes.set(xlabel="KiB of a message", ylabel="its line, over what it took")
    if messages:
        by_bytes.legend(frameon=False, fontsize=8)
    colours = [COLOURS[0] + ("55" if pair.learned else "") for pair in steps.values()]
    by_plan.barh([*steps], [pair.off for pair in steps.values()], color=colours)
    by_plan.invert_yaxis()
    by_plan.tick_params(axis="y", labelsize=7)
    by_plan.set(xlabel="prediction, over the step as timed; pale: learned from it")
    by_bytes.yaxis.set_major_formatter("{x:+.2%}")
    by_plan.xaxis.set_major_formatter("{x:+.1%}")
    by_plan.locator_params(axis="x", nbins=5)
    by_bytes.axhline(0, color="0.6", linewidth=1)
    by_plan.axvline(0, color="0.6", linewidth=1)
    for axis in (by_bytes, by_plan):
        axis.spines[["right", "top"]].set_visible(False)
    return figure
