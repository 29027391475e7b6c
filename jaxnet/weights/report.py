"""What a conversion did with every name of the file and of the model."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Misfit(NamedTuple):
    """A tensor of another shape than the variable that it should become; both shapes as PyTorch has them."""

    tensor: str
    got: tuple[int, ...]
    wanted: tuple[int, ...]


class Report(NamedTuple):
    """Every name on either side, in one of these places.

    Attributes:
        converted: variables that got their values.
        new_head: variables of classifiers, left out because a new head was asked for.
        auxiliary: variables or tensors of auxiliary heads that the other side lacks.
        missing: tensors that the model needs and the file lacks.
        surplus: tensors of the file that the model has no place for.
        misfits: tensors of another shape than the model's.
        other_classes: those of them that another number of classes explains.
    """

    converted: Sequence[str]
    new_head: Sequence[str]
    auxiliary: Sequence[str]
    missing: Sequence[str]
    surplus: Sequence[str]
    misfits: Sequence[Misfit]
    other_classes: Sequence[Misfit]

    @property
    def unmatched(self) -> int:
        """How many names found no counterpart, but for what was left out on purpose."""
        return sum(map(len, (self.missing, self.surplus, self.misfits, self.other_classes)))

    def lines(self) -> Iterator[str]:
        """The report as text, a name a line."""
        yield f"{len(self.converted)} variables converted"
        yield from _listed("left out, because a new head was asked for", self.new_head)
        yield from _listed("left out, auxiliary heads that only one side has", self.auxiliary)
        yield from _listed("missing in the file", self.missing)
        yield from _listed("without a place in the model", self.surplus)
        yield from _listed("of another shape", map(_shapes, self.misfits))
        yield from _listed("of another number of classes", map(_shapes, self.other_classes))


def _listed(title: str, names: Iterable[str]) -> Iterator[str]:
    listed = [f"  {name}" for name in names]
    if listed:
        yield f"{title}: {len(listed)}"
        yield from listed


def _shapes(misfit: Misfit) -> str:
    return f"{misfit.tensor} is {list(misfit.got)}, wanted {list(misfit.wanted)}"
