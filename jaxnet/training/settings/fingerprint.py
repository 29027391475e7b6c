"""What must be the same on all processes of a run, and what a run that is continued should find as it was."""

import hashlib
import os
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax

from jaxnet.cluster.digests import code_digests
from jaxnet.errors import InputError
from jaxnet.training.config import Config
from jaxnet.training.settings.keys import to_json
from jaxnet.training.steps.initial import weights_digest

_DECODER = "decoder"


def fingerprint(config: Config) -> dict[str, str]:
    """What must be the same on all processes."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy", *(("mpi4jax", "mpi4py") * (config.transport == "mpi")))
    return {
        "config": hashlib.sha256(to_json(config).encode()).hexdigest()[:16],
        "python": ".".join(map(str, sys.version_info[:2])),
        "devices per process": str(local_device_count()),
        **({} if config.initial_weights is None else {"initial weights": weights_digest(config.initial_weights)}),
        **{package: version(package) for package in packages},
        **decoder(config),
        **code_digests(),
    }


def local_device_count() -> int:
    """Devices of this process, or an InputError if JAX cannot make any."""
    try:
        return jax.local_device_count()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a platform which it knows has a device
        reason = str(error) or "there is no such device here; set it to cpu, or not at all"
        raise InputError(
            f"JAX cannot start with JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}: {reason}"
        ) from error


def decoder(config: Config) -> dict[str, str]:
    """What decodes the images of a data set that says so; checkpoints hold it, too."""
    name = getattr(config.data, _DECODER, None)
    return {} if name is None else {_DECODER: str(name)}


def other_decoder(config: Config, extra: Mapping[str, Any]) -> str | None:
    """The line that says that a run goes on with another decoder than the checkpoint with this `extra`; or None.

    No reason to refuse: pixels differ by little, and what was learned holds. But the bits are not an unbroken run's.
    """
    now, before = decoder(config).get(_DECODER), extra.get(_DECODER)
    if now is None or before is None or now == before:
        return None
    return (
        f"images are decoded by {now} from now on, and were by {before} until this checkpoint: pixels differ a little; "
        "install the same packages to continue as before"
    )
