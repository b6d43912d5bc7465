"""Test if the dynamic program of elastic-batch is exact, and measure the time of a decision."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import astuple, replace

from services.allocator.policies.contract import JobSnapshot, Node, Observed, Size
from services.allocator.policies.elastic_batch.policy import autoscale, fit_scale_models
from services.allocator.policies.elastic_batch.scalability import (
    Limits,
    Table,
    Timing,
    rate_by,
    scale_tables,
)
from services.allocator.policies.registry import POLICIES
from shared.messages import JobRequested, Program, Resources, RoleResources, Span, TaskPlan

JOBS, DEVICES, EACH, TIMES = 640, 1024, 64, 9
GPU = RoleResources(chief=Resources(), ps=Resources(), worker=Resources(cpu=1.0, gpu=1))


def equals_brute_force(cases: int) -> bool:
    """Compare with brute force on random small tables, some with infeasible entries."""
    chance = random.Random(5)
    return all(_agrees(chance) for _ in range(cases))


def _agrees(chance: random.Random) -> bool:
    devices = chance.randint(1, 9)
    tables = [_random_scales(chance) for _ in range(chance.randint(1, 4))]
    picks = autoscale([Table(np.array(s), np.arange(len(s))) for s in tables], devices)
    kept = [(scales, pick) for scales, pick in zip(tables, picks, strict=True) if pick]
    best = _brute([scales for scales, _ in kept], devices)
    within = sum(pick.devices for _, pick in kept) <= devices
    able = [scales for scales in tables if max(scales) > -np.inf]
    one_more = _brute(able[: len(kept) + 1], devices) if len(able) > len(kept) else -np.inf
    return (
        within and one_more == -np.inf and abs(sum(s[p.devices - 1] for s, p in kept) - best) < 1e-9
    )


def _random_scales(chance: random.Random) -> list[float]:
    entries = range(chance.randint(1, 6))
    return [
        -np.inf if chance.random() < 0.3 else chance.choice([1.0, 2.0, chance.uniform(0, 5)])
        for _ in entries
    ]


def _brute(tables: Sequence[Sequence[float]], devices: int) -> float:
    picks = itertools.product(*(range(len(scales)) for scales in tables))
    sums = (
        sum(s[g] for s, g in zip(tables, p, strict=True))
        for p in picks
        if sum(p) + len(p) <= devices
    )
    return max(sums, default=-np.inf)


# ---------------------------------------------------------------- time of a decision


def decide_ms() -> list[float]:
    """Return times in ms of decisions about different jobs: tables, trim, program, read-back."""
    chance = np.random.default_rng(2)
    return [_decision_ms([_random_job(chance, EACH) for _ in range(JOBS)]) for _ in range(TIMES)]


def _random_job(chance: np.random.Generator, devices_max: int) -> tuple[Timing, Limits]:
    cap = int(chance.integers(16, 129))
    timing = Timing(
        *(cap * chance.uniform([0.01, 1.0 / cap, 0.05, 0.0], [0.1, 1.0 / cap, 1.0, 0.02]))
    )
    least = int(cap * chance.uniform(0.2, 1.2))
    return timing, Limits(
        batch_min=least, batch_max=64 * cap, device_batch_max=cap, devices_max=devices_max
    )


def _decision_ms(jobs: Sequence[tuple[Timing, Limits]]) -> float:
    terms = np.array([astuple(timing) for timing, _ in jobs]).T[:, :, None, None]
    limits = [each for _, each in jobs]
    took, picks = _timed(lambda: autoscale(scale_tables(partial(rate_by, terms), limits), DEVICES))
    assert sum(pick.devices for pick in picks if pick) <= DEVICES
    return took


def policy_ms() -> tuple[list[float], list[float]]:
    """Return the times in ms of decisions of the policy, half of the jobs running.

    First with every observed speed new, then with none new: jobs then have the models that the
    allocator keeps.
    """
    fresh, again = list[float](), list[float]()
    for seed in range(TIMES):
        chance = random.Random(seed)
        jobs = [_seen(chance, number) for number in range(JOBS)]
        nodes = [
            Node(f"n{i}", Resources(cpu=96.0, gpu=(DEVICES - JOBS // 2) // 8), Resources(gpu=128))
            for i in range(8)
        ]
        fresh.append(_timed(partial(POLICIES["elastic-batch"], nodes, jobs, 0.0))[0])
        known = [
            replace(job, model=model)
            for job, model in zip(jobs, fit_scale_models(jobs), strict=True)
        ]
        again.append(_timed(partial(POLICIES["elastic-batch"], nodes, known, 0.0))[0])
    return fresh, again


def _seen(chance: random.Random, number: int) -> JobSnapshot:
    cap, name = chance.randint(16, 128), f"j{number}"
    request = JobRequested(
        job=name,
        program=Program(name="train.py", digest="sha256-" + "0" * 64),
        epochs=1,
        batch=Span(start=cap, min=cap // 2, max=64 * cap),
        ps=Span(start=0, min=0, max=0),
        workers=Span(start=1, min=1, max=EACH),
        device_batch_max=cap,
    )
    job = JobSnapshot(key=f"default.{name}", request=request, sizes=GPU, submitted_s=float(number))
    if number % 2:
        return job
    tasks = (
        TaskPlan(role="worker", index=0, serial=0, node=f"n{number % 8}", resources=GPU.worker),
    )
    speeds = tuple(
        Observed(0, k, cap * k, 100 * k**0.8 * chance.uniform(0.8, 1.2))
        for k in chance.sample(range(1, 9), 3)
    )
    return replace(job, size=Size(0, 1), batch=cap, tasks=tasks, observed=speeds)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    answer = call()
    return (time.perf_counter() - begin) * 1000, answer
