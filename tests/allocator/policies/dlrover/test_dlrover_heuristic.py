"""Tests of `dlrover-heuristic`, the thresholds by which the open-source tool sizes a job.

Its rules are tested with numbers that can be computed by hand.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.policies.contract import (
    FinishedJob,
    JobSnapshot,
    Node,
    Observed,
    Plan,
    ProgramHistory,
    Reading,
    Size,
    Target,
)
from services.allocator.policies.dlrover.heuristic import (
    PENDING_S,
    PS_S,
    Use,
    created_plan,
    dlrover_heuristic,
    halved_task,
    inherited_plan,
    initial_ps,
    more_workers,
    relieved_ps_size,
    speed_ratio,
    worker_size,
)
from shared.messages import Resources, RoleResources, TaskPlan
from tests.allocator.builders import EVEN, request, span

OPEN = RoleResources()
NOW = 10_000.0


def room(cpu: float, each: float = 64.0) -> list[Node]:
    return [Node("n", Resources(cpu=cpu, memory_gib=256), Resources(cpu=each, memory_gib=256))]


def waiting(sizes: RoleResources | None = None, **fields: Any) -> JobSnapshot:
    asked = request(resources=sizes, ps=span(1, most=8), workers=span(2, most=12))
    return replace(
        JobSnapshot(key="default.mnist", request=asked, sizes=sizes or OPEN, submitted_s=NOW),
        **fields,
    )


def running(
    ps_used: float,
    worker_used: float,
    size: tuple[int, int] = (1, 1),
    sizes: RoleResources = EVEN,
    **fields: Any,
) -> JobSnapshot:
    """Return a job whose last report has this usage, in cores, of each ps and each worker."""
    ps, workers = size
    roles = ["chief", *["ps"] * ps, *["worker"] * workers]
    tasks = tuple(
        TaskPlan(role=role, index=n, serial=n, node="n", resources=getattr(sizes, role))  # type: ignore[arg-type]
        for n, role in enumerate(roles)
    )
    report = Reading(
        at_s=NOW - 30,
        samples=10,
        loss=None,
        samples_per_second=10.0 * workers,
        ps=ps,
        workers=workers,
        batch=32,
        ps_cpu=ps_used * ps,
        worker_cpu=worker_used * workers,
        worker_gib=0.5,
        ps_had=sizes.ps.cpu,
        worker_had=sizes.worker.cpu,
    )
    seen = (Observed(ps, workers, 32, 10.0 * workers),)
    job = waiting(
        sizes, size=Size(ps, workers), batch=32, tasks=tasks, recent=(report,), observed=seen
    )
    return replace(job, **fields)


def only(wants: list[Target]) -> Target:
    (want,) = wants
    return want


def decided(job: JobSnapshot, cpu: float = 60.0, now: float = NOW) -> Target:
    return only(dlrover_heuristic(room(cpu), [job], now))


# ---------------------------------------------------------------- start


def test_a_job_with_open_resources_starts_with_a_fifth_of_the_limit():
    want = decided(waiting(), cpu=15)
    assert want.size == Size(1, 1) and want.sizes is not None
    assert (want.sizes.ps.cpu, want.sizes.worker.cpu) == (
        3.0,
        3.0,
    ) and want.sizes.chief == OPEN.chief


def test_a_job_with_given_resources_starts_as_requested():
    assert (decided(waiting(EVEN)).size, decided(waiting(EVEN)).sizes) == (Size(1, 2), None)


def test_a_job_starts_like_similar_jobs_within_its_bounds():
    past = FinishedJob(request=request(), plan=Plan(3, 9, 2.0, 4.0), ps_gib=9.0, worker_gib=2.0)
    want = decided(waiting(history=ProgramHistory(past=(past,))))
    assert (
        want.size == Size(3, 1)
        and want.sizes is not None
        and want.reason == "as 1 similar job ended"
    )
    assert (want.sizes.ps.cpu, want.sizes.worker) == (2.0, Resources(cpu=4.0, memory_gib=3.0))


def test_a_long_pending_job_halves_its_request():
    late = waiting(submitted_s=NOW - PENDING_S - 1)
    want = decided(late)
    assert want.sizes is not None and want.sizes.ps.cpu == 6.0  # a fifth of 60 cores, halved


def test_task_sizes_are_between_the_default_and_the_largest_node():
    many = [
        Node(f"n{i}", Resources(cpu=1, memory_gib=4), Resources(cpu=1, memory_gib=4))
        for i in range(40)
    ]
    (want,) = dlrover_heuristic(many, [waiting()], NOW)
    assert want.sizes is not None and want.sizes.ps == Resources(cpu=1, memory_gib=4)
    (none,) = dlrover_heuristic(room(0.0), [waiting()], NOW)
    assert none.sizes is not None and none.sizes.worker.cpu == OPEN.worker.cpu


# ---------------------------------------------------------------- running jobs


def test_workers_are_added_while_ps_have_spare_cores():
    want = decided(running(0.3, 0.9))
    assert want.size == Size(1, 3) and want.sizes is None and "30%" in want.reason


def test_workers_are_added_within_capacity_and_bounds():
    assert decided(running(0.3, 0.9), cpu=1.5).size == Size(1, 2)
    assert decided(running(0.01, 0.9)).size == Size(1, 12)


def test_no_workers_are_added_after_a_small_speedup():
    def after(speed: float) -> Target:
        seen = (Observed(1, 1, 32, 10.0), Observed(1, 2, 32, speed))
        return decided(replace(running(0.3, 0.9, (1, 2)), observed=seen), cpu=2.0)

    assert (after(11.0).size, after(19.0).size) == (Size(1, 2), Size(1, 4))


def test_after_the_worker_trials_ps_are_sized_for_the_maximum():
    """A process needs half a core on the ps and one on the worker, so 42 fit into 63 cores.

    Their ps need 21 cores, so 21 ps, but at most 8 are allowed.
    """
    tried = running(0.9, 0.9, (1, 2), observed=(Observed(1, 1, 32, 10.0), Observed(1, 2, 32, 20.0)))
    assert decided(tried).size == Size(8, 2)


def test_a_hot_ps_with_given_resources_gets_more_ps():
    want = decided(running(0.95, 0.55), cpu=3.0)
    assert want.size == Size(3, 1)  # three processes of 1.5 cores would fit into 5 cores


def test_a_hot_ps_with_open_resources_grows_in_place():
    want = decided(running(0.24, 0.4, sizes=OPEN), cpu=10.0)
    assert want.size == Size(1, 1) and want.sizes is not None
    assert want.sizes.ps.cpu > 1.0 and want.sizes.worker == OPEN.worker


def test_ps_are_not_changed_for_an_hour():
    hot = running(0.95, 0.55, (2, 1))
    before = replace(hot.recent[0], ps=1, at_s=NOW - 60)
    assert decided(replace(hot, recent=(before, *hot.recent))).size == Size(2, 1)
    assert decided(replace(hot, recent=(before, *hot.recent)), now=NOW + PS_S).ps > 2


def test_workers_with_open_resources_get_the_cores_they_use():
    sizes = replace(OPEN, ps=Resources(cpu=4, memory_gib=4), worker=Resources(cpu=4, memory_gib=4))
    job = running(3.5, 2.0, sizes=sizes)
    want = decided(replace(job, request=replace(job.request, resources=None)))
    assert want.sizes is not None and want.sizes.worker == Resources(cpu=2.0, memory_gib=4.0)


# ---------------------------------------------------------------- exceptions, single rules


def test_nothing_changes_without_observations():
    fresh = running(0.3, 0.9, since_s=NOW - 100)
    assert decided(fresh).size == Size(1, 1) and "is measured" in decided(fresh).reason
    silent = running(0.3, 0.9)
    assert decided(replace(silent, recent=(replace(silent.recent[0], ps_cpu=None),))).size == Size(
        1, 1
    )


def test_jobs_in_flight_or_without_ps_have_no_target():
    assert dlrover_heuristic(room(9), [running(0.3, 0.9, busy=True)], NOW) == []
    alone = replace(running(0.3, 0.9), size=Size(0, 1))
    assert dlrover_heuristic(room(9), [alone], NOW) == []


def use(
    ps_cpu: float = 2.0, hottest: float = 2.0, worker_cpu: float = 3.0, worker_gib: float = 4.0
) -> Use:
    return Use(ps_cpu, hottest, worker_cpu, worker_gib)


@pytest.mark.parametrize(
    ("limit", "task"),
    [((12, 30), (3, 6)), ((200, 400), (16, 8)), ((2, 4), (0.4, 0.8)), ((0, 0), (0, 0))],
)
def test_a_first_task_is_a_fifth_of_the_limit_within_its_bounds(limit, task):
    assert created_plan(Resources(cpu=limit[0], memory_gib=limit[1])) == Resources(
        cpu=task[0], memory_gib=task[1]
    )


def test_a_warm_start_takes_the_mean_ps_cores_and_the_maximum_of_the_rest():
    past = [
        FinishedJob(request=request(), plan=Plan(2, 4, 4.0, 2.0), ps_gib=10.0, worker_gib=1.0),
        FinishedJob(request=request(), plan=Plan(6, 4, 2.0, 3.0), ps_gib=20.0, worker_gib=2.0),
    ]
    count, sizes = inherited_plan(past)
    assert count == 3  # (8 + 12) / 2 cores in all, 4 each
    assert sizes.ps == Resources(cpu=4.0, memory_gib=pytest.approx(8.0)) and sizes.worker.cpu == 3.0
    assert sizes.worker.memory_gib == 3.0


def test_the_number_of_ps_matches_the_expected_workers():
    """A process needs 5 cores (2 + 3): 6 of them fit into 30 cores, and leave 12 to the ps."""
    assert initial_ps(use(), 1, 30.0, 4.0) == 3
    assert initial_ps(use(), 1, 3000.0, 4.0) == 15


def test_a_hot_ps_gets_cores_for_the_expected_workers_within_a_node():
    assert relieved_ps_size(use(hottest=1.7), 1, 30.0, 2.0) == 2.0
    assert relieved_ps_size(use(hottest=1.9), 2, 30.0, 2.0) == pytest.approx(1.9 * 7 / 2, abs=0.06)
    assert relieved_ps_size(use(hottest=30.0, ps_cpu=30.0), 1, 4000.0, 30.0) == 32.0
    assert relieved_ps_size(use(hottest=1.9), 30, 30.0, 2.0) == 2.0


@pytest.mark.parametrize(
    ("utilisation", "ratio", "workers"),
    [
        (0.3, 1.0, 12),
        (0.9, 1.0, 4),
        (0.96, 1.0, 4),
        (0.3, 0.19, 4),
        (0.3, 0.2, 12),
        (0.01, 1.0, 60),
        (0.0, 1.0, 4),
    ],
)
def test_workers_are_added_until_the_busiest_ps_or_the_speedup_limit(utilisation, ratio, workers):
    assert more_workers(4, utilisation, ratio) == workers


def test_the_speedup_of_the_last_workers_is_relative():
    assert speed_ratio({1: 10.0, 2: 19.0, 4: 21.0}, 4) == pytest.approx(1.0 / 9.5)
    assert (
        speed_ratio({2: 19.0}, 2)
        == speed_ratio({1: 10.0}, 2)
        == speed_ratio({1: 0.0, 2: 5.0}, 2)
        == 1.0
    )


@given(st.dictionaries(st.integers(1, 9), st.floats(), max_size=5), st.integers(1, 9))
def test_the_speed_ratio_is_finite_for_any_speeds(speeds, workers):
    assert abs(speed_ratio(speeds, workers)) < float("inf")


def test_a_worker_is_sized_by_usage_with_a_memory_margin():
    assert worker_size(use(worker_cpu=2.64, worker_gib=2.0)) == Resources(cpu=2.6, memory_gib=3.0)
    assert worker_size(use(worker_cpu=0.2, worker_gib=0.1)) == Resources(cpu=1.0, memory_gib=1.0)


def test_a_pending_task_is_halved_down_to_a_minimum():
    assert halved_task(Resources(cpu=16, memory_gib=32)) == Resources(cpu=8, memory_gib=16)
    assert halved_task(Resources(cpu=6, memory_gib=8)) == Resources(cpu=4, memory_gib=6)
    assert halved_task(Resources(cpu=1, memory_gib=1)) == Resources(cpu=1, memory_gib=1)
