"""Tests of observations: a report becomes a reading of size, cores and the usage of each role.

Tasks that starve get a much smaller part of their cpu than the other tasks of their job.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.policies.contract import Observed, Reading
from services.allocator.state.observations import (
    MOST_USED,
    cpu_share,
    is_crowded,
    measurable_report,
    reading_of,
    starving_since,
    starving_tasks,
    update_speeds,
)
from shared.messages import (
    AllocationDecided,
    ProgressReported,
    Resources,
    Role,
    TaskPlan,
    TaskUsage,
)
from tests.allocator.builders import UID, progress, request

SMALL = Resources(cpu=1, memory_gib=2)
LARGE = Resources(cpu=2, memory_gib=4)


def decision(*tasks: TaskPlan) -> AllocationDecided:
    return AllocationDecided(
        job="mnist",
        uid=UID,
        request=request(),
        revision=1,
        generation=1,
        tasks=tasks,
        batch=32,
        reason="it starts",
    )


def task(role: str, serial: int, node: str = "n1", resources: Resources = SMALL) -> TaskPlan:
    return TaskPlan(role=role, index=0, serial=serial, node=node, resources=resources)


def report(*usage: TaskUsage, speed: float = 100.0) -> ProgressReported:
    return replace(progress(1, 100, 1000, speed), usage=usage)


def use(task: str, cpu: float = 0.5, memory_gib: float = 1.0) -> TaskUsage:
    return TaskUsage(task=task, cpu=cpu, memory_gib=memory_gib)


RUNS = decision(
    task("chief", 0),
    task("ps", 1, resources=LARGE),
    task("ps", 2),
    task("worker", 3, "n1"),
    task("worker", 4, "n2"),
)


def read(*usage: TaskUsage, runs: AllocationDecided = RUNS) -> Reading:
    return reading_of(runs, report(*usage), 5.0)


def test_an_observation_has_the_running_size_and_the_cores() -> None:
    found = read()

    assert (found.ps, found.workers, found.ps_had, found.worker_had) == (2, 2, 2.0, 1.0)


def test_cores_are_summed_and_memory_is_the_maximum() -> None:
    found = read(
        use("ps-1", 0.5, 1.0),
        use("ps-2", 0.25, 1.5),
        use("worker-3", 1.0, 0.5),
        use("chief-0", 9.0, 9.0),
    )

    assert (found.ps_cpu, found.ps_gib, found.worker_cpu, found.worker_gib) == (0.75, 1.5, 1.0, 0.5)


def test_a_role_with_missing_or_impossible_figures_is_unmeasured() -> None:
    found = read(use("worker-3", 1.0), use("worker-4", 2 * MOST_USED))

    assert (found.ps_cpu, found.ps_gib, found.worker_cpu, found.worker_gib) == (
        None,
        None,
        None,
        None,
    )


def test_the_number_of_nodes_counts_only_without_ps() -> None:
    alone = decision(
        task("chief", 0), task("worker", 1, "n1"), task("worker", 2, "n1"), task("worker", 3, "n2")
    )

    assert (read().nodes, read(runs=alone).nodes) == (None, 2)


@pytest.mark.parametrize(("gib", "crowded"), [(1.3, False), (1.5, True)])
def test_memory_pressure_is_that_of_the_smallest_ps(gib: float, crowded: bool) -> None:
    assert is_crowded(RUNS, read(use("ps-1", memory_gib=gib))) is crowded


def test_without_memory_limits_there_is_no_pressure() -> None:
    runs = decision(task("worker", 1), task("worker", 2, resources=Resources(cpu=1)))

    assert not is_crowded(runs, read(use("worker-1", memory_gib=50.0), runs=runs))


def test_figures_too_small_for_division_count_as_missing() -> None:
    found = measurable_report(report(use("ps-1", cpu=1e-9), speed=1e-9))

    assert (found.samples_per_second, found.usage[0].cpu, found.usage[0].memory_gib) == (
        0.0,
        0.0,
        1.0,
    )


def test_a_valid_report_is_returned_unchanged() -> None:
    said = report(use("ps-1"))

    assert measurable_report(said) is said


def test_speeds_of_a_size_are_an_exponential_mean() -> None:
    known = (Observed(2, 2, 32, 50.0), Observed(1, 1, 32, 10.0))

    found = update_speeds(known, read())

    assert [(o.ps, o.samples_per_second) for o in found] == [(1, 10.0), (2, 75.0)]


def test_a_disturbed_speed_counts_only_for_an_unknown_size() -> None:
    known = (Observed(2, 2, 32, 50.0),)

    assert update_speeds(known, read(), disturbed=True) is known
    assert len(update_speeds((), read(), disturbed=True)) == 1


def test_a_speed_without_workers_is_no_observation() -> None:
    """Speeds are scaled by the number of workers, so it must not be 0."""
    assert update_speeds((), replace(read(), workers=0)) == ()


def test_with_sizing_by_cores_other_cores_are_another_size() -> None:
    known = (Observed(2, 2, 32, 50.0, ps_cpu=4.0, worker_cpu=1.0),)

    assert len(update_speeds(known, read(), by_cores=True)) == 2
    assert len(update_speeds(known, read())) == 1


def task_test_strain(role: Role, serial: int, node: str, cpu: float = 1.0) -> TaskPlan:
    return TaskPlan(role=role, index=0, serial=serial, node=node, resources=Resources(cpu=cpu))


def use_test_strain(
    name: str, cpu: float, waited: float | None, busy: float | None = None
) -> TaskUsage:
    """Return the usage of a task with one thread, unless `busy` is given."""
    one = None if waited is None else min(1.0, cpu + waited)
    return TaskUsage(
        task=name, cpu=cpu, memory_gib=1.0, waited=waited, busy=one if busy is None else busy
    )


TASKS = [
    task_test_strain("chief", 0, "a", 0.2),
    task_test_strain("ps", 1, "b"),
    task_test_strain("worker", 2, "c"),
    task_test_strain("worker", 3, "d"),
]
WELL = [
    use_test_strain("chief-0", 0.1, 0.0),
    use_test_strain("ps-1", 0.6, 0.05),
    use_test_strain("worker-2", 0.9, 0.1),
    use_test_strain("worker-3", 0.8, 0.0),
]


def but(*others: TaskUsage) -> list[TaskUsage]:
    changed = {other.task: other for other in others}
    return [changed.get(one.task, one) for one in WELL]


def test_a_task_with_enough_cpu_does_not_starve() -> None:
    assert starving_tasks(WELL, TASKS) == []


def test_a_ps_with_a_quarter_of_its_cpu_starves() -> None:
    assert starving_tasks(but(use_test_strain("ps-1", 0.25, 1.8)), TASKS) == ["ps-1"]


def test_a_worker_with_a_quarter_of_its_cpu_starves() -> None:
    assert starving_tasks(but(use_test_strain("worker-3", 0.3, 2.0)), TASKS) == ["worker-3"]


def test_a_task_that_has_little_to_do_does_not_starve() -> None:
    assert starving_tasks(but(use_test_strain("ps-1", 0.05, 0.0)), TASKS) == []


def test_a_task_at_its_full_limit_does_not_starve() -> None:
    assert starving_tasks(but(use_test_strain("ps-1", 1.0, 3.0)), TASKS) == []


def test_a_task_with_bursts_does_not_starve() -> None:
    """Ten threads run for a tenth of the time and get the whole core; then nine of them wait."""
    assert starving_tasks(but(use_test_strain("worker-3", 0.1, 0.9, busy=0.1)), TASKS) == []
    assert starving_tasks(but(use_test_strain("worker-3", 0.1, 0.9, busy=0.9)), TASKS) == [
        "worker-3"
    ]


def test_equally_starved_tasks_are_not_moved() -> None:
    assert (
        starving_tasks([use_test_strain(one.task, one.cpu / 4, 4.0) for one in WELL], TASKS) == []
    )


def test_tasks_on_the_same_node_are_not_compared() -> None:
    beside = [task_test_strain("ps", 1, "b"), task_test_strain("worker", 2, "b")]

    assert (
        starving_tasks(
            [use_test_strain("ps-1", 0.1, 1.0), use_test_strain("worker-2", 0.9, 0.0)], beside
        )
        == []
    )


@pytest.mark.parametrize(
    "usage", [[], [use_test_strain("ps-1", 0.1, None)], [use_test_strain("other-9", 0.1, 3.0)]]
)
def test_unmeasured_tasks_are_not_starving(usage: list[TaskUsage]) -> None:
    assert starving_tasks(usage, TASKS) == []


def test_without_a_limit_the_cpu_share_is_unknown() -> None:
    assert cpu_share(use_test_strain("ps-1", 0.1, 3.0), 0.0) is None


def test_starvation_counts_from_the_first_report_and_restarts_after_a_break() -> None:
    hot = but(use_test_strain("ps-1", 0.25, 1.8))

    first = starving_since({}, hot, TASKS, 10.0)
    assert first == {"ps-1": 10.0} and starving_since(first, hot, TASKS, 15.0) == first
    assert starving_since(starving_since(first, WELL, TASKS, 20.0), hot, TASKS, 25.0) == {
        "ps-1": 25.0
    }
