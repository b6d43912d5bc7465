"""Quantities, as whole numbers: cpu in thousandths of a core, all else in units (bytes, devices, pods).

Parsed through Decimal, and a rest is rounded up: `100m` -> 100, `0.5` -> 500, `1Gi` -> 1073741824.
"""

import re
from decimal import ROUND_CEILING, Decimal
from typing import Any

BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
DECIMAL = {
    "n": "1e-9",
    "u": "1e-6",
    "m": "1e-3",
    "": "1",
    "k": "1e3",
    "M": "1e6",
    "G": "1e9",
    "T": "1e12",
    "P": "1e15",
    "E": "1e18",
}
FACTORS = {
    **{unit: Decimal(n) for unit, n in BINARY.items()},
    **{unit: Decimal(n) for unit, n in DECIMAL.items()},
}
PATTERN = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E))?$")

Amounts = dict[str, int]


def parse(text: Any) -> Decimal:
    """Raises ValueError on what is no quantity."""
    match = PATTERN.match(str(text))
    if match is None:
        raise ValueError(f"quantities must match the regular expression {PATTERN.pattern!r}: {text!r}")
    number, exponent, unit = match.groups()
    return Decimal(number + (exponent or "")) * FACTORS[unit or ""]


def amount(resource: str, text: Any) -> int:
    scale = 1000 if resource == "cpu" else 1
    return int((parse(text) * scale).to_integral_value(ROUND_CEILING))


def amounts(listed: dict[str, Any] | None) -> Amounts:
    return {resource: amount(resource, text) for resource, text in (listed or {}).items()}


def plus(left: Amounts, right: Amounts) -> Amounts:
    return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}


def minus(left: Amounts, right: Amounts) -> Amounts:
    return {key: left.get(key, 0) - right.get(key, 0) for key in {**left, **right}}


def at_least(left: Amounts, right: Amounts) -> Amounts:
    return {key: max(left.get(key, 0), right.get(key, 0)) for key in {**left, **right}}


def cpu_text(millis: int) -> str:
    return str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"
