"""The memory that variables need on parameter servers, before these are created."""

from __future__ import annotations

from collections.abc import Sequence

from services.trainer.worker.scaling import largest_first

GIB = 1 << 30
PS_GIB = 0.3
"""Memory of a ps before it holds anything, with TensorFlow 2.21. Measured resident memory: 0.16 if
eight tasks share their pages, 0.37 without sharing.
"""
MOST_PS = 64
"""A remedy names no larger number of ps."""


class PsTooSmall(Exception):
    """A ps cannot hold its part of the model. The text has the figures."""


def fullest_ps_bytes(whole: Sequence[int], tables: int, ps: int) -> float:
    """Return the bytes of variables on the fullest of `ps` parameter servers. `whole`: the bytes of
    variables that are on one ps each; `tables`: of those that are divided among all.
    """
    held = [tables / ps] * ps
    for size, place in zip(whole, largest_first(whole, ps), strict=True):
        held[place] += size
    return max(held)


def check_ps_memory(
    whole: Sequence[int], tables: int, marks: int, slots: int, limits_gib: Sequence[float]
) -> None:
    """Raise `PsTooSmall` if the fullest ps would hold more than the least of these limits. 0: it
    has none. `marks`: bytes that say when rows of the tables were changed; `slots`: the optimizer's
    variables for each variable of the model.
    """
    limit_gib = min(filter(None, limits_gib), default=0.0)
    if not limit_gib:
        return

    def needed_gib(ps: int) -> float:
        held = (1 + slots) * fullest_ps_bytes(whole, tables, ps) + marks / ps
        return PS_GIB + held / GIB

    count = len(limits_gib)
    if needed_gib(count) <= limit_gib:
        return
    remedy = f"{needed_gib(count):.2f} GiB for each ps"
    enough = next((n for n in range(count + 1, MOST_PS) if needed_gib(n) <= limit_gib), None)
    if enough is not None:
        remedy += f", or {enough} ps"
    raise PsTooSmall(
        f"the fullest of {count} ps needs {needed_gib(count):.2f} GiB for its part of the model, "
        f"the optimizer's slots and TensorFlow, and has {limit_gib:g}: it needs {remedy}"
    )
