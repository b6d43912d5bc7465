"""Which ps holds which variable: largest first to the emptiest, not round-robin.

Round-robin puts every large kernel of a plain network on one ps and every bias on the other; then adding ps does
nothing (tensorflow#37100). Largest first to the emptiest keeps the fullest within 4/3 of the best (Graham 1969).
"""

from __future__ import annotations

from collections.abc import Sequence


def largest_first(sizes: Sequence[int], bins: int) -> list[int]:
    """For each variable's size in bytes, in order of creation, the index of its ps. Ties go to the lower index."""
    held = [0] * bins
    chosen = [0] * len(sizes)
    for which in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        emptiest = min(range(bins), key=lambda b: (held[b], b))
        held[emptiest] += max(sizes[which], 1)
        chosen[which] = emptiest
    return chosen
