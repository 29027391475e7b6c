"""Refuses values that no program and no system takes: too large whole numbers, and text that ends C's."""

from typing import Any

import jax

from jaxnet.errors import InputError
from jaxnet.training.settings.keys import is_group, key_values

_MOST = 10**9  # programs count in int32
_LARGER = ("seed", "_bytes")  # how keys end whose numbers no program counts to


def check_limits(config: Any) -> None:
    """Refuse an integer whose size is over 10^9, and text with a NUL character; alone or in a tuple."""
    for key, value, _ in key_values(config):
        for leaf in [] if is_group(value) else jax.tree.leaves(value):
            if isinstance(leaf, int) and abs(leaf) > _MOST and not key.endswith(_LARGER):
                shown = str(leaf) if abs(leaf) < 10**30 else f"an integer of {leaf.bit_length()} bits"
                raise InputError(f"{key}={shown}: wanted {f'at most {_MOST}' if leaf > 0 else f'at least {-_MOST}'}")
            if isinstance(leaf, str) and "\0" in leaf:
                raise InputError(f"{key}={leaf!r:.60}: wanted text without NUL characters, which no file name has")
