"""Refuses whole numbers that are too large for what counts them."""

from typing import Any

import jax

from jaxnet.errors import InputError
from jaxnet.training.settings.keys import is_group, key_values

_MOST = 10**9  # programs count in int32
_LARGER = ("seed", "_bytes")  # how keys end whose numbers no program counts to


def check_integers(config: Any) -> None:
    """Refuse an integer, alone or in a tuple, whose size is over 10^9."""
    for key, value, _ in key_values(config):
        if is_group(value) or key.endswith(_LARGER):
            continue
        for number in jax.tree.leaves(value):
            if isinstance(number, int) and abs(number) > _MOST:
                shown = str(number) if abs(number) < 10**30 else f"an integer of {number.bit_length()} bits"
                raise InputError(f"{key}={shown}: wanted {f'at most {_MOST}' if number > 0 else f'at least {-_MOST}'}")
