"""Tests of memory growth: a task gets more memory before it is killed for lack of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from services.allocator.policies.contract import Quota
from services.allocator.settings import Rules
from shared.messages import (
    AllocationDecided,
    ModelProfile,
    ProgressReported,
    Resources,
    RoleResources,
    TaskUsage,
)
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    exited,
    node,
    own,
    progress,
    request,
    resumed,
    span,
    tasks,
)

SETTLE = 30
STATIC: Rules = replace(AT_ONCE, policy="static")


def training(spare_gib: float = 8.0, **asked: Any) -> tuple[Story, AllocationDecided]:
    """Return a job with a chief, ps and worker of 1 core and 1 GiB on n1.

    n1 has `spare_gib` of memory free.
    """
    story = Story(STATIC).hear(node("n1"), accepted(request(ps=span(1), workers=span(1), **asked)))
    first = story.decided()
    return story.hear(with_gib("n1", spare_gib, own=own("mnist", *first.tasks)), resumed(1)), first


def with_gib(name: str, gib: float, **fields: Any) -> Any:
    return replace(node(name, **fields), free=Resources(cpu=5, memory_gib=gib))


def report(step: int, ps_gib: float, worker_gib: float = 0.3) -> ProgressReported:
    """Return report number `step`, after ten more examples in a second."""
    usage = (
        TaskUsage(task="ps-1", cpu=0.5, memory_gib=ps_gib),
        TaskUsage(task="worker-2", cpu=0.5, memory_gib=worker_gib),
    )
    return replace(progress(1, done=10 * step, total=100_000, speed=10.0, step=step), usage=usage)


def growing(story: Story, until: int) -> Story:
    """Report a ps that grows by 0.01 GiB a second after `SETTLE` reports."""
    return story.hear(
        *(report(step, 0.4 + 0.01 * max(0, step - SETTLE)) for step in range(1, SETTLE + until))
    )


def gib(decision: AllocationDecided, role: str) -> float:
    return tasks(decision, role)[0].resources.memory_gib


def test_a_growing_ps_gets_more_memory_in_place():
    story, first = training()
    raised = growing(story, until=36).decided()

    assert [t.serial for t in raised.tasks] == [
        t.serial for t in first.tasks
    ] and raised.generation == 1
    assert (
        gib(raised, "ps") == 2.0 and gib(raised, "worker") == 1.0
    )  # it will need more; one increase at most doubles
    assert (
        raised.reason.startswith("mnist's ps will soon need more than 1 GiB, and gets")
        and "in place" in raised.reason
    )
    assert story.decide() == ()


def test_a_growing_ps_without_room_moves_to_another_node():
    story, first = training(spare_gib=0.5)
    story.hear(node("n2"))
    moved = growing(story, until=36).decided()

    assert [t.node for t in tasks(moved, "ps")] == ["n2"] and moved.generation == 2
    assert tasks(moved, "chief") == tasks(first, "chief") and tasks(moved, "worker") == tasks(
        first, "worker"
    )
    assert moved.reason.endswith("moved to where there is room for it")


def test_a_growing_ps_without_room_anywhere_stays():
    story, _ = training(spare_gib=0.5)
    assert growing(story, until=36).decide() == ()


@pytest.mark.parametrize(
    ("after_s", "raises"), [(10.0, 0), (1e9, 1)], ids=["overdue", "not overdue"]
)
def test_memory_growth_takes_no_reserved_capacity(after_s: float, raises: int):
    story, first = training()
    second = story.hear(
        accepted(request("two", ps=span(1), workers=span(2, least=2)), uid=2)
    ).decided()
    both = (*own("mnist", *first.tasks), *own("two", *second.tasks))
    full = replace(node("n1", own=both), free=Resources(cpu=1, memory_gib=4))
    story.hear(
        full, resumed(1, "two", uid=2), accepted(request("large", workers=span(3, least=3)), uid=3)
    )
    story.rules = replace(STATIC, reserve_after_s=after_s)
    assert len(growing(story, until=36).decide()) == raises
    assert ("reserved for it" in story.why("large")) == (not raises)


def test_constant_memory_changes_nothing():
    story, _ = training()
    assert (
        story.hear(*(report(step, 0.8 + 0.01 * (step % 2)) for step in range(1, 80))).decide() == ()
    )


def test_memory_growth_beyond_the_jobs_end_changes_nothing():
    story, _ = training()
    nearly = [
        replace(report(step, 0.1 + 0.01 * step), total_samples=10 * step + 100)
        for step in range(1, 66)
    ]
    assert story.hear(*nearly).decide() == ()


def test_a_worker_at_its_limit_gets_more_memory():
    story, _ = training()
    raised = story.hear(*(report(step, 0.3, worker_gib=0.99) for step in range(1, 40))).decided()
    assert gib(raised, "worker") == 1.125 and gib(raised, "ps") == 1.0


def test_later_decisions_keep_the_added_memory():
    story, _ = training()
    raised = growing(story, until=36).decided()
    lost = tasks(raised, "ps")[0]
    assert gib(story.hear(exited(lost)).decided(), "ps") == gib(raised, "ps")


def test_memory_growth_stays_within_the_quota():
    story, _ = training()
    story.rules = replace(STATIC, quotas={"default": Quota(cpu=8, memory_gib=3)})
    assert growing(story, until=36).decide() == ()


def test_initial_allocation_is_no_memory_growth():
    story, _ = training()
    for step in range(1, 100):
        assert story.hear(report(step, 0.3 if step < 3 else 0.75)).decide() == ()


def test_one_step_causes_at_most_one_increase():
    story, _ = training()
    raised = [
        a
        for step in range(1, 200)
        for a in story.hear(report(step, 0.75 if step < 80 else 0.85)).decide()
    ]
    raised = [
        one for one in raised if not one.reason.startswith("repeated (")
    ]  # no node fact shows that the decision was carried out
    assert len(raised) <= 1 and all(gib(one, "ps") <= 2.0 for one in raised)


def test_memory_growth_keeps_the_cores_of_tasks():
    story, first = training()
    odd = [
        replace(t, resources=replace(t.resources, cpu=0.5)) if t.role == "ps" else t
        for t in first.tasks
    ]
    assert tasks(first, "ps")[0].resources.cpu == 1
    story.hear(replace(first, revision=2, tasks=tuple(odd)))
    assert tasks(growing(story, until=36).decided(), "ps")[0].resources.cpu == 0.5


TABLES = ModelProfile(parameters=10**8, bytes=4 * 10**8, variables=1024, table_bytes=8 * 10**8)
WHOLE = replace(TABLES, table_bytes=0)


def steady(story: Story, ps_gib: float, profile: ModelProfile) -> Story:
    reports = [report(step, ps_gib) for step in range(1, SETTLE + 10)]
    return story.hear(*(replace(each, profile=profile) for each in reports))


def test_a_ps_with_tables_gets_memory_for_two_generations_if_weir_chooses_it() -> None:
    story, _ = training(resources=None)
    raised = steady(story, 0.8, TABLES).decided()
    assert 1.6 < gib(raised, "ps") <= 2.0
    assert story.decide() == ()


@pytest.mark.parametrize(
    ("profile", "asked"),
    [
        (WHOLE, {"resources": None}),
        (TABLES, {"resources": RoleResources(ps=Resources(cpu=1, memory_gib=1))}),
        (TABLES, {"resources": None, "handover": "restart"}),
    ],
    ids=["without tables", "with resources", "restarting"],
)
def test_other_jobs_get_no_memory_for_a_second_generation(
    profile: ModelProfile, asked: dict[str, Any]
) -> None:
    story, _ = training(**asked)
    assert steady(story, 0.8, profile).decide() == ()
