"""Tests run on eight emulated CPU devices, and ranks are never promoted in silence."""

import os

import jax
import pytest
from hypothesis import settings

# Set before any device is used; one process has one device count.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

# The first example compiles and the others do not: a deadline would time the compiler.
settings.register_profile("jaxnet", deadline=None)
settings.load_profile("jaxnet")


@pytest.fixture(autouse=True)
def strict_jax():
    """A missing dim is an error, not a broadcast."""
    with jax.numpy_rank_promotion("raise"):
        yield
