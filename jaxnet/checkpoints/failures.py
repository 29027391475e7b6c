"""Why something was not written, in words that all processes can be told."""

import os
import re
from collections.abc import Callable
from typing import Any

from jaxnet.checkpoints.lock import Lost

LOST = "lost: "  # how a failure begins that ends the run


def why_not(act: Callable[[], Any]) -> str:
    """Why `act` failed; "" if it went well.

    >>> why_not(lambda: open("/nowhere/at/all")), why_not(lambda: None)
    ('No such file or directory', '')
    """
    try:
        act()
    except Lost as error:
        return f"{LOST}{error}"
    except Exception as error:
        # What Orbax's storage reports buries the system's reason in a paragraph of its own paths.
        code = re.search(r"os_error_code='(\d+)'", str(error))
        number = int(code[1]) if code else error.errno if isinstance(error, OSError) else None
        return os.strerror(number) if number else (str(error) or type(error).__name__).splitlines()[0]
    return ""
