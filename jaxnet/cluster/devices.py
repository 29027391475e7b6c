"""Whether JAX can start here: the first call that makes its devices."""

import os

import jax

from jaxnet.errors import InputError


def local_device_count() -> int:
    """Devices of this process, or an InputError if JAX cannot make any."""
    try:
        return jax.local_device_count()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a platform which it knows has a device
        reason = str(error) or "there is no such device here; set it to cpu, or not at all"
        raise InputError(
            f"JAX cannot start with JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}: {reason}"
        ) from error
