"""Amounts of several resources, in whole numbers: thousandths of a core, bytes, devices, pods."""

from typing import Any

from shared.kube.objects import whole_units

Amounts = dict[str, int]


def amounts(listed: dict[str, Any] | None) -> Amounts:
    return {resource: whole_units(resource, text) for resource, text in (listed or {}).items()}


def plus(left: Amounts, right: Amounts) -> Amounts:
    return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}


def minus(left: Amounts, right: Amounts) -> Amounts:
    return {key: left.get(key, 0) - right.get(key, 0) for key in {**left, **right}}


def at_least(left: Amounts, right: Amounts) -> Amounts:
    return {key: max(left.get(key, 0), right.get(key, 0)) for key in {**left, **right}}


def cpu_text(millis: int) -> str:
    return str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"
