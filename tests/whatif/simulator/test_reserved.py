"""Tests of the bound of `reservations.py` on simulated clusters: no job waits for ever.

In each world small jobs arrive so fast that there would never be room for the large one if every
job that fits could start.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest

from services.allocator.policies.contract import Quota
from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from services.whatif.simulator.outcome import JobRecord, Run, run_figures
from services.whatif.simulator.run import simulate
from services.whatif.simulator.scenario import Cluster, Machine, Scenario, Work
from shared.messages import Resources, RoleResources
from tests.whatif.simulator.worlds import growing, scenario, span, work

AFTER_S, ARRIVALS, EVERY_S, RESTART_S = 900.0, 100, 15.6, 1.0
SMALL_S = 60.0
"""The time in s for which a small job trains."""
BOUND_S = AFTER_S + SMALL_S + 2 * RESTART_S + 1.0
"""The sum of the setting, the jobs that run then, and the start itself."""
EVERY_POLICY = sorted(POLICIES)


def small(number: int, **fields: Any) -> Work:
    """Return a job of 4 cores that runs for a minute."""
    shape: dict[str, Any] = {
        "samples": 6_000 - 100,
        "ps_cpu": 2.0,
        "worker_cpu": 2.0,
        "submitted_s": number * EVERY_S,
    }
    return work(f"small-{number}", **(shape | fields))


def large(cores: float, name: str = "large", **fields: Any) -> Work:
    """Return a job that needs all of its tasks."""
    shape: dict[str, Any] = {"ps_cpu": cores / 2, "worker_cpu": cores / 2, "submitted_s": 100.0}
    return work(name, **(shape | fields))


def stream(*jobs: Work, **fields: Any) -> Scenario:
    arrivals = [small(number) for number in range(ARRIVALS)]
    usual: dict[str, Any] = {
        "cluster": Cluster(nodes=(Machine(name="node", cpu=16.0),)),
        "restart_s": RESTART_S,
    }
    return scenario(
        *sorted([*arrivals, *jobs], key=lambda job: job.submitted_s), **(usual | fields)
    )


def played(world: Scenario, policy: str = "static", after_s: float = AFTER_S) -> Run:
    ticks = count()
    rules = Rules(policy=policy, reserve_after_s=after_s)
    return simulate(world, rules, 0, lambda: next(ticks) / 1000.0)


def waited_s(done: Run, job: str = "large") -> float:
    found = record(done, job)
    return found.longest_wait_s(done.ended_s)


def record(done: Run, job: str) -> JobRecord:
    return next(record for record in done.records if record.work.job == job)


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_a_large_job_starts_under_every_policy_while_small_ones_keep_arriving(policy: str) -> None:
    done = played(stream(large(14.0)), policy)
    assert waited_s(done) <= BOUND_S
    assert all(each.is_completed for each in done.records)


@pytest.mark.parametrize("policy", ["weir", "config-manager", "static"])
@pytest.mark.parametrize(("cores", "priority"), [(6.0, 0), (8.0, 0), (8.0, 100), (14.0, 100)])
def test_a_large_job_starts_whatever_its_size_and_priority(
    policy: str, cores: float, priority: int
) -> None:
    done = played(stream(large(cores, priority=priority)), policy)
    assert waited_s(done) <= BOUND_S
    assert all(each.is_completed for each in done.records)


@pytest.mark.parametrize("policy", ["weir", "config-manager", "static"])
def test_without_reservations_a_large_job_waits_for_the_last_arrival(policy: str) -> None:
    done = played(stream(large(14.0)), policy, after_s=0.0)
    assert waited_s(done) > (ARRIVALS - 10) * EVERY_S - 100.0
    assert run_figures(done)["wait_max_s"] == pytest.approx(waited_s(done))


# ---------------------------------------------------------------- other scarce resources


def with_memory(job: Work, gib: float) -> Work:
    """Return the job with this memory and hardly any cores for each task."""
    task = Resources(cpu=0.1, memory_gib=gib)
    sizes = RoleResources(chief=Resources(), ps=task, worker=task)
    return msgspec.structs.replace(
        job, asked=msgspec.structs.replace(job.request(), resources=sizes)
    )


def test_memory_is_reserved() -> None:
    arrivals = [with_memory(small(number), 8.0) for number in range(ARRIVALS)]
    jobs = sorted([*arrivals, with_memory(large(2.0), 28.0)], key=lambda job: job.submitted_s)
    cluster = Cluster(nodes=(Machine(name="node", cpu=16.0, memory_gib=64.0),))
    world = scenario(*jobs, cluster=cluster, restart_s=RESTART_S)
    assert waited_s(played(world)) <= BOUND_S
    assert waited_s(played(world, after_s=0.0)) > BOUND_S + 100.0


def test_devices_are_reserved() -> None:
    shape: dict[str, Any] = {
        "model": "ring",
        "ps": span(0, least=0),
        "worker_cpu": 0.0,
        "worker_gpu": 1,
    }
    arrivals = [small(number, **shape, samples=2_900) for number in range(ARRIVALS)]
    wide = work("large", **(shape | {"workers": span(4, least=4), "submitted_s": 100.0}))
    jobs = sorted([*arrivals, wide], key=lambda job: job.submitted_s)
    cluster = Cluster(nodes=(Machine(name="node", cpu=1.0, gpu=4),))
    world = scenario(*jobs, cluster=cluster, restart_s=RESTART_S)
    assert waited_s(played(world)) <= BOUND_S
    assert waited_s(played(world, after_s=0.0)) > BOUND_S + 100.0


def test_for_a_job_blocked_by_its_quota_only_the_quota_is_reserved() -> None:
    """Jobs of other namespaces start at once."""
    own = [small(number, namespace="own") for number in range(ARRIVALS)]
    others = [
        work(f"other-{n}", namespace="others", submitted_s=n * 100.0, **OTHERS) for n in range(15)
    ]
    jobs = sorted([*own, *others, large(14.0, namespace="own")], key=lambda job: job.submitted_s)
    quotas = {"own": Quota(cpu=16.0)}
    cluster = Cluster(nodes=(Machine(name="node", count=3, cpu=16.0),), quotas=quotas)
    world = scenario(*jobs, cluster=cluster, restart_s=RESTART_S)
    done = played(world)
    assert waited_s(done) <= BOUND_S
    assert waited_s(played(world, after_s=0.0)) > BOUND_S + 100.0
    assert max(waited_s(done, f"other-{n}") for n in range(15)) == 0.0


OTHERS: dict[str, Any] = {"ps_cpu": 2.0, "worker_cpu": 2.0, "samples": 5_900}


def test_five_fragmented_nodes_make_room_for_one_job() -> None:
    """Each node has 16 cores, and each task of the large job needs 10.

    They are free in sum, but never on one node.
    """
    arrivals = [small(number, submitted_s=number * EVERY_S / 5) for number in range(5 * ARRIVALS)]
    wide = work(
        "large",
        ps=span(1),
        workers=span(4, least=4),
        ps_cpu=10.0,
        worker_cpu=10.0,
        submitted_s=100.0,
    )
    jobs = sorted([*arrivals, wide], key=lambda job: job.submitted_s)
    world = scenario(
        *jobs, cluster=Cluster(nodes=(Machine(name="n", count=5, cpu=16.0),)), restart_s=RESTART_S
    )
    assert waited_s(played(world)) <= BOUND_S
    assert waited_s(played(world, after_s=0.0)) > BOUND_S + 100.0


def test_two_large_jobs_start_one_after_the_other_in_the_order_of_submission() -> None:
    first, second = large(14.0, "first"), large(14.0, "second", submitted_s=101.0)
    done = played(stream(first, second))
    assert waited_s(done, "first") <= BOUND_S
    assert waited_s(done, "second") <= BOUND_S + TRAINS_S + RESTART_S


TRAINS_S = 101.0


def test_the_large_job_of_higher_priority_starts_first() -> None:
    first, second = large(14.0, "first"), large(14.0, "second", submitted_s=101.0, priority=3)
    done = played(stream(first, second))
    started = {name: record(done, name).started_s or 0.0 for name in ("first", "second")}
    assert started["second"] < started["first"] <= 101.0 + BOUND_S + TRAINS_S


def test_two_jobs_that_fit_side_by_side_do_not_wait_for_each_other() -> None:
    first, second = large(8.0, "first"), large(8.0, "second", submitted_s=101.0)
    done = played(stream(first, second))
    assert max(waited_s(done, "first"), waited_s(done, "second")) <= BOUND_S


def test_jobs_of_a_lower_priority_wait_for_one_of_a_higher_at_once() -> None:
    done = played(stream(large(14.0, priority=1)))
    assert waited_s(done) <= SMALL_S + 2 * RESTART_S + 1.0


# ---------------------------------------------------------------- preemption


def test_a_preempted_elastic_job_continues_later_from_its_progress() -> None:
    low = growing("low", samples=200_000)
    high = work(
        "high", workers=span(4, least=4), ps_cpu=2.0, worker_cpu=1.0, priority=10, submitted_s=200.0
    )
    world = scenario(
        low, high, cluster=Cluster(nodes=(Machine(name="node", cpu=6.0),)), restart_s=10.0
    )
    done = played(world, "config-manager")
    low_record, high_record = record(done, "low"), record(done, "high")
    assert waited_s(done, "high") <= 15.0
    assert (0.0, 0) in [
        (at - high_record.sizes[0][0], ps + workers) for at, ps, workers, _ in low_record.sizes
    ]
    assert low_record.is_completed and high_record.is_completed
    trained_s = (low_record.finished_s or 0.0) - (high_record.finished_s or 0.0)
    assert trained_s < 200_000 / 360.0 - 100.0, "what it had done before was kept"


def test_preemption_shrinks_a_job_only_as_far_as_needed() -> None:
    low = growing("low", samples=200_000)
    high = work("high", priority=10, submitted_s=200.0)
    world = scenario(
        low, high, cluster=Cluster(nodes=(Machine(name="node", cpu=6.0),)), restart_s=10.0
    )
    done = played(world, "config-manager")
    sizes = [(ps, workers) for _, ps, workers, _ in record(done, "low").sizes]
    assert (0, 0) not in sizes[:-1]
    assert sum(sizes[2]) == 4, "2 of its 6 tasks go, and no more"
    assert waited_s(done, "high") <= 25.0


def test_a_job_of_fixed_size_is_never_suspended() -> None:
    low, high = work("low", samples=50_000), work("high", priority=10, submitted_s=100.0)
    world = scenario(
        low, high, cluster=Cluster(nodes=(Machine(name="node", cpu=2.0),)), restart_s=10.0
    )
    done = played(world)
    assert record(done, "low").resizes == 0
    assert (record(done, "high").started_s or 0.0) > (record(done, "low").finished_s or 0.0)
