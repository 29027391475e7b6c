"""The device for pieces: on one core a client apart, whose threads give way, and arrays that pass without a copy."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.comm import compute_device as module
from jaxnet.comm.compute_device import compute_device, handed_over, lent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this class of threads")


@pytest.fixture
def mesh():
    return comm.make_mesh(1, jax.devices()[:1])


@pytest.fixture
def _one_core(monkeypatch):
    """This thread, which is asked, may use one core alone; whoever else computes there."""
    monkeypatch.setattr(module, "_gets_the_core", lambda: True)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)
    module._device_apart.cache_clear()


one_core = pytest.mark.usefixtures("_one_core")


def test_with_several_cores_it_is_the_device_of_the_mesh(mesh):
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("this machine has one core")
    assert compute_device(mesh) is mesh.devices.flat[0]
    array = jnp.ones(3)
    assert lent(array, compute_device(mesh)) is array
    assert handed_over(array, mesh.devices.flat[0]) is array


@one_core
def test_it_is_of_another_client_and_always_the_same(mesh):
    device = compute_device(mesh)
    assert device.platform == "cpu"
    assert device not in jax.devices()
    assert device is compute_device(mesh)


@one_core
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (8, 1024), (0, 4)])
def test_arrays_pass_with_their_bits(mesh, dtype, shape):
    array = jnp.asarray(np.random.default_rng(0).integers(0, 2, shape), dtype)
    there = lent(array, compute_device(mesh))
    assert there.devices() == {compute_device(mesh)}
    assert (there.dtype, there.shape) == (array.dtype, array.shape)
    back = handed_over(there, mesh.devices.flat[0])
    assert back.devices() == {mesh.devices.flat[0]}
    np.testing.assert_array_equal(np.asarray(back), np.asarray(array))


@one_core
def test_large_arrays_pass_without_a_copy(mesh):
    array = jax.block_until_ready(jnp.arange(1 << 16, dtype=jnp.float32) + 1)
    there = lent(array, compute_device(mesh))
    back = handed_over(there, mesh.devices.flat[0])
    assert there.unsafe_buffer_pointer() == back.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    assert lent(there, compute_device(mesh)) is there
    assert handed_over(array, mesh.devices.flat[0]) is array


@one_core
def test_what_was_lent_can_be_donated_and_lives_until_it_is_read(mesh):
    increase = jax.jit(lambda x: x + 1, donate_argnums=0)
    array = jax.block_until_ready(jnp.zeros(1 << 16) + 1)
    address = array.unsafe_buffer_pointer()
    total = jax.block_until_ready(lent(array, compute_device(mesh)).sum())
    new = increase(array)
    assert new.unsafe_buffer_pointer() == address, "the update wrote elsewhere: it was not donated"
    assert float(total) == 1 << 16
    there = lent(jnp.full(1 << 16, 3.0), compute_device(mesh))  # nobody else keeps that array
    jnp.full(1 << 16, 4.0).block_until_ready()
    assert float(there.sum()) == 3 << 16


_POLICIES = """
import os, sys
os.sched_setscheduler(0, int(sys.argv[1]), os.sched_param(0))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax
from jaxnet import comm
from jaxnet.comm import compute_device as module
if sys.argv[2] == "alone":  # whoever else computes on this machine
    module._gets_the_core = lambda: True
mesh = comm.make_mesh(1, jax.devices()[:1])
threads = lambda: set(map(int, os.listdir("/proc/self/task")))
before = threads()
apart = module.compute_device(mesh) not in jax.devices()
print(apart, {os.sched_getscheduler(each) for each in threads() - before}, os.sched_getscheduler(0))
"""


def asked(*words):
    """What such a process says: whether its device is apart, the policies of its new threads, and its own."""
    command = [sys.executable, "-c", _POLICIES, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.strip()


def test_its_threads_give_way_unless_somebody_has_chosen():
    assert asked(os.SCHED_OTHER, "alone") == f"True {{{os.SCHED_IDLE}}} {os.SCHED_OTHER}"
    assert asked(os.SCHED_BATCH, "alone") == f"False set() {os.SCHED_BATCH}"


def test_beside_a_program_that_computes_nothing_gives_way():
    """Both on one core and in one session, for the kernel one group: threads that give way would get nothing."""
    core = min(os.sched_getaffinity(0))
    busy = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    with subprocess.Popen(busy) as other:
        try:
            assert asked(os.SCHED_OTHER, "beside another").startswith("False")
        finally:
            other.kill()
