"""Which tasks starve: those that get far less of what is theirs than the rest of their job does."""

from __future__ import annotations

import pytest

from services.allocator.strain import got, since, starved
from shared.messages import Resources, Role, TaskPlan, TaskUsage


def task(role: Role, serial: int, node: str, cpu: float = 1.0) -> TaskPlan:
    return TaskPlan(role=role, index=0, serial=serial, node=node, resources=Resources(cpu=cpu))


def use(name: str, cpu: float, waited: float | None, busy: float | None = None) -> TaskUsage:
    """Of one thread, where nothing else is said."""
    one = None if waited is None else min(1.0, cpu + waited)
    return TaskUsage(
        task=name, cpu=cpu, memory_gib=1.0, waited=waited, busy=one if busy is None else busy
    )


TASKS = [
    task("chief", 0, "a", 0.2),
    task("ps", 1, "b"),
    task("worker", 2, "c"),
    task("worker", 3, "d"),
]
WELL = [
    use("chief-0", 0.1, 0.0),
    use("ps-1", 0.6, 0.05),
    use("worker-2", 0.9, 0.1),
    use("worker-3", 0.8, 0.0),
]


def but(*others: TaskUsage) -> list[TaskUsage]:
    changed = {other.task: other for other in others}
    return [changed.get(one.task, one) for one in WELL]


def test_nobody_starves_who_gets_what_he_can_use() -> None:
    assert starved(WELL, TASKS) == []


def test_a_ps_whose_node_gives_it_a_quarter_starves() -> None:
    assert starved(but(use("ps-1", 0.25, 1.8)), TASKS) == ["ps-1"]


def test_so_does_a_worker() -> None:
    assert starved(but(use("worker-3", 0.3, 2.0)), TASKS) == ["worker-3"]


def test_a_task_that_has_little_to_do_does_not_starve() -> None:
    assert starved(but(use("ps-1", 0.05, 0.0)), TASKS) == []


def test_nor_does_one_that_has_all_it_was_promised_and_could_use_more() -> None:
    assert starved(but(use("ps-1", 1.0, 3.0)), TASKS) == []


def test_nor_one_that_uses_up_its_quota_in_bursts() -> None:
    """Ten threads for a tenth of the time, in which it gets its whole core: nine of them wait
    then.
    """
    assert starved(but(use("worker-3", 0.1, 0.9, busy=0.1)), TASKS) == []
    assert starved(but(use("worker-3", 0.1, 0.9, busy=0.9)), TASKS) == ["worker-3"]


def test_where_all_starve_alike_nobody_is_to_be_moved() -> None:
    assert starved([use(one.task, one.cpu / 4, 4.0) for one in WELL], TASKS) == []


def test_neighbours_on_the_same_node_are_no_measure() -> None:
    beside = [task("ps", 1, "b"), task("worker", 2, "b")]

    assert starved([use("ps-1", 0.1, 1.0), use("worker-2", 0.9, 0.0)], beside) == []


@pytest.mark.parametrize("usage", [[], [use("ps-1", 0.1, None)], [use("other-9", 0.1, 3.0)]])
def test_of_what_was_not_measured_nothing_is_said(usage: list[TaskUsage]) -> None:
    assert starved(usage, TASKS) == []


def test_nothing_was_promised_without_a_limit() -> None:
    assert got(use("ps-1", 0.1, 3.0), 0.0) is None


def test_it_counts_from_the_first_report_and_anew_after_a_break() -> None:
    hot = but(use("ps-1", 0.25, 1.8))

    first = since({}, hot, TASKS, 10.0)
    assert first == {"ps-1": 10.0} and since(first, hot, TASKS, 15.0) == first
    assert since(since(first, WELL, TASKS, 20.0), hot, TASKS, 25.0) == {"ps-1": 25.0}
