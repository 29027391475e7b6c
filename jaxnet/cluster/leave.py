"""How a process of several ends: together with the others, or at once.

JAX's exit hook waits up to five minutes for all processes to end. A process that fails alone would
wait there for others that in turn wait for it in a collective, and no launcher could see that it failed.
"""

import os
import sys
import time
from types import TracebackType
from typing import NoReturn

import jax

from jaxnet.cluster import coordination, mpi

_TOGETHER_SECONDS = 2.0
_AFTER_ANOTHER_SECONDS = 0.5


def leave(status: int) -> NoReturn:
    """End this process with `status`; when that is a failure, without waiting for processes that go on.

    Where all fail together, as with a mistake in the configuration, they still end in good order, so that
    process 0, which serves the others, does not vanish before they have said what is wrong.
    """
    if status != 0 and jax.distributed.is_initialized() and not _all_leave():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    if status != 0 and (ranks := mpi.joined()):
        ranks.leave(status)
    sys.exit(status)


def leave_on_uncaught_errors() -> None:
    """From now on, an exception that nothing catches ends this process by `leave`, after its traceback."""
    show = sys.excepthook

    def show_and_leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        leave(1)

    sys.excepthook = show_and_leave


def _all_leave() -> bool:
    called = time.monotonic()
    try:
        if coordination.wait_for_all("jaxnet/leave", _TOGETHER_SECONDS):
            return True
    except jax.errors.JaxRuntimeError:
        pass  # the service has gone already
    # An answer at once means that another failed before, and this one by consequence: a launcher, which
    # names the first that ends, must not see this one end first.
    time.sleep(max(called + _AFTER_ANOTHER_SECONDS - time.monotonic(), 0))
    return False
