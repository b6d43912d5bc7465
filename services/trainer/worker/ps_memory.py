"""The memory that variables need on parameter servers, before these are created."""

from __future__ import annotations

from collections.abc import Sequence

from services.trainer.worker.scaling import largest_first
from shared.messages import GIB

PS_GIB = 0.3
"""Memory of a ps before it holds anything, with TensorFlow 2.21. Measured resident memory: 0.16 if
eight tasks share their pages, 0.37 without sharing.
"""
NEXT_PS_GIB = 0.15
"""Memory of the next generation's process beside the running one, before it holds anything.
Measured: 0.14.
"""
MARK_BYTES = 4
"""Of a row of a divided table: the time of its last change (`sharded_table.RowMarks`)."""


class PsTooSmall(Exception):
    """A ps cannot hold its part of the model. The text has the figures. `other_size_fits`: the job
    may have a size at which it can.
    """

    def __init__(self, why: str, other_size_fits: bool) -> None:
        super().__init__(why)
        self.other_size_fits = other_size_fits


def fullest_ps_bytes(whole: Sequence[int], tables: int, ps: int) -> float:
    """Return the bytes of variables on the fullest of `ps` parameter servers. `whole`: the bytes of
    variables that are on one ps each; `tables`: of those that are divided among all.
    """
    held = [tables / ps] * ps
    for size, place in zip(whole, largest_first(whole, ps), strict=True):
        held[place] += size
    return max(held)


def check_ps_memory(
    whole: Sequence[int], tables: int, limits_gib: Sequence[float], most_ps: int
) -> None:
    """Raise `PsTooSmall` if the fullest ps would hold more than the least of these limits. 0: it
    has none. `tables`: with slots and marks. What else a ps holds is left out, so a ps that is
    refused is certainly too small. `most_ps`: that the job may have.
    """
    limit_gib = min(filter(None, limits_gib), default=0.0)
    if not limit_gib:
        return

    def needed_gib(ps: int) -> float:
        return PS_GIB + fullest_ps_bytes(whole, tables, ps) / GIB

    count = len(limits_gib)
    if needed_gib(count) <= limit_gib:
        return
    remedy = f"give each ps {needed_gib(count):.2f} GiB"
    enough = next((n for n in range(count + 1, most_ps + 1) if needed_gib(n) <= limit_gib), None)
    if enough is not None:
        remedy += f", or the job {enough} ps"
    raise PsTooSmall(
        f"the fullest of {count} ps needs {needed_gib(count):.2f} GiB for its part of the model, "
        f"the optimizer's slots of tables and TensorFlow, and has {limit_gib:g} GiB: {remedy}",
        enough is not None,
    )
