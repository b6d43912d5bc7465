"""The view of a job by Optimus' rule, and sums of resources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from services.allocator.placing.amounts import times, together
from services.allocator.policies.contract import Size
from services.allocator.policies.optimus.fits import Rate
from shared.messages import Resources

Kind = Literal["ps", "worker"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """`remaining`: examples; `ps`, `worker`, `chief`: what one task wants; `least` and `most`:
    bounds, included.
    """

    key: str
    remaining: float
    rate: Rate
    ps: Resources
    worker: Resources
    chief: Resources = Resources()
    least: Size = Size(1, 1)
    most: Size

    def task(self, kind: Kind) -> Resources:
        """Return the resources of one task."""
        return self.ps if kind == "ps" else self.worker

    def wants(self, size: Size) -> Resources:
        """Return the resources of the whole job at a size."""
        return total([(self.chief, 1), (self.ps, size.ps), (self.worker, size.workers)])


def total(parts: Iterable[tuple[Resources, int]]) -> Resources:
    """Return the sum of the parts, each so many times."""
    return together(times(one, count) for one, count in parts)
