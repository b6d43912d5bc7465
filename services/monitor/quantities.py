"""What Kubernetes means by `250m`, `1.5Gi` or `1e3`.

Law: amounts are whole numbers (millicores, bytes, devices), rounded up as the scheduler does, so that sums are exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

import msgspec

from shared.messages import Resources

Quantity = str | int | float
GPU = "nvidia.com/gpu"
GIB = 1 << 30

_SHAPE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,3}))?")
_UNITS = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), None: Fraction(1)}
_UNITS |= {unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", 1)}
_UNITS |= {f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", 1)}


class Amount(msgspec.Struct, frozen=True):
    """So many millicores, bytes and devices."""

    milli: int = 0
    bytes: int = 0
    gpu: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.milli + other.milli, self.bytes + other.bytes, self.gpu + other.gpu)

    def less(self, other: Amount) -> Amount:
        """What remains, never below nothing."""
        return Amount(max(0, self.milli - other.milli), max(0, self.bytes - other.bytes), max(0, self.gpu - other.gpu))

    def at_least(self, other: Amount) -> Amount:
        return Amount(max(self.milli, other.milli), max(self.bytes, other.bytes), max(self.gpu, other.gpu))

    def resources(self) -> Resources:
        return Resources(cpu=self.milli / 1000, memory_gib=self.bytes / GIB, gpu=self.gpu)


@lru_cache(maxsize=4096)
def parse(quantity: Quantity) -> Fraction:
    """A quantity in its base unit; raises `ValueError` for what is none."""
    found = _SHAPE.fullmatch(str(quantity).strip())
    if not found:
        raise ValueError(f"{quantity!r} is not a Kubernetes quantity")
    number, unit, exponent = found.groups()
    return Fraction(number) * (Fraction(10) ** int(exponent) if exponent else _UNITS[unit])


def amount(named: Mapping[str, Quantity] | None) -> Amount:
    """Of a `requests` or `allocatable` map, what Weir counts."""
    named = named or {}
    return Amount(
        _up(parse(named.get("cpu", 0)) * 1000), _up(parse(named.get("memory", 0))), _up(parse(named.get(GPU, 0)))
    )


def total(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())


def _up(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
