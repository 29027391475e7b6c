"""What Orbax prints on its own when a save fails. Whoever asked for the save is told, in a line; this is left out."""

import functools
import logging
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


@functools.cache
def silence_orbax() -> None:
    """Leave out its log of errors, and what its writes say that end after the one that failed first."""
    logging.getLogger("absl").addFilter(_not_an_error_of_orbax)
    logging.getLogger("asyncio").addFilter(_not_a_later_write)
    others = sys.unraisablehook

    def but_closed_loops(unraisable: "UnraisableHookArgs") -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            others(unraisable)

    sys.unraisablehook = but_closed_loops


def _not_an_error_of_orbax(record: logging.LogRecord) -> bool:
    """Orbax logs a failed write with tracebacks from each of its threads, and raises it: `wait` tells it."""
    return record.levelno < logging.ERROR or f"{os.sep}orbax{os.sep}" not in record.pathname


def _not_a_later_write(record: logging.LogRecord) -> bool:
    failed = record.exc_info[1] if record.exc_info else None
    return not (isinstance(failed, ValueError) and "OCDBT database" in str(failed))
