"""The control channel of processes that mpirun started: what they say beside the gradients, and how they end.

Gradients travel inside the compiled step, from threads of its devices. The control channel has communicators of its
own, so the two kinds of messages cannot meet. MPI has no time limits: a process that never comes is waited for.
"""

import importlib
import os
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from jaxnet.errors import InputError

T = TypeVar("T")

_TOGETHER_SECONDS = 2.0
_POLL_SECONDS = 0.01
# What a starter sets in each process: Open MPI; MPICH and Intel MPI; any MPI with PMIx; srun.
_STARTERS = ("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_STEP_NUM_TASKS")
_LAG = 3  # calls: one more than the steps that the training loop has in flight

_joined: "ControlChannel | None" = None


def join(world: Any, environ: Mapping[str, str] = os.environ) -> "ControlChannel":
    """Open the control channel over the communicator `world`; from now on `joined` returns it.

    Raises:
        InputError: there is one process, and no starter has started it. On each host it would train alone.
    """
    global _joined
    if world.size == 1 and not any(environ.get(name) for name in _STARTERS):
        raise InputError(
            "transport=mpi: neither mpirun nor srun has started this process, which would train alone: start as many as"
            " there are to be, as in mpirun -n 2 python -m mpi4py train.py ..., or leave transport=xla"
        )
    _joined = ControlChannel(world)
    return _joined


def joined() -> "ControlChannel | None":
    """The channel that `join` has opened; None without MPI."""
    return _joined


class ControlChannel:
    """How the processes of mpirun talk beside the gradients. All make the same calls in the same order.

    Attributes:
        index: the number of this process.
        count: how many there are.
    """

    def __init__(self, world: Any):
        mpi = importlib.import_module("mpi4py.MPI")
        if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
            raise InputError(
                "transport=mpi calls MPI from several threads, and this MPI library does not allow it (no "
                "MPI_THREAD_MULTIPLE): use one that does, or transport=xla"
            )
        self.index: int = world.rank
        self.count: int = world.size
        # One communicator for each kind of message: a flag under way, or a process that leaves, must not match others.
        self._talk, self._flags, self._end = world.Dup(), world.Dup(), world.Dup()

    def all_gather_object(self, value: Any) -> list[Any]:
        """The `value` of every process, in order."""
        return list(self._talk.allgather(value))

    def broadcast_object(self, make: Callable[[], T]) -> T:
        """What `make` returns on process 0, which alone calls it. If it raises InputError, every process does."""
        said: tuple[T | None, str] = None, ""
        if self.index == 0:
            try:
                said = make(), ""
            except InputError as error:
                said = None, str(error)
        value, wrong = self._talk.bcast(said)
        if wrong:
            raise InputError(wrong)
        answer: T = value
        return answer

    def totals(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The sum over the processes of each number."""
        return {name: self._talk.allreduce(number) for name, number in sums.items()}

    def flag(self) -> "Flag":
        """A flag that any process can raise."""
        return Flag(self._flags)

    def leave(self, status: int) -> NoReturn:
        """End this process after a failure, and the others too unless they leave within 2 s: they may wait for it."""
        sys.stdout.flush()
        sys.stderr.flush()
        waiting, until = self._end.Ibarrier(), time.monotonic() + _TOGETHER_SECONDS
        while not waiting.Test():
            if time.monotonic() > until:
                self._end.Abort(status)
            time.sleep(_POLL_SECONDS)
        # Not sys.exit: MPI_Finalize, in its exit hook, fails while devices still have steps to do.
        os._exit(status)


class Flag:
    """A flag that all processes see at the same call, three calls after any has raised it.

    By then the sum has arrived, so nobody waits for it. A loop with two steps in flight has also seen the end of a step
    that all processes began after the call.
    """

    def __init__(self, communicator: Any):
        self._communicator = communicator
        self._under_way: deque[tuple[Any, array[int], array[int]]] = deque()

    def seen(self, raised: bool) -> bool:
        """Whether any process gave True three calls ago; all get the same answer."""
        own, total = array("i", [raised]), array("i", [0])
        # Keep both buffers until the request is done: MPI reads and writes them meanwhile.
        self._under_way.append((self._communicator.Iallreduce(own, total), own, total))
        if len(self._under_way) <= _LAG:
            return False
        request, _, total = self._under_way.popleft()
        request.Wait()
        return total[0] > 0

    def close(self) -> None:
        """Wait for the calls that have no answer yet."""
        while self._under_way:
            self._under_way.popleft()[0].Wait()
