"""Tests run on eight emulated CPU devices, and ranks are never promoted in silence."""

import atexit
import gc
import hashlib
import os
import shutil
import signal
import tempfile
import time

import jax
import pytest
from hypothesis import settings

# Set before any device is used; one process has one device count.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time of a test would be LLVM's and, in JAX 0.10, that of the newer of its two emitters of kernels.
# What XLA makes of a program before that is the same, and so are these tests.
_QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):
    _QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK}"
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_traceback_in_locations_limit", 0)  # else every operation traced notes the lines it came from

# The first example compiles and the others do not: a deadline would time the compiler. In CI (which sets CI) examples
# are the same in every run, so that a change is judged by what it changed; new ones are met by whoever works on it.
settings.register_profile("jaxnet", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("jaxnet")


def pytest_configure(config):
    """One directory for what the test workers share: runs, and what runs compile, which is mostly the same program.

    A pytest that is told to end first says what failed.
    """
    # A shell has its background jobs ignore SIGINT, and the programs that tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # the workers inherit it
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # Else each of the hundreds of processes that tests start would compile every module of jaxnet.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["TESTS_SHARED"] = shared = tempfile.mkdtemp(prefix="jaxnet-tests-")
        os.environ["TESTS_COMPILE_CACHE"] = f"{shared}/compile_cache"
        atexit.register(shutil.rmtree, shared, ignore_errors=True)


def pytest_collection_modifyitems(items):
    """SLOW_ORDER, any text, draws the order of the files: where time is short, others are left out each time."""
    if order := os.environ.get("SLOW_ORDER"):
        items.sort(key=lambda item: hashlib.sha256(f"{order} {item.path.name}".encode()).digest())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """No slow test starts after SLOW_UNTIL, in seconds since 1970."""
    if item.get_closest_marker("slow") and time.time() > float(os.environ.get("SLOW_UNTIL", "inf")):
        pytest.skip("slow, and the time for slow tests is over")


def pytest_collection_finish(session):
    """What has been imported stays: the garbage collector need not look at it again each time a test traces."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True)
def strict_jax():
    """A missing dim is an error, not a broadcast."""
    with jax.numpy_rank_promotion("raise"):
        yield
