"""The speed of a link as users write it: `1gbit`, `250mbit`."""

import re

from jaxnet.errors import InputError

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_LEAST, _MOST = 10**6, 100 * 10**9


def parse_rate(text: str, option: str = "--rate") -> int:
    """Bits a second; `option` is what an error names.

    >>> parse_rate("1gbit"), parse_rate("2.5Mbit")
    (1000000000, 2500000)
    """
    written = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", text.lower(), re.ASCII)
    if not written:
        raise InputError(f"{option} {text}: wanted a number of kbit, mbit or gbit a second, such as 1gbit or 250mbit")
    bits = float(written[1]) * _UNITS[written[2]]
    if not _LEAST <= bits <= _MOST:
        raise InputError(f"{option} {text}: wanted 1mbit to 100gbit")
    return round(bits)
