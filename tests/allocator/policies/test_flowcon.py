"""Growth efficiency, the three lists, limits, back-off; and CPU that moves between running jobs."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.job import Reading
from services.allocator.placement import Node, Size
from services.allocator.policies.contract import JobSeen, Want
from services.allocator.policies.flowcon import (
    Container,
    Rules,
    Sample,
    Timing,
    after_pass,
    boundary,
    flowcon,
    growth,
    heard,
    pass_,
)
from shared.messages import Resources, TaskPlan
from tests.allocator.builders import EVEN, request

CORES = 8.0
RULES = Rules(alpha=0.03, interval_s=10.0)


# ---------------------------------------------------------------- growth efficiency


def samples(*losses: float | None, every_s: float = 5.0, share: float = 0.5) -> list[Sample]:
    """At 5, 10, 15, ... seconds."""
    return [Sample((i + 1) * every_s, loss, share) for i, loss in enumerate(losses)]


def test_growth_is_the_change_of_the_normalised_mean_loss_by_second_and_cpu_share():
    assert growth(samples(4.0, 2.0, 1.0, 1.0), now=20, interval_s=10) == pytest.approx((3 - 1) / 4 / 10 / 0.5)


def test_a_rising_loss_counts_as_progress_too():
    assert growth(samples(1.0, 1.0, 2.0, 2.0), now=20, interval_s=10) == pytest.approx(0.5 / 10 / 0.5)


def test_the_largest_loss_seen_before_the_samples_normalises_as_well():
    assert growth(samples(4.0, 2.0, 1.0, 1.0), now=20, interval_s=10, largest=8.0) == pytest.approx(2 / 8 / 10 / 0.5)


@pytest.mark.parametrize("losses", [(), (1.0,), (None, None, 1.0, 1.0), (1.0, 1.0, math.nan, math.inf), (0.0,) * 4])
def test_without_two_intervals_of_usable_losses_there_is_no_growth(losses):
    assert growth(samples(*losses), now=20, interval_s=10) == 0.0


@pytest.mark.parametrize("share", [0.0, math.nan, None])
def test_without_cpu_there_is_no_growth(share):
    assert growth(samples(4.0, 2.0, 1.0, 1.0, share=share), now=20, interval_s=10) == 0.0


@given(st.lists(st.one_of(st.none(), st.floats()), max_size=12), st.floats(), st.floats(0, 100))
def test_growth_is_a_finite_number_whatever_is_read(losses, share, now):
    assert 0 <= growth(samples(*losses, share=share), now, 10.0) < math.inf


# ---------------------------------------------------------------- Algorithm 1


def container(name: str = "a", growth: float = 0.0, limit: float = CORES, list_: str = "NL") -> Container:
    return Container(name=name, limit=limit, growth=growth, watching=list_ == "WL", completing=list_ == "CL")


def lists(containers: tuple[Container, ...]) -> list[str]:
    return ["WL" if c.watching else "CL" if c.completing else "NL" for c in containers]


def limits(containers: tuple[Container, ...]) -> list[float]:
    return [round(c.limit, 4) for c in containers]


@pytest.mark.parametrize(
    ("growth", "before", "after"),
    [
        (0.02, "NL", "WL"),
        (0.02, "WL", "CL"),
        (0.02, "CL", "CL"),
        (0.03, "NL", "NL"),
        (0.03, "WL", "NL"),
        (0.03, "CL", "NL"),
    ],
)
def test_a_low_reading_moves_a_container_one_list_on_and_another_brings_it_back(growth, before, after):
    others = container("b", 0.05)
    assert lists(pass_([container("a", growth, list_=before), others], CORES, RULES)) == [after, "NL"]


def test_growing_containers_share_the_cores_by_their_growth():
    assert limits(pass_([container("a", 0.06), container("b", 0.03)], CORES, RULES)) == [5.3333, 2.6667]


def test_a_watched_one_keeps_its_limit_but_its_growth_counts_in_the_sum():
    judged = pass_([container("a", 0.02, limit=5.0), container("b", 0.06)], CORES, RULES)
    assert lists(judged) == ["WL", "NL"] and limits(judged) == [5.0, 6.0]


def test_a_completing_one_keeps_one_part_of_n_plus_one():
    judged = pass_([container("a", 0.001, list_="WL"), container("b", 0.05), container("c", 0.05)], CORES, RULES)
    assert lists(judged) == ["CL", "NL", "NL"]
    assert limits(judged)[0] == CORES / 4  # 1 / (beta n), beta = 1 + 1/3
    assert sum(limits(judged)) > CORES  # soft limits, no partition


def test_limits_are_fractions_of_a_core_with_a_floor():
    assert limits(pass_([container("a", 0.04), container("b", 90.0)], CORES, RULES))[0] == RULES.floor_cpu


def test_where_nobody_grows_no_limit_changes():
    judged = pass_([container("a", limit=3.0, list_="WL"), container("b", limit=5.0, list_="CL")], CORES, RULES)
    assert limits(judged) == [3.0, 5.0]


def test_limits_are_lifted_in_the_pass_after_the_last_one_is_completing():
    first = pass_([container("a", 0.01, 2.0, "CL"), container("b", 0.01, 3.0, "WL")], CORES, RULES)
    assert lists(first) == ["CL", "CL"] and limits(first) == [4.0, 4.0]
    assert limits(pass_(first, CORES, RULES)) == [CORES, CORES]


# ---------------------------------------------------------------- Algorithm 2


def test_the_interval_doubles_with_each_pass_in_which_all_are_completing():
    timing, flat = Timing(interval_s=10, due_s=0, names=frozenset("ab")), [container("a", list_="CL")]
    for now, interval in ((0, 20), (20, 40), (60, 80)):
        timing = after_pass(timing, flat, now, RULES)
        assert (timing.interval_s, timing.due_s) == (interval, now + interval)
    assert after_pass(timing, [*flat, container("b")], 140, RULES).interval_s == 80


@pytest.mark.parametrize("names", ["abc", "a"], ids=["arrival", "departure"])
def test_who_comes_or_goes_ends_the_back_off_and_calls_a_pass_at_once(names):
    resting = Timing(interval_s=80, due_s=500, names=frozenset("ab"))
    assert heard(resting, frozenset("ab"), 105, RULES) == resting
    assert heard(resting, frozenset(names), 105, RULES) == Timing(interval_s=10, due_s=105, names=frozenset(names))


# ---------------------------------------------------------------- the policy


def tasks(*where: str, cpu: float = 2.0) -> tuple[TaskPlan, ...]:
    """A chief and a ps on the first node, and a worker on each."""
    roles = [("chief", 0, where[0]), ("ps", 0, where[0]), *(("worker", i, node) for i, node in enumerate(where))]
    return tuple(
        TaskPlan(role=r, index=i, serial=s, node=n, resources=Resources(cpu=cpu, memory_gib=1))  # type: ignore[arg-type]
        for s, (r, i, n) in enumerate(roles)
    )


def readings(*losses: float | None, since: float = 0.0, cpu: float | None = None) -> tuple[Reading, ...]:
    """One a second."""
    return tuple(
        Reading(
            at_s=since + i + 1, samples=i, loss=loss, samples_per_second=1, ps=1, workers=1, batch=32, worker_cpu=cpu
        )
        for i, loss in enumerate(losses)
    )


def job(name: str, *losses: float | None, where: tuple[str, ...] = ("n1",), **fields: Any) -> JobSeen:
    usual: dict[str, Any] = {
        "request": request(name),
        "sizes": EVEN,
        "submitted_s": 0.0,
        "size": Size(1, len(where)),
        "batch": 32,
        "tasks": tasks(*where),
        "recent": readings(*losses, since=fields.get("since_s", 0.0)),
    }
    return JobSeen(key=f"default.{name}", **(usual | fields))


def node(name: str = "n1", free: float = 0.0, cpu: float = 12.0) -> Node:
    return Node(name, Resources(cpu=free, memory_gib=50), Resources(cpu=cpu, memory_gib=64))


def falling(seconds: int, step: float = 1.0) -> list[float]:
    return [100.0 - step * i for i in range(seconds)]


FAST, FLAT = falling(48, 2.0), [5.0] * 48
TWELVE = Rules(alpha=0.001, interval_s=12.0)


def by_job(wants: list[Want]) -> dict[str, Want]:
    return {want.job.partition(".")[2]: want for want in wants}


def test_cores_go_from_a_flat_job_to_a_learning_one_without_any_new_task():
    wants = by_job(flowcon([node()], [job("fast", *FAST), job("flat", *FLAT)], 48.0, TWELVE))
    fast, flat = wants["fast"], wants["flat"]
    assert fast.sizes and flat.sizes
    assert (fast.ps, fast.workers, fast.batch) == (1, 1, 32)
    assert fast.sizes.worker.cpu > 2 > flat.sizes.worker.cpu > 0
    assert "growing" in fast.reason and "completing" in flat.reason
    assert fast.sizes.ps.cpu + fast.sizes.worker.cpu + flat.sizes.ps.cpu + flat.sizes.worker.cpu <= 8.0


def test_between_two_boundaries_the_answer_does_not_change():
    jobs = [job("fast", *FAST, *FAST[:11]), job("flat", *FLAT, *FLAT[:11])]
    answers = [flowcon([node()], jobs, now, TWELVE) for now in (48.0, 51.7, 59.9)]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0] != flowcon([node()], jobs, 60.1, TWELVE)


def test_when_its_advice_was_taken_it_has_nothing_more_to_say():
    jobs = [job("fast", *FAST), job("flat", *FLAT)]
    first = by_job(flowcon([node()], jobs, 48.0, TWELVE))
    taken = []
    for seen in jobs:
        sizes = first[seen.request.job].sizes
        assert sizes
        had = {"chief": Resources(cpu=2), "ps": sizes.ps, "worker": sizes.worker}
        moved = tuple(
            TaskPlan(role=t.role, index=0, serial=t.serial, node=t.node, resources=had[t.role]) for t in seen.tasks
        )
        taken.append(job(seen.request.job, *[r.loss for r in seen.recent], tasks=moved))
    again = by_job(flowcon([node()], taken, 50.0, TWELVE))
    for name, want in again.items():
        assert want.sizes and want.sizes.worker.cpu == pytest.approx(first[name].sizes.worker.cpu, abs=0.021)


def test_a_new_job_is_watched_first_and_keeps_what_it_has():
    wants = by_job(flowcon([node()], [job("fast", *FAST), job("new", since_s=48.0)], 48.0, TWELVE))
    assert wants["new"].sizes is None and wants["new"].reason.startswith("watched")


def test_when_all_are_flat_everybody_gets_an_equal_share():
    wants = by_job(flowcon([node()], [job("a", *[5.0] * 64), job("b", *[3.0] * 64)], 60.0, TWELVE))
    sizes = [want.sizes for want in wants.values()]
    assert sizes[0] and sizes[0] == sizes[1] and "limit 100%" in wants["a"].reason


def test_who_waits_is_given_room_by_those_that_run():
    waiting = job("next", size=None, tasks=())
    alone = by_job(flowcon([node()], [job("fast", *FAST)], 48.0, TWELVE))["fast"]
    wants = by_job(flowcon([node()], [job("fast", *FAST), waiting], 48.0, TWELVE))
    assert wants["next"].size == Size(1, 1)
    assert alone.sizes and wants["fast"].sizes
    assert 2 * (alone.sizes.worker.cpu - wants["fast"].sizes.worker.cpu) == pytest.approx(3.0, abs=0.03)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, None, 0.0])
def test_losses_that_say_nothing_change_nothing_and_then_count_as_flat(loss):
    jobs = [job("a", *[loss] * 30), job("b", *[loss] * 30, tasks=tasks("n1", cpu=1.0))]
    assert [want.sizes for want in flowcon([node()], jobs, 20.0, TWELVE)] == [None, None]
    even = [want.sizes for want in flowcon([node()], jobs, 30.0, TWELVE)]
    assert even[0] == even[1] and even[0] and even[0].worker.cpu == 1.5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.none(), st.floats()), max_size=40), min_size=1, max_size=5),
    st.lists(st.floats(0, 4), min_size=2, max_size=2),
    st.floats(-50, 200),
)
def test_no_node_is_ever_promised_more_than_it_has(losses, free, now):
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
    if sizes is None or task.role == "chief":
        return task.resources.cpu
    return float(getattr(sizes, task.role).cpu)


def test_an_empty_cluster_and_no_jobs_are_answered():
    assert flowcon([], [], 0.0) == []
    assert [w.sizes for w in flowcon([], [job("a", *FAST)], 48.0)] == [None]


def test_passes_are_counted_from_the_newest_jobs_start():
    assert boundary([job("a"), job("b", since_s=5.0)], 31.0, 12.0) == 29.0
