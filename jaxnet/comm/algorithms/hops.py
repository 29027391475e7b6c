"""Who sends to whom at the same time, in a row of devices or of ranks: pairs of places."""

Hops = tuple[tuple[int, int], ...]


def ring_of(size: int, step: int) -> Hops:
    """Every place sends to the one `step` further on.

    >>> ring_of(3, 1)
    ((0, 1), (1, 2), (2, 0))
    """
    return tuple((place, (place + step) % size) for place in range(size))


def backwards(hops: Hops) -> Hops:
    """Senders and receivers exchanged."""
    return tuple((receiver, sender) for sender, receiver in hops)
