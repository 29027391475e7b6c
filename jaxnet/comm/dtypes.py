"""Which values a reducer takes, by their dtype and their shape."""

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


def require_divides(message: jax.Array | jax.ShapeDtypeStruct, reducer: str, count: int, what: str) -> None:
    """Raise ValueError, which names the reducer, unless the message has one dim and divides by the `count` of `what`.

    TypeError if it is not one array.
    """
    require_array(message, "the message")
    if len(message.shape) != 1 or message.shape[0] % count:
        raise ValueError(
            f"{reducer} takes a message of one dim whose length divides by {count}, {what}; got shape "
            f"{tuple(message.shape)}. Wrap it in bucketed(...), which flattens and pads."
        )


def require_floats(message: jax.Array) -> None:
    """Raise TypeError unless a codec can take the message: real floating-point numbers."""
    if not jnp.issubdtype(message.dtype, jnp.floating):
        raise TypeError(f"a codec takes floating-point messages, got {message.dtype}; sum these with all_reduce(...)")


def require_summable(value: jax.Array | jax.ShapeDtypeStruct, name: str) -> None:
    """Raise TypeError, which names the value, if it is of bool: some collectives count these, and others take 'or'."""
    if value.dtype == jnp.bool_:
        raise TypeError(f"{name} is bool, of which there is no sum; count the devices with {name}.astype('int32')")
