"""Which values a reducer takes, by their dtype."""

import jax
import jax.numpy as jnp


def require_array(value: jax.Array | jax.ShapeDtypeStruct, name: str) -> None:
    """Raise TypeError, which names the value, unless it is one array (or its shape): trees are for tree reducers."""
    if not hasattr(value, "dtype"):
        kind = type(value).__name__
        raise TypeError(
            f"{name} is a {kind}, and a bucket reducer takes one array of one dim; a tree is for bucketed(reducer, "
            "bucket_bytes)"
        )


def require_floats(message: jax.Array) -> None:
    """Raise TypeError unless a codec can take the message: real floating-point numbers."""
    if not jnp.issubdtype(message.dtype, jnp.floating):
        raise TypeError(f"a codec takes floating-point messages, got {message.dtype}; sum these with all_reduce(...)")


def require_summable(value: jax.Array | jax.ShapeDtypeStruct, name: str) -> None:
    """Raise TypeError, which names the value, if it is of bool: some collectives count these, and others take 'or'."""
    if value.dtype == jnp.bool_:
        raise TypeError(f"{name} is bool, of which there is no sum; count the devices with {name}.astype('int32')")
