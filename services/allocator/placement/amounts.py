"""Arithmetic with amounts of resources, and a search for the smallest sufficient number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from shared.messages import Resources

ROUNDING = 1e-9
"""A difference of so much of a core, or of a GiB, is rounding."""
NO_MORE = Resources(cpu=0.0, memory_gib=0.0, gpu=0)
WORDS = {"cpu": "cpu", "memory_gib": "memory", "gpu": "devices"}
"""The word for each resource, in the order of `amounts`."""
UNITS = {"cpu": "cpu", "memory_gib": "GiB", "gpu": "gpu"}
"""The unit behind an amount of each resource."""


def amounts(of: Resources) -> tuple[float, float, float]:
    """Return cores, GiB and devices."""
    return of.cpu, of.memory_gib, float(of.gpu)


def fits(wants: Resources, free: Resources) -> bool:
    """Return True if there is enough of each resource, rounding aside."""
    return (
        wants.cpu <= free.cpu + ROUNDING
        and wants.memory_gib <= free.memory_gib + ROUNDING
        and wants.gpu <= free.gpu
    )


def add(one: Resources, other: Resources) -> Resources:
    """Return the sum of two amounts."""
    return Resources(
        cpu=one.cpu + other.cpu,
        memory_gib=one.memory_gib + other.memory_gib,
        gpu=one.gpu + other.gpu,
    )


def subtract(free: Resources, taken: Resources) -> Resources:
    """Return the difference, never below 0."""
    return Resources(
        cpu=max(0.0, free.cpu - taken.cpu),
        memory_gib=max(0.0, free.memory_gib - taken.memory_gib),
        gpu=max(0, free.gpu - taken.gpu),
    )


def difference(one: Resources, other: Resources) -> Resources:
    """Return the difference; it may be below 0."""
    return Resources(
        cpu=one.cpu - other.cpu,
        memory_gib=one.memory_gib - other.memory_gib,
        gpu=one.gpu - other.gpu,
    )


def larger(one: Resources, other: Resources) -> Resources:
    """Return the larger amount of each resource."""
    return Resources(
        cpu=max(one.cpu, other.cpu),
        memory_gib=max(one.memory_gib, other.memory_gib),
        gpu=max(one.gpu, other.gpu),
    )


def smaller(one: Resources, other: Resources) -> Resources:
    """Return the smaller amount of each resource."""
    return Resources(
        cpu=min(one.cpu, other.cpu),
        memory_gib=min(one.memory_gib, other.memory_gib),
        gpu=min(one.gpu, other.gpu),
    )


def multiply(each: Resources, count: int) -> Resources:
    """Return the amount of so many tasks of this size."""
    return Resources(cpu=each.cpu * count, memory_gib=each.memory_gib * count, gpu=each.gpu * count)


def add_multiple(rest: Resources, each: Resources, count: int) -> Resources:
    """Return the rest, with the amount of so many tasks of this size."""
    return Resources(
        cpu=each.cpu * count + rest.cpu,
        memory_gib=each.memory_gib * count + rest.memory_gib,
        gpu=each.gpu * count + rest.gpu,
    )


def total_of(parts: Iterable[Resources]) -> Resources:
    """Return the sum. It does not depend on the order of the parts."""
    cpu = []
    memory_gib = []
    gpu = 0
    for part in parts:
        cpu.append(part.cpu)
        memory_gib.append(part.memory_gib)
        gpu += part.gpu
    return Resources(cpu=math.fsum(cpu), memory_gib=math.fsum(memory_gib), gpu=gpu)


def count_fitting(free: Resources, wants: Resources, most: int) -> tuple[int, Resources]:
    """Return how many such tasks fit, up to `most`, and the amount left after them, as if it was
    subtracted task by task.
    """
    cpu = free.cpu
    memory = free.memory_gib
    gpu = free.gpu
    want_cpu = wants.cpu
    want_memory = wants.memory_gib
    want_gpu = wants.gpu

    count = 0
    while (
        count < most
        and want_cpu <= cpu + ROUNDING
        and want_memory <= memory + ROUNDING
        and want_gpu <= gpu
    ):
        cpu -= want_cpu
        memory -= want_memory
        gpu -= want_gpu
        count += 1
    return count, Resources(cpu=max(0.0, cpu), memory_gib=max(0.0, memory), gpu=gpu)


def smallest_enough(most: int, holds: Callable[[int], bool]) -> int | None:
    """Return the smallest number from 0 to `most` that holds, if every number above one that holds
    does, too.

    Otherwise return a number that holds, while the number below does not. None if none of 0, 1, 2,
    4, ... and `most` holds.
    """
    if holds(0):
        return 0
    low = 0
    high = 1
    while not holds(min(high, most)):
        if high >= most:
            return None
        low = high
        high = 2 * high
    return _bisect(low, min(high, most), holds)


def _bisect(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number that holds; `low` does not, `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
