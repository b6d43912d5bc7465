"""What stands around Kubernetes' objects: pages of lists, lines of watches, refusals. Null stands
for absent.

What Kubernetes means by `250m`, `1.5Gi` or `1e3`.

Law: parsed exactly, and whole once parsed (thousandths of a core, bytes, devices, pods), rounded up
as the scheduler does, so that sums are exact. Nothing is larger than `LARGEST`, as Kubernetes' own
reading has it.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

import msgspec


class MalformedObject(ValueError):
    """An object that is not as Kubernetes makes them; the text says where."""


class ApiObject(msgspec.Struct, frozen=True, rename="camel"):
    """A piece of an API object."""


class ListMeta(ApiObject, frozen=True):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(name="continue", default=None)


class ListPage(ApiObject, frozen=True):
    """One page of a list; its objects are as yet unread."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class WatchLine(ApiObject, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Versioned(ApiObject, frozen=True):
    """What every object has, and every bookmark."""

    metadata: ListMeta


class Status(ApiObject, frozen=True):
    """The API's way to say no."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None


GPU = "nvidia.com/gpu"
GIB = 1 << 30
LARGEST = Fraction((1 << 63) - 1)

_SHAPE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,3}))?")
_UNITS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    None: Fraction(1),
}
_UNITS |= {unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", 1)}
_UNITS |= {f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", 1)}


def parse_quantity(quantity: object) -> Fraction:
    """A quantity in its base unit; raises `ValueError` for what is none."""
    text = str(quantity)
    found = _SHAPE.fullmatch(text)
    if not found:
        raise ValueError(
            f"quantities must match the regular expression {_SHAPE.pattern!r}: {text!r}"
        )
    number, unit, exponent = found.groups()
    value = Fraction(number) * (Fraction(10) ** int(exponent) if exponent else _UNITS[unit])
    return max(-LARGEST, min(value, LARGEST))


def whole_units(resource: str, quantity: object) -> int:
    """So many thousandths of a core for `cpu`, of the resource's own unit for all else."""
    return _whole(1000 if resource == "cpu" else 1, str(quantity))


@lru_cache(maxsize=4096)
def _whole(times: int, quantity: str) -> int:
    """Cached: reading a pod takes 7 us with the cache, 27 without; a large cluster has 150,000
    (`make bench-scale`).
    """
    value = parse_quantity(quantity) * times
    return -(-value.numerator // value.denominator)
