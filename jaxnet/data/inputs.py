"""What a network takes and gives, as far as its data set says so: saved with what is trained, for who uses it later."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from jaxnet.data.source import Source
from jaxnet.errors import InputError


@dataclass(frozen=True)
class Inputs:
    """Images and classes of a data set.

    Attributes:
        image_shape: (height, width, channels) of the uint8 images.
        num_classes: labels are 0 .. num_classes - 1.
        class_names: one a class; empty where the data set has none.
        resize: the shorter side to which a picture is brought before its centre is cut out; None: a picture is
            resized to height and width as a whole.

    >>> Inputs((8, 8, 1), 2, ("no", "yes")).name_of(1), Inputs((8, 8, 1), 2).name_of(1)
    ('yes', '1')
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    class_names: tuple[str, ...] = ()
    resize: int | None = None

    def __post_init__(self) -> None:
        sizes = [*self.image_shape, self.num_classes, self.resize or 1]
        if len(self.image_shape) != 3 or not all(type(size) is int and size > 0 for size in sizes):
            raise InputError(f"wanted (height, width, channels) and a number of classes, got {self}")
        if len(self.class_names) not in (0, self.num_classes):
            raise InputError(f"there are {len(self.class_names)} names of classes for {self.num_classes} classes")

    def name_of(self, label: int) -> str:
        """The class of that label, or the label itself; a network may have more outputs than there are classes."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Inputs:
        """The same again; raises InputError unless they are what `as_json` gives."""
        try:
            tuples = {key: tuple(values[key]) for key in ("image_shape", "class_names")}
            return cls(**{**values, **tuples})
        except (KeyError, TypeError) as error:
            raise InputError(f"these are not the inputs of a network: {values!r:.200}") from error


def inputs_of(source: Source) -> Inputs:
    """What a network that is tested on `source` takes; a source may have `class_names` and `resize` besides.

    >>> from jaxnet.data import Digits
    >>> inputs_of(Digits().load("test")).class_names[:3]
    ('0', '1', '2')
    """
    return Inputs(
        image_shape=source.image_shape,
        num_classes=source.num_classes,
        class_names=tuple(getattr(source, "class_names", ())),
        resize=getattr(source, "resize", None),
    )
