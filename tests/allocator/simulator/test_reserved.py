"""No job waits for ever, whatever keeps arriving: the bound of `reservations.py`, on simulated clusters.

In each world small jobs arrive so fast that there is never room for the large one, if whatever fits may start.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from services.allocator.placing.quota import Quota
from services.allocator.policies import POLICIES
from services.allocator.rules import Rules
from services.allocator.simulator.outcome import Run, figures
from services.allocator.simulator.record import Record
from services.allocator.simulator.run import simulate
from services.allocator.simulator.scenario import Cluster, Machine, Scenario, Work
from tests.allocator.simulator.worlds import scenario, span, work

AFTER_S, ARRIVALS, EVERY_S, RESTART_S = 900.0, 100, 15.6, 1.0
SMALL_S = 60.0
"""How long a small job trains."""
BOUND_S = AFTER_S + SMALL_S + 2 * RESTART_S + 1.0
"""The setting, what runs then, and the start itself."""
EVERY_POLICY = sorted(POLICIES)


def small(number: int, **fields: Any) -> Work:
    """4 cores, for a minute."""
    shape: dict[str, Any] = {"samples": 6_000 - 100, "ps_cpu": 2.0, "worker_cpu": 2.0, "submitted_s": number * EVERY_S}
    return work(f"small-{number}", **(shape | fields))


def large(cores: float, name: str = "large", **fields: Any) -> Work:
    """All of its tasks are needed."""
    shape: dict[str, Any] = {"ps_cpu": cores / 2, "worker_cpu": cores / 2, "submitted_s": 100.0}
    return work(name, **(shape | fields))


def stream(*jobs: Work, **fields: Any) -> Scenario:
    arrivals = [small(number) for number in range(ARRIVALS)]
    usual: dict[str, Any] = {"cluster": Cluster(nodes=(Machine(name="node", cpu=16.0),)), "restart_s": RESTART_S}
    return scenario(*sorted([*arrivals, *jobs], key=lambda job: job.submitted_s), **(usual | fields))


def played(world: Scenario, policy: str = "static", after_s: float = AFTER_S) -> Run:
    ticks = count()
    rules = Rules(policy=policy, reserve_after_s=after_s)
    return simulate(world, rules, 0, lambda: next(ticks) / 1000.0)


def waited_s(done: Run, job: str = "large") -> float:
    found = record(done, job)
    return found.longest_wait_s(done.ended_s)


def record(done: Run, job: str) -> Record:
    return next(record for record in done.records if record.work.job == job)


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_under_every_policy_a_large_job_starts_while_small_ones_keep_arriving(policy: str) -> None:
    done = played(stream(large(14.0)), policy)
    assert waited_s(done) <= BOUND_S
    assert all(each.completed for each in done.records)


@pytest.mark.parametrize("policy", ["weir", "config-manager", "static"])
@pytest.mark.parametrize(("cores", "priority"), [(6.0, 0), (8.0, 0), (8.0, 100), (14.0, 100)])
def test_a_large_job_starts_whatever_its_size_and_priority(policy: str, cores: float, priority: int) -> None:
    done = played(stream(large(cores, priority=priority)), policy)
    assert waited_s(done) <= BOUND_S
    assert all(each.completed for each in done.records)


@pytest.mark.parametrize("policy", ["weir", "config-manager", "static"])
def test_without_the_rule_it_waits_until_no_more_arrive(policy: str) -> None:
    done = played(stream(large(14.0)), policy, after_s=0.0)
    assert waited_s(done) > (ARRIVALS - 10) * EVERY_S - 100.0
    assert figures(done)["wait_max_s"] == pytest.approx(waited_s(done))
