"""Labels are numbers of classes."""

import numpy as np

from jaxnet.errors import InputError


def require_labels(labels: np.ndarray, num_classes: int, origin: str) -> None:
    """Raise InputError, which names the origin, unless all labels are 0 .. num_classes - 1.

    A loss takes any other for no class at all: a run would train towards zero loss without a word.
    """
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= num_classes:
        raise InputError(
            f"labels of {origin} must be 0 .. {num_classes - 1} for {num_classes} classes, got {labels.min()} .. "
            f"{labels.max()}; TFDS gives -1 to what has no label, so choose a split that has labels"
        )
