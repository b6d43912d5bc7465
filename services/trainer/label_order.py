"""Whether labels come in an order that training suffers from: sorted, or class after class. Pure.

Nothing shuffles the examples, so batches of one class follow each other, and the model learns the
last one. Given how often each of C labels occurs (n_1 .. n_C of n), a random order

    is sorted, up or down, with probability      2 n_1! .. n_C! / n!
    has each class in one run with probability  C! n_1! .. n_C! / n!

What is less likely than `CHANCE` is no accident. Labels of one class, and classes of one example,
prove nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

CHANCE = 1e-6


def is_ordered(labels: Sequence[float]) -> bool:
    """Return whether labels in this order are sorted or grouped, and not by accident."""
    counts = Counter(labels)
    if len(counts) < 2:
        return False
    same = sum(math.lgamma(count + 1) for count in counts.values()) - math.lgamma(len(labels) + 1)
    sorted_likely = math.log(2) + same < math.log(CHANCE)
    grouped_likely = math.lgamma(len(counts) + 1) + same < math.log(CHANCE)
    return (sorted_likely and _is_sorted(labels)) or (
        grouped_likely and _runs(labels) == len(counts)
    )


def _is_sorted(labels: Sequence[float]) -> bool:
    pairs = list(pairwise(labels))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)


def _runs(labels: Sequence[float]) -> int:
    return 1 + sum(a != b for a, b in pairwise(labels))
