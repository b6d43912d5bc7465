"""Tests of the policy `flowcon`: cores move from jobs with a flat loss to jobs that learn."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.policies.contract import JobSnapshot, LossPoint, Node, Reading, Size, Target
from services.allocator.policies.flowcon.growth import Rules
from services.allocator.policies.flowcon.policy import flowcon, interval_s, pass_boundary
from shared.messages import AllocationDecided, Resources, RoleResources, TaskPlan
from tests.allocator.builders import AT_ONCE, EVEN, Story, accepted, own, progress, request, resumed
from tests.allocator.builders import node as told_node


def tasks(*where: str, cpu: float = 2.0) -> tuple[TaskPlan, ...]:
    """Return a chief and a ps on the first node, and a worker on each node."""
    roles = [
        ("chief", 0, where[0]),
        ("ps", 0, where[0]),
        *(("worker", i, node) for i, node in enumerate(where)),
    ]
    return tuple(
        TaskPlan(role=r, index=i, serial=s, node=n, resources=Resources(cpu=cpu, memory_gib=1))  # type: ignore[arg-type]
        for s, (r, i, n) in enumerate(roles)
    )


def readings(
    *losses: float | None, since: float = 0.0, cpu: float | None = None
) -> tuple[Reading, ...]:
    """Return one reading a second, with these losses."""
    return tuple(
        Reading(
            at_s=since + i + 1,
            samples=i,
            loss=loss,
            samples_per_second=1,
            ps=1,
            workers=1,
            batch=32,
            worker_cpu=cpu,
        )
        for i, loss in enumerate(losses)
    )


def job(
    name: str, *losses: float | None, where: tuple[str, ...] = ("n1",), **fields: Any
) -> JobSnapshot:
    usual: dict[str, Any] = {
        "request": request(name),
        "sizes": EVEN,
        "submitted_s": 0.0,
        "size": Size(1, len(where)),
        "batch": 32,
        "tasks": tasks(*where),
        "recent": readings(*losses, since=fields.get("since_s", 0.0)),
        "curve": tuple(LossPoint(i, loss) for i, loss in enumerate(losses) if loss is not None),
    }
    return JobSnapshot(key=f"default.{name}", **(usual | fields))


def node(name: str = "n1", free: float = 0.0, cpu: float = 12.0) -> Node:
    return Node(name, Resources(cpu=free, memory_gib=50), Resources(cpu=cpu, memory_gib=64))


def falling(seconds: int, step: float = 1.0) -> list[float]:
    return [100.0 - step * i for i in range(seconds)]


FAST, FLAT = falling(48, 2.0), [5.0] * 48
TWELVE = Rules(alpha=0.001, interval_s=12.0)


def by_job(wants: list[Target]) -> dict[str, Target]:
    return {want.job.partition(".")[2]: want for want in wants}


def test_cores_move_from_a_flat_to_a_learning_job_without_new_tasks():
    wants = by_job(flowcon([node()], [job("fast", *FAST), job("flat", *FLAT)], 48.0, TWELVE))
    fast, flat = wants["fast"], wants["flat"]
    assert fast.sizes and flat.sizes
    assert (fast.ps, fast.workers, fast.batch) == (1, 1, 32)
    assert fast.sizes.worker.cpu > 2 > flat.sizes.worker.cpu > 0
    assert "growing" in fast.reason and "completing" in flat.reason
    assert fast.sizes.chief.cpu > 2 > flat.sizes.chief.cpu > 0
    assert sum(_whole(wants).values()) <= 12.0


def _whole(wants: dict[str, Target]) -> dict[str, float]:
    """Return the cores of each job of one ps and one worker whose resources change."""
    return {
        name: s.chief.cpu + s.ps.cpu + s.worker.cpu
        for name, want in wants.items()
        if (s := want.sizes)
    }


def test_a_jobs_cores_are_divided_like_its_request_above_a_floor():
    asked = replace(
        EVEN, chief=Resources(cpu=0.5), ps=Resources(cpu=1.0), worker=Resources(cpu=4.5)
    )
    flat = job("flat", *FLAT, sizes=asked)
    sizes = by_job(flowcon([node()], [job("fast", *FAST), flat], 48.0, TWELVE))["flat"].sizes
    assert sizes
    above = [task.cpu - TWELVE.floor_cpu for task in (sizes.chief, sizes.ps, sizes.worker)]
    assert above[1] / above[0] == pytest.approx(2.0, abs=0.1) and above[2] / above[
        1
    ] == pytest.approx(4.5, abs=0.1)
    starved = job("flat", *FLAT, sizes=replace(asked, ps=Resources(cpu=1e-6)))
    sizes = by_job(flowcon([node()], [job("fast", *FAST), starved], 48.0, TWELVE))["flat"].sizes
    assert sizes and sizes.ps.cpu == TWELVE.floor_cpu


def test_a_chief_without_requests_stays_without():
    free = [
        job(name, *losses, sizes=replace(EVEN, chief=Resources()))
        for name, losses in (("a", FAST), ("b", FLAT))
    ]
    assert [
        want.sizes.chief.cpu for want in flowcon([node()], free, 48.0, TWELVE) if want.sizes
    ] == [0.0, 0.0]


def test_targets_are_constant_within_an_interval():
    jobs = [job("fast", *FAST, *FAST[:11]), job("flat", *FLAT, *FLAT[:11])]
    answers = [flowcon([node()], jobs, now, TWELVE) for now in (48.0, 51.7, 59.9)]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0] != flowcon([node()], jobs, 60.1, TWELVE)


def taken(seen: JobSnapshot, wants: dict[str, Target]) -> JobSnapshot:
    """Return the job with the resources of its target."""
    sizes = wants[seen.request.job].sizes
    assert sizes
    return replace(
        seen, tasks=tuple(replace(task, resources=getattr(sizes, task.role)) for task in seen.tasks)
    )


def test_applied_targets_are_a_fixed_point():
    jobs = [job("fast", *FAST), job("flat", *FLAT)]
    first = by_job(flowcon([node()], jobs, 48.0, TWELVE))
    after = [taken(seen, first) for seen in jobs]
    assert [want.sizes for want in flowcon([node()], after, 50.0, TWELVE)] == [None, None]


def test_capacity_being_returned_counts_as_available():
    jobs = [job("fast", *FAST), job("flat", *FLAT, tasks=tasks("n1", cpu=1.0))]
    late = Node("n1", Resources(memory_gib=50), Resources(cpu=12.0), returning=Resources(cpu=2.0))
    assert flowcon([late], jobs, 48.0, TWELVE) == flowcon([node(free=2.0)], jobs, 48.0, TWELVE)


def test_a_new_job_counts_as_learning_for_two_intervals():
    def cores_at(now: float) -> dict[str, float]:
        old = [job("fast", *falling(72, 1.0)), job("flat", *[5.0] * 72)]
        return _whole(
            by_job(flowcon([node()], [*old, job("new", *[5.0] * 48, since_s=24.0)], now, TWELVE))
        )

    early = cores_at(36.0)
    assert early["new"] > 2 * max(early["fast"], early["flat"])
    assert "new" not in cores_at(48.0)  # watched: its loss was flat once
    assert cores_at(60.0)["new"] < early["new"]


def test_when_all_jobs_are_flat_shares_are_equal():
    jobs = [
        job("a", *[5.0] * 64, tasks=tasks("n1", cpu=3.0)),
        job("b", *[3.0] * 64, tasks=tasks("n1", cpu=1.0)),
    ]
    wants = by_job(flowcon([node()], jobs, 60.0, TWELVE))
    sizes = [want.sizes for want in wants.values()]
    assert (
        sizes[0]
        and sizes[0] == sizes[1]
        and sizes[0].worker.cpu == 2.0
        and "limit 100%" in wants["a"].reason
    )


NEXT = job(
    "next",
    size=None,
    tasks=(),
    sizes=replace(EVEN, ps=Resources(cpu=4.0), worker=Resources(cpu=8.0)),
)


def test_a_waiting_job_starts_with_the_highest_growth_and_others_shrink():
    fast = job("fast", *FAST, recent=readings(*FAST, cpu=6.0))
    cores = _whole(
        wants := by_job(flowcon([node()], [fast, job("flat", *FLAT), NEXT], 48.0, TWELVE))
    )
    assert wants["next"].size == Size(1, 1)
    # The growth of `fast` is 2 / 100 a second with half of the cores: 0.04. `next` has 1 / 12,
    # and `flat` gets 1 / (beta n).
    total = 0.04 + 1 / 12
    assert cores["next"] == pytest.approx(12 * (1 / 12 / total) / (1 + 1 / 4), abs=0.05)
    assert (
        cores["fast"] / cores["next"] == pytest.approx(0.04 * 12, rel=0.1)
        and sum(cores.values()) <= 12.0
    )


def test_beside_flat_jobs_a_waiting_job_gets_a_larger_share():
    flat = [job(f"flat{i}", *FLAT[:-1], 5.0 - 0.01, tasks=tasks("n1", cpu=2.0)) for i in range(2)]
    cores = _whole(by_job(flowcon([node()], [*flat, NEXT], 48.0, TWELVE)))
    assert cores["next"] > 1.5 * cores["flat0"]


def test_a_waiting_job_starts_although_slow_learners_are_at_their_floor():
    hardly = [100.0 - 0.15 * i for i in range(48)]
    small = replace(
        EVEN, chief=Resources(cpu=0.2), ps=Resources(cpu=0.2), worker=Resources(cpu=0.6)
    )
    there = job(
        "hardly",
        *hardly,
        sizes=small,
        tasks=tasks("n1", cpu=0.33),
        recent=readings(*hardly, cpu=0.9),
    )
    waits = replace(NEXT, sizes=replace(small, worker=Resources(cpu=0.8)))
    wants = by_job(flowcon([node(free=0.01, cpu=1.0)], [there, waits], 48.0, TWELVE))
    cores = _whole(wants)
    assert wants["hardly"].reason.startswith("growing") and cores["next"] <= 0.85
    assert (
        cores["hardly"] == pytest.approx(3 * TWELVE.floor_cpu, abs=0.03)
        and 0.95 < sum(cores.values()) <= 1.0
    )


def test_jobs_that_shrank_for_a_new_job_do_not_shrink_again():
    fading = [100.0 - i for i in range(24)] + [76.0] * 24
    steep = [200.0 - 4 * i for i in range(48)]
    jobs = [
        job(n, *told, recent=readings(*told, cpu=4.0))
        for n, told in (("steep", steep), ("fading", fading))
    ]
    first = by_job(flowcon([node()], [*jobs, NEXT], 48.0, TWELVE))
    made = [taken(each, first) for each in jobs]
    room = node(free=12.0 - sum(_cpu(None, task) for each in made for task in each.tasks))
    again = by_job(flowcon([room], [*made, NEXT], 50.0, TWELVE))
    assert again["fading"].reason.startswith("watched")
    assert again["steep"].sizes is None and again["fading"].sizes is None
    assert _whole(again)["next"] == pytest.approx(_whole(first)["next"], abs=0.05)


def test_jobs_that_arrive_together_get_equal_shares():
    three = [replace(NEXT, key=f"default.j{i}", request=request(f"j{i}")) for i in range(3)]
    assert {
        round(c, 1) for c in _whole(by_job(flowcon([node(free=12.0)], three, 0.0, TWELVE))).values()
    } == {4.0}


def test_a_waiting_job_gets_at_most_its_request():
    wants = by_job(flowcon([node(free=12.0)], [job("next", size=None, tasks=())], 0.0, TWELVE))
    assert wants["next"].sizes == EVEN


def test_jobs_that_report_seldom_are_judged_over_longer_intervals():
    slow = [job("a", recent=tuple(replace(r, at_s=30.0 * r.at_s) for r in readings(*FAST)))]
    assert interval_s(slow, 12.0) == 60.0 and interval_s([job("a", *FAST)], 12.0) == 12.0


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, None, 0.0])
def test_jobs_with_unusable_losses_count_as_flat_and_share_equally(loss):
    jobs = [job("a", *[loss] * 60), job("b", *[loss] * 60, tasks=tasks("n1", cpu=1.0))]
    for now, list_ in ((10.0, "new"), (55.0, "completing")):
        one, other = flowcon([node()], jobs, now, TWELVE)
        assert one.reason.startswith(list_) and other.reason.startswith(list_)
        assert one.sizes == other.sizes and one.sizes and one.sizes.worker.cpu == 1.5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.none(), st.floats()), max_size=40), min_size=1, max_size=5),
    st.lists(st.floats(0, 4), min_size=2, max_size=2),
    st.floats(-50, 200),
)
def test_no_node_is_overcommitted(losses, free, now):
    nodes = [node("n1", free[0]), node("n2", free[1])]
    places = [("n1",), ("n2",), ("n1", "n2"), ("n2", "n1", "n1"), ("n2", "n2")]
    jobs = [job(f"j{i}", *each, where=places[i]) for i, each in enumerate(losses)]
    sizes = {want.job: want.sizes for want in flowcon(nodes, jobs, now, TWELVE)}
    for n in nodes:
        here = [(j, t) for j in jobs for t in j.tasks if t.node == n.name]
        had = sum(t.resources.cpu for _, t in here)
        has = sum(_cpu(sizes[j.key], t) for j, t in here)
        assert has <= had + n.free.cpu + 1e-6
        assert all(_cpu(sizes[j.key], t) >= TWELVE.floor_cpu for j, t in here)


def _cpu(sizes: Any, task: TaskPlan) -> float:
    if sizes is None:
        return task.resources.cpu
    return float(getattr(sizes, task.role).cpu)


# ---------------------------------------------------------------- live: facts and decisions in turn

LIVE_CORES = 6.0


def seen_on_node(story: Story) -> None:
    """Publish the node with every pod as decided."""
    jobs = [job for job in story.state.jobs.values() if job.newest_decision]
    has = sum(task.resources.cpu for job in jobs for task in job.newest_decision.tasks)
    pods = tuple(pod for job in jobs for pod in own(job.request.job, *job.newest_decision.tasks))
    story.hear(told_node(cpu=LIVE_CORES, free=max(0.0, LIVE_CORES - has), own=pods), after_s=0.0)


def settle(story: Story) -> list[AllocationDecided]:
    """Return all decisions until there are no more; after each pass publish the node."""
    found: list[AllocationDecided] = []
    while now := story.decide():
        found += [action for action in now if isinstance(action, AllocationDecided)]
        seen_on_node(story)
    return found


def comes(story: Story, uid: int, name: str) -> None:
    story.hear(accepted(request(name, policy="flowcon", resources=WIDE), uid=uid), after_s=0.0)
    settle(story)
    story.hear(resumed(1, name, uid=uid), after_s=0.0)


def report(story: Story, uid: int, name: str, step: int, loss: float) -> None:
    told = replace(progress(1, step, 100_000, 1.0, step), job=name, uid=uid, loss=loss)
    story.hear(told, after_s=0.5)


WIDE = RoleResources(
    chief=Resources(cpu=1, memory_gib=1),
    ps=Resources(cpu=1, memory_gib=1),
    worker=Resources(cpu=4, memory_gib=1),
)


def test_live_cores_move_by_revisions_and_a_new_job_starts():
    story = Story(replace(AT_ONCE, policy="flowcon")).hear(told_node(cpu=LIVE_CORES))
    comes(story, 1, "fast")
    comes(story, 2, "flat")
    for second in range(1, 45):
        report(story, 1, "fast", second, 100.0 - second)
        report(story, 2, "flat", second, 5.0)
        settle(story)
    has = {job.request.job: job.active_decision for job in story.state.jobs.values()}
    cores = {name: sum(task.resources.cpu for task in runs.tasks) for name, runs in has.items()}
    assert cores["fast"] > 1.5 * cores["flat"] and sum(cores.values()) <= LIVE_CORES
    assert {runs.generation for runs in has.values()} == {1} and has["fast"].revision > 1
    story.hear(accepted(request("next", policy="flowcon", resources=WIDE), uid=3), after_s=0.0)
    new = [decided for decided in settle(story) if decided.job == "next"]
    assert new and sum(task.resources.cpu for task in new[-1].tasks) > cores["flat"]


def test_live_nothing_moves_once_all_jobs_are_flat():
    story = Story(replace(AT_ONCE, policy="flowcon")).hear(told_node(cpu=LIVE_CORES))
    comes(story, 1, "one")
    comes(story, 2, "other")
    moved = []
    for second in range(1, 100):
        for uid, name in ((1, "one"), (2, "other")):
            report(story, uid, name, second, 5.0 + uid)
        moved += [second for _ in settle(story)]
    assert max(moved, default=0) < 50


def test_an_empty_cluster_and_no_jobs_are_answered():
    assert flowcon([], [], 0.0) == []
    assert [w.sizes for w in flowcon([], [job("a", *FAST)], 48.0)] == [None]


def test_passes_are_counted_from_the_newest_jobs_start():
    assert pass_boundary([job("a"), job("b", since_s=5.0)], 31.0, 12.0) == 29.0
