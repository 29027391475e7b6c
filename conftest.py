"""Tests run on eight emulated CPU devices, strictly: no silent promotion of dtypes or ranks."""

import os

import jax
import pytest

# Set before any device is used; one process has one device count.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(autouse=True)
def strict_jax():
    """Our own arithmetic must not lean on implicit promotion; Flax's and Optax's are left alone by module."""
    with jax.numpy_rank_promotion("raise"):
        yield
