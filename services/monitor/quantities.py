"""What Weir counts of a node or a pod, in whole numbers, so that sums are exact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from shared.bounds import clamped
from shared.kube.quantities import GIB, GPU, whole
from shared.messages import Resources


class Amount(msgspec.Struct, frozen=True):
    """So many millicores, bytes and devices."""

    milli: int = 0
    bytes: int = 0
    gpu: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.milli + other.milli, self.bytes + other.bytes, self.gpu + other.gpu)

    def less(self, other: Amount) -> Amount:
        """What remains, never below nothing."""
        return Amount(
            max(0, self.milli - other.milli),
            max(0, self.bytes - other.bytes),
            max(0, self.gpu - other.gpu),
        )

    def at_least(self, other: Amount) -> Amount:
        return Amount(
            max(self.milli, other.milli), max(self.bytes, other.bytes), max(self.gpu, other.gpu)
        )

    def resources(self) -> Resources:
        """Return it in the units of a message, and within the bounds of one."""
        return clamped(Resources(cpu=self.milli / 1000, memory_gib=self.bytes / GIB, gpu=self.gpu))


NOTHING = Amount()


def amount(named: Mapping[str, object] | None) -> Amount:
    """Of a `requests` or `allocatable` map, what Weir counts; raises `ValueError` for what is no
    amount.
    """
    if not named:
        return NOTHING
    counted = [whole(resource, named.get(resource, 0)) for resource in ("cpu", "memory", GPU)]
    if min(counted) < 0:
        raise ValueError(f"less than nothing: {dict(named)}")
    return Amount(*counted)


def total(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())
