"""Amounts of resources: named, compared, added, taken away."""

from __future__ import annotations

import math
from collections.abc import Iterable

from shared.messages import Resources

ROUNDING = 1e-9
"""So much of a core, or of a GiB, is rounding."""
NO_MORE = Resources(cpu=0.0, memory_gib=0.0, gpu=0)
WORDS = {"cpu": "cpu", "memory_gib": "memory", "gpu": "devices"}
"""What each is called, in the order of `amounts`."""
UNITS = {"cpu": "cpu", "memory_gib": "GiB", "gpu": "gpu"}
"""What stands behind its amount."""


def amounts(of: Resources) -> tuple[float, float, float]:
    """Cores, GiB, devices."""
    return of.cpu, of.memory_gib, float(of.gpu)


def fits(wants: Resources, free: Resources) -> bool:
    return (
        wants.cpu <= free.cpu + ROUNDING
        and wants.memory_gib <= free.memory_gib + ROUNDING
        and wants.gpu <= free.gpu
    )


def plus(one: Resources, other: Resources) -> Resources:
    return Resources(
        cpu=one.cpu + other.cpu,
        memory_gib=one.memory_gib + other.memory_gib,
        gpu=one.gpu + other.gpu,
    )


def less(free: Resources, gone: Resources) -> Resources:
    """Never below nothing."""
    return Resources(
        cpu=max(0.0, free.cpu - gone.cpu),
        memory_gib=max(0.0, free.memory_gib - gone.memory_gib),
        gpu=max(0, free.gpu - gone.gpu),
    )


def minus(one: Resources, other: Resources) -> Resources:
    """The difference, below nothing, too."""
    return Resources(
        cpu=one.cpu - other.cpu,
        memory_gib=one.memory_gib - other.memory_gib,
        gpu=one.gpu - other.gpu,
    )


def larger(one: Resources, other: Resources) -> Resources:
    """Of each resource the larger amount."""
    return Resources(
        cpu=max(one.cpu, other.cpu),
        memory_gib=max(one.memory_gib, other.memory_gib),
        gpu=max(one.gpu, other.gpu),
    )


def smaller(one: Resources, other: Resources) -> Resources:
    """Of each resource the smaller amount."""
    return Resources(
        cpu=min(one.cpu, other.cpu),
        memory_gib=min(one.memory_gib, other.memory_gib),
        gpu=min(one.gpu, other.gpu),
    )


def times(each: Resources, count: int) -> Resources:
    """So many of it."""
    return Resources(cpu=each.cpu * count, memory_gib=each.memory_gib * count, gpu=each.gpu * count)


def plus_times(rest: Resources, each: Resources, count: int) -> Resources:
    """The rest, and so many of it."""
    return Resources(
        cpu=each.cpu * count + rest.cpu,
        memory_gib=each.memory_gib * count + rest.memory_gib,
        gpu=each.gpu * count + rest.gpu,
    )


def together(parts: Iterable[Resources]) -> Resources:
    """All of them, whatever their order."""
    listed = list(parts)
    return Resources(
        cpu=math.fsum([part.cpu for part in listed]),
        memory_gib=math.fsum([part.memory_gib for part in listed]),
        gpu=sum([part.gpu for part in listed]),
    )


def taken(free: Resources, wants: Resources, most: int) -> tuple[int, Resources]:
    """Return how many such tasks fit, up to `most`, and what they leave: `less`, one after the other."""
    times, cpu, memory, gpu = 0, free.cpu, free.memory_gib, free.gpu
    want_cpu, want_memory, want_gpu = wants.cpu, wants.memory_gib, wants.gpu
    while (
        times < most
        and want_cpu <= cpu + ROUNDING
        and want_memory <= memory + ROUNDING
        and want_gpu <= gpu
    ):
        cpu, memory, gpu = cpu - want_cpu, memory - want_memory, gpu - want_gpu
        times += 1
    return times, Resources(cpu=max(0.0, cpu), memory_gib=max(0.0, memory), gpu=gpu)
