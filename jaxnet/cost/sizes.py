"""Numbers of bytes as people write them. Needs no JAX."""

import re

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def byte_size(text: str) -> int:
    """Bytes, with or without a unit.

    >>> byte_size("64KiB"), byte_size("100")
    (65536, 100)
    """
    found = re.fullmatch(r"([0-9]+)(B|KiB|MiB|GiB|)", text, re.ASCII)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} must be a number of bytes above 0, such as 100, 64KiB or 4MiB")
    return int(found[1]) * _UNITS[found[2]]
