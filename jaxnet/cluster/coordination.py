"""JAX's coordination service: a key-value store and barriers with time limits, on the host network alone.

`jax.experimental.multihost_utils` offers the same through device collectives. Those need every backend up, have no time
limit and cannot name who is missing. The service's client has no public name yet; only this file uses it.
"""

from typing import Any

import jax
from jax._src import distributed, xla_bridge

_NO_CLIENT = "jax.distributed is not running in this process"


def devices_in_use() -> bool:
    """Whether JAX has made its devices already; processes can then no longer be joined."""
    return bool(xla_bridge.backends_are_initialized())


def publish(key: str, value: str) -> None:
    """Make `value` readable for all processes under `key`; each key is written once."""
    _client().key_value_set(key, value)


def republish(key: str, value: str) -> None:
    """As `publish`, but replace what was there."""
    _client().key_value_set(key, value, allow_overwrite=True)


def read_all(folder: str) -> dict[str, str]:
    """Everything published so far under `folder`/, by the last part of its key."""
    return {key.rsplit("/", 1)[1]: value for key, value in _client().key_value_dir_get(folder)}


def forget(folder: str) -> None:
    """Delete everything published under `folder`/."""
    _client().key_value_delete(f"{folder}/")


def await_value(key: str, timeout_seconds: float) -> str | None:
    """Wait for what is published under `key`; None if it does not come in time."""
    try:
        return str(_client().blocking_key_value_get(key, int(timeout_seconds * 1000)))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        return None


def wait_for_all(name: str, timeout_seconds: float) -> bool:
    """Wait until every process waits for `name`; False if some do not come in time. Each name is used once."""
    try:
        _client().wait_at_barrier(name, int(timeout_seconds * 1000))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        return False
    return True


def _client() -> Any:
    assert distributed.global_state.client is not None, _NO_CLIENT
    return distributed.global_state.client
