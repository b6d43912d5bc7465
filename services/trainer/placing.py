"""Which ps holds which variable: largest first to the emptiest, not round-robin.

Round-robin puts every large kernel of a plain network on one ps and every bias on the other; then
adding ps does nothing (tensorflow#37100). Largest first to the emptiest keeps the fullest within
4/3 of the best (Graham 1969).
"""

from __future__ import annotations

from collections.abc import Sequence


def largest_first(sizes: Sequence[int], bins: int) -> list[int]:
    """For each variable's size in bytes, in order of creation, the index of its ps. Ties go to the
    lower index.
    """
    held = [0] * bins
    chosen = [0] * len(sizes)
    for which in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        emptiest = min(range(bins), key=lambda b: (held[b], b))
        held[emptiest] += max(sizes[which], 1)
        chosen[which] = emptiest
    return chosen


class PlacementPlan:
    """The ps of each variable while a model is created; `sizes`: what creating it took before, in
    order of creation.

    A variable's size is known only after it is created. As long as the sizes come as before, each
    goes where `largest_first` has it. Variables that were not there before go to the ps that is
    emptiest by then.
    """

    def __init__(self, sizes: Sequence[int], bins: int) -> None:
        self._sizes, self._chosen = list(sizes), largest_first(sizes, bins)
        self._held = [0] * bins
        self._next = 0

    def next_place(self) -> int:
        """Return the ps of the variable that is created next."""
        if self._next < len(self._chosen):
            return self._chosen[self._next]
        return min(range(len(self._held)), key=lambda b: (self._held[b], b))

    def record_size(self, place: int, size: int) -> None:
        """Note that a variable of this size was created there, and find it among those that were
        expected.
        """
        self._held[place] += max(size, 1)
        if size in self._sizes[self._next :]:
            self._next = self._sizes.index(size, self._next) + 1
