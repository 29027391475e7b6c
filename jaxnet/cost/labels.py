"""Strategies as a benchmark names them, so that one can stand in a table at several bucket sizes."""

from jaxnet.comm import Strategy, named_strategy
from jaxnet.cost.sizes import byte_size
from jaxnet.errors import InputError

_PIECES = "+pieces"


def in_pieces(label: str) -> bool:
    """Whether the step is to be several programs, launched from two threads.

    >>> in_pieces("ddp:4MiB+pieces"), in_pieces("ddp:4MiB")
    (True, False)
    """
    return label.endswith(_PIECES)


def labelled_strategy(label: str, bucket_bytes: int | None = None) -> Strategy:
    """The strategy `NAME`, or `NAME:BYTES` with buckets of that size; `+pieces` may stand behind, see `in_pieces`.

    Settings stand between: `NAME:key=value:BYTES`.

    Args:
        label: what the user wrote.
        bucket_bytes: for a `NAME` alone, if that strategy has buckets of a set size.

    >>> labelled_strategy("hierarchical:4MiB").name
    'hierarchical'
    """
    name, size = _with_size(label.removesuffix(_PIECES))
    try:
        own = named_strategy(name, byte_size(size) if size else None)
    except ValueError as error:
        raise InputError(f"--strategy {label}: {error}") from None
    if own.averaging is not None:
        raise InputError(
            f"--strategy {label}: its steps are not alike, parameters travel in every {own.averaging.every}th; time "
            "single steps of another strategy, and whole runs of this one with train.py"
        )
    if size or bucket_bytes is None:
        return own
    try:
        return named_strategy(name, bucket_bytes)
    except ValueError:  # it has no bucket size to set
        return own


def _with_size(label: str) -> tuple[str, str]:
    """The name with its settings, and the size of buckets, which is no `key=value`; empty if there is none."""
    name, colon, last = label.rpartition(":")
    return (name, last) if colon and "=" not in last else (label, "")
