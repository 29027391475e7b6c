"""The control channel over MPI, on a fake communicator."""

import sys
from types import SimpleNamespace

import pytest

from jaxnet.cluster import mpi, start
from jaxnet.cluster.mpi import Flag
from jaxnet.errors import InputError


class Request:
    def __init__(self, finish):
        self._finish = finish

    def Wait(self):
        self._finish()


class Played:
    """A communicator on which this rank says what it says, and others say `others[call]`; sums come with Wait."""

    def __init__(self, *others):
        self._others, self.waited = list(others), 0

    def Iallreduce(self, own, total):
        sum_of_all = own[0] + (self._others.pop(0) if self._others else 0)

        def finish():
            self.waited += 1
            total[0] = sum_of_all

        return Request(finish)


@pytest.mark.parametrize("own", [True, False])
def test_a_flag_is_seen_three_calls_later_whoever_raised_it(own):
    flag = Flag(Played(0, 0 if own else 1))
    said = [flag.seen(own and call == 1) for call in range(5)]
    assert said == [False, False, False, False, True]


def test_nothing_is_left_under_way():
    played = Played()
    flag = Flag(played)
    for _ in range(5):
        flag.seen(False)
    assert played.waited == 2
    flag.close()
    assert played.waited == 5


@pytest.fixture
def not_started(monkeypatch):
    monkeypatch.setattr(start, "_started", None)


@pytest.mark.parametrize("name", ["JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"])
def test_variables_of_jax_are_refused_before_mpi_starts(name, monkeypatch, not_started):
    monkeypatch.setenv(name, "1")
    with pytest.raises(InputError, match=f"^{name}=1 is for processes that JAX joins.*unset it"):
        start.start_by_mpi(lambda: pytest.fail("MPI was started"))


@pytest.mark.parametrize("kind", [ImportError, RuntimeError])
def test_mpi_that_cannot_be_had_is_an_input_error(kind, not_started):
    def world():
        raise kind("MPI is not here")

    with pytest.raises(InputError, match=r"^transport=mpi: MPI is not here$"):
        start.start_by_mpi(world)


class One:
    """A communicator of one rank, by itself or as started."""

    rank, size = 0, 1

    def Dup(self):
        return self


def test_a_process_that_no_mpirun_has_started_does_not_train_alone():
    """As on each host where somebody starts train.py by hand."""
    message = "^transport=mpi: neither mpirun nor srun has started this process, which would train alone: start as many"
    with pytest.raises(InputError, match=message):
        mpi.join(One(), {"PATH": "/bin", "PMI_RANK": ""})


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"])
def test_one_rank_that_was_asked_for_is_one_rank(name, monkeypatch):
    monkeypatch.setattr(mpi, "_joined", None)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(Query_thread=lambda: 3, THREAD_MULTIPLE=3))
    assert mpi.join(One(), {name: "1"}).count == 1
