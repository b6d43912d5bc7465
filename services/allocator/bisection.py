"""The smallest change that helps: by doubling, then by halving."""

from __future__ import annotations

from collections.abc import Callable


def least(most: int, holds: Callable[[int], bool]) -> int | None:
    """Return the smallest number from 0 to `most` that holds, if all above one that holds do, too.

    If it is not so: one that holds, while the one below does not. None where none of 0, 1, 2, 4,
    ... and `most` holds.
    """
    if holds(0):
        return 0
    low = 0
    high = 1
    while not holds(min(high, most)):
        if high >= most:
            return None
        low = high
        high = 2 * high
    return _between(low, min(high, most), holds)


def _between(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number that holds; `low` does not, `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
