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


def save_with_one_failing(rank, directory, fault, victim):
    """What each of three saves ended with; during the second, one process cannot write."""
    mesh = mesh_of(jax.process_count(), jax.local_device_count())
    checkpoints, ends = Checkpointer(directory), []
    for step in (10, 20, 30, 40):
        draw = np.random.default_rng(step).normal(size=(8, 100_000)).astype(np.float32)

        def save(step=step, draw=draw):
            checkpoints.save(step, on(mesh, {"residual": draw}), extra={})
            checkpoints.wait()

        try:
            if step == 20 and rank == int(victim):
                with FAULTS[fault][0]():
                    save()
            else:
                save()
            ends.append("")
        except NotSaved as error:
            ends.append(str(error))
    checkpoints.close()
    return [ends, checkpoints.steps()]


@pytest.mark.parametrize(
    ("fault", "victim"), [("quota", 0), ("quota", 1), ("no-quota", 0), ("no-quota", 1), ("no-directory", 0)]
)
def test_a_save_that_fails_on_one_process_fails_on_all_and_the_next_works(fault, victim, tmp_path):
    with Ranks(save_with_one_failing, 2, str(tmp_path), fault, str(victim)) as ranks:
        first, second = ranks.results()
    assert first == second
    (before, failed, *after), steps = first
    assert (before, after, steps) == ("", ["", ""], [10, 30, 40])
    assert failed == f"checkpoint step 20 could not be written to {tmp_path}: {FAULTS[fault][1]}"
