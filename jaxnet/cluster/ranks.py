"""How messages name processes."""

from collections.abc import Sequence


def ranks(indices: Sequence[int]) -> str:
    """Ascending process indices in words.

    >>> ranks([1]), ranks([0, 1, 2, 5])
    ('rank 1', 'ranks 0-2, 5')
    """
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    listed = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank {listed}" if len(indices) == 1 else f"ranks {listed}"
