"""The ranks of mpirun as the processes of a run: how they talk beside the gradients, and how they end.

The gradients travel inside the compiled step, from threads of its devices. What is said here has communicators of its
own, so that the messages cannot meet. MPI has no limits of time: a rank that does not come is waited for.
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
# What mpirun sets in each process, of Open MPI, of MPICH and Intel MPI, and of any with PMIx; and what srun sets.
_STARTERS = ("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_STEP_NUM_TASKS")
_LAG = 3  # calls: one more than the steps that a loop has in flight


class Ranks:
    """All ranks of mpirun. They make the same calls in the same order.

    Attributes:
        index: this rank.
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
        self._talk, self._flags, self._end = world.Dup(), world.Dup(), world.Dup()

    def given_by_all(self, value: Any) -> list[Any]:
        """The `value` of every rank, in their order."""
        return list(self._talk.allgather(value))

    def told(self, make: Callable[[], T]) -> T:
        """What `make` returns on rank 0, which alone calls it. If it raises InputError, every rank does."""
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
        """The sum over the ranks of each number."""
        return {name: self._talk.allreduce(number) for name, number in sums.items()}

    def flag(self) -> "Flag":
        """One that any rank can raise."""
        return Flag(self._flags)

    def leave(self, status: int) -> NoReturn:
        """End this rank after a failure, by itself where all leave now, else with all others: they may wait for it."""
        sys.stdout.flush()
        sys.stderr.flush()
        waiting, until = self._end.Ibarrier(), time.monotonic() + _TOGETHER_SECONDS
        while not waiting.Test():
            if time.monotonic() > until:
                self._end.Abort(status)
            time.sleep(0.01)
        # Not in good order: MPI_Finalize fails while devices still have steps to do.
        os._exit(status)


class Flag:
    """Raised by any rank, it is seen by all at the same call: three calls later, when the news is there already.

    A loop that has two steps in flight has by then seen the end of a step that all ranks began after the call.
    """

    def __init__(self, communicator: Any):
        self._communicator = communicator
        self._under_way: deque[tuple[Any, array[int], array[int]]] = deque()

    def seen(self, raised: bool) -> bool:
        """Whether some rank gave True, three calls ago; all ranks get the same answer."""
        own, total = array("i", [raised]), array("i", [0])
        self._under_way.append((self._communicator.Iallreduce(own, total), own, total))
        if len(self._under_way) <= _LAG:
            return False
        request, _, total = self._under_way.popleft()
        request.Wait()
        return total[0] > 0

    def close(self) -> None:
        """Wait for the calls that have not been answered."""
        while self._under_way:
            self._under_way.popleft()[0].Wait()


_joined: Ranks | None = None


def join(world: Any, environ: Mapping[str, str] = os.environ) -> Ranks:
    """The ranks of this communicator, from now on those that `leave` asks.

    Raises:
        InputError: there is one, and nobody has started it as one of a number: on each host it would train alone.
    """
    global _joined
    if world.size == 1 and not any(environ.get(name) for name in _STARTERS):
        raise InputError(
            "transport=mpi: neither mpirun nor srun has started this process, which would train alone: start as many as"
            " there are to be, as in mpirun -n 2 python -m mpi4py train.py ..., or leave transport=xla"
        )
    _joined = Ranks(world)
    return _joined


def joined() -> Ranks | None:
    """The ranks that this process has joined; None without MPI."""
    return _joined
