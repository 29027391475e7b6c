"""A save that fails on one process of two: all are told why, none waits for it, and the next save works."""

import errno
import os
from contextlib import contextmanager

import jax
import numpy as np
import pytest

from jaxnet.checkpoints import Checkpointer, NotSaved
from support.checkpointing import mesh_of, on
from support.disks import files_no_longer_than
from support.ranks import Ranks

pytestmark = pytest.mark.processes


@contextmanager
def no_new_directories():
    """What a full disk does, which may take the first and refuse the second."""
    mkdir = os.mkdir

    def full(path, *args, **options):
        if "state" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        mkdir(path, *args, **options)

    os.mkdir = full
    try:
        yield
    finally:
        os.mkdir = mkdir


# Large enough for the small files around the arrays, or for none.
FAULTS = {
    "quota": (lambda: files_no_longer_than(50_000), "File too large"),
    "no-quota": (lambda: files_no_longer_than(0), "File too large"),
    "no-directory": (no_new_directories, "No space left on device"),
}
CASES = [("quota", 0), ("quota", 1), ("no-quota", 0), ("no-quota", 1), ("no-directory", 0)]


def save_under_every_fault(rank, directory):
    """What `save_with_one_failing` gives for each case, in a directory of its own."""
    return [save_with_one_failing(rank, f"{directory}/{fault}-{victim}", fault, victim) for fault, victim in CASES]


def save_with_one_failing(rank, directory, fault, victim):
    """What each of four saves ended with; during the second, one process cannot write."""
    mesh = mesh_of(jax.process_count(), jax.local_device_count())
    checkpoints, ends = Checkpointer(directory), []
    for step in (10, 20, 30, 40):
        draw = np.random.default_rng(step).normal(size=(8, 100_000)).astype(np.float32)

        def save(step=step, draw=draw):
            checkpoints.save(step, on(mesh, {"residual": draw}), extra={})
            checkpoints.wait()

        try:
            if step == 20 and rank == victim:
                with FAULTS[fault][0]():
                    save()
            else:
                save()
            ends.append("")
        except NotSaved as error:
            ends.append(str(error))
    checkpoints.close()
    return [ends, checkpoints.steps()]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """By case: its directory, and what it gave on each process. One start of the processes tries all cases."""
    directory = tmp_path_factory.mktemp("faults")
    with Ranks(save_under_every_fault, 2, str(directory)) as ranks:
        results = ranks.results()
    return {case: (directory / f"{case[0]}-{case[1]}", each) for case, *each in zip(CASES, *results, strict=True)}


@pytest.mark.parametrize(("fault", "victim"), CASES)
def test_a_save_that_fails_on_one_process_fails_on_all_and_the_next_works(fault, victim, outcomes):
    directory, (first, second) = outcomes[fault, victim]
    assert first == second
    (before, failed, *after), steps = first
    assert (before, after, steps) == ("", ["", ""], [10, 30, 40])
    assert failed == f"checkpoint step 20 could not be written to {directory}: {FAULTS[fault][1]}"
