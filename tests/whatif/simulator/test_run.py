"""Tests of whole simulated runs: jobs arrive, are placed, grow, lose tasks and end.

The decisions are those of the real allocator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.policies.contract import Quota, Target
from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from services.whatif.simulator import run as simulator
from services.whatif.simulator.outcome import JobRecord, Run, timeline
from services.whatif.simulator.run import simulate
from services.whatif.simulator.scenario import Curve, Scenario, Tenant
from tests.whatif.simulator.worlds import cluster, growing, run, scenario, span, work

ELASTIC = Rules(policy="config-manager")


def record(done: Run, job: str = "one") -> JobRecord:
    return next(record for record in done.records if record.work.job == job)


def sizes(done: Run, job: str = "one") -> list[tuple[int, int]]:
    return [(ps, workers) for _, ps, workers, _ in record(done, job).sizes]


def facts(done: Run) -> list[object]:
    """Return everything that does not depend on the clock."""
    return [
        (r.work.job, r.started_s, r.finished_s, r.outcome, r.resizes, r.paused_s, tuple(r.sizes))
        for r in done.records
    ]


def test_a_job_starts_trains_and_ends() -> None:
    one = record(run(scenario(work(submitted_s=5.0))))
    assert one.started_s == 15.0, "it stands still for restart_s before its first step"
    assert one.finished_s == pytest.approx(15.0 + 10_000 / 100.0)
    assert (one.outcome, one.resizes, one.paused_s) == ("succeeded", 0, 0.0)
    assert one.completion_s == pytest.approx(110.0)


def test_a_job_that_does_not_fit_waits_for_the_previous_one() -> None:
    full = {"workers": span(4, least=4), "ps": span(1)}
    done = run(scenario(work("one", **full), work("two", **full), cluster=cluster(cpu=6)))
    one, two = record(done, "one"), record(done, "two")
    assert one.finished_s is not None and two.started_s == pytest.approx(one.finished_s + 10.0)


def test_a_job_that_can_never_fit_is_not_completed_and_the_run_ends() -> None:
    done = run(scenario(work("one"), work("vast", workers=span(99, least=99))))
    assert record(done, "vast").outcome is None and record(done, "one").is_completed


def test_the_elastic_policy_grows_when_a_tenant_leaves_and_pays_a_pause_for_it() -> None:
    world = scenario(
        growing(), cluster=cluster(2, cpu=3, tenants=(Tenant(node="node-2", cpu=3.0, to_s=40.0),))
    )
    done = run(world, "config-manager")
    assert sizes(done) == [(1, 1), (2, 4), (0, 0)]
    assert (record(done).resizes, record(done).paused_s) == (1, 10.0)
    still = run(world, "static")
    assert record(still).resizes == 0
    assert (record(done).finished_s or 0) < (record(still).finished_s or 0)


def test_progress_survives_a_resize_and_pauses_during_it() -> None:
    world = scenario(growing(samples=100_000), cluster=cluster(cpu=16), restart_s=50.0)
    one = record(run(world, "config-manager"))
    (grown_s,) = [at for at, ps, workers, _ in one.sizes if (ps, workers) == (2, 4)]
    before = (grown_s - 50.0) * 100.0
    assert one.finished_s == pytest.approx(grown_s + 50.0 + (100_000 - before) / 360.0)


def test_tasks_displaced_by_a_tenant_are_replaced() -> None:
    tenant = Tenant(node="node-1", cpu=8.0, from_s=50.0, to_s=60.0)
    done = run(scenario(work(), cluster=cluster(2, tenants=(tenant,))))
    one = record(done)
    assert one.is_completed and one.resizes == 1
    assert one.finished_s == pytest.approx(10.0 + 100.0 + one.paused_s)
    assert 10.0 <= one.paused_s <= 12.0


def test_a_job_with_a_displaced_task_waits_until_the_tenant_leaves() -> None:
    tenant = Tenant(node="node", cpu=8.0, from_s=50.0, to_s=500.0)
    one = record(run(scenario(work(), cluster=cluster(1, tenants=(tenant,)))))
    assert one.is_completed and one.paused_s == pytest.approx(460.0)


def test_a_task_lost_during_a_hand_over_is_replaced_by_a_later_generation() -> None:
    tenant = Tenant(node="node-1", cpu=8.0, from_s=5.0, to_s=6.0)
    one = record(run(scenario(work(), cluster=cluster(2, tenants=(tenant,)))))
    assert one.is_completed and one.started_s is not None and 15.0 <= one.started_s <= 17.0


def test_the_job_of_higher_priority_goes_first() -> None:
    jobs = [
        work(name, priority=priority, workers=span(4, least=4))
        for name, priority in (("low", 0), ("high", 5))
    ]
    done = run(scenario(*jobs, cluster=cluster(cpu=6)))
    assert (record(done, "high").finished_s or 0) < (record(done, "low").finished_s or 0)


def test_devices_without_ps() -> None:
    ring = work(
        model="ring", ps=span(0, least=0), workers=span(1, most=4), worker_cpu=0.0, worker_gpu=1
    )
    world = scenario(ring, cluster=cluster(2, cpu=0, gpu=2))
    assert sizes(run(world, "config-manager"))[-2:] == [(0, 4), (0, 0)]


def test_cores_move_to_the_learning_job_without_a_pause() -> None:
    shape = {"ps": span(0, least=0), "model": "ring", "worker_cpu": 8.0}
    jobs = [
        work("flat", samples=50_000, **shape),
        work("late", samples=5_000, submitted_s=100.0, **shape),
    ]
    losses = {
        "ring": Curve([(0.0, 5.0), (9_000.0, 0.1)])
    }  # the first loss has fallen most of the way when the second job comes
    worlds = scenario(*jobs, cluster=cluster(cpu=8), report_s=1.0, losses=losses)
    one, other = run(worlds, "flowcon"), run(worlds, "static")
    assert (record(one, "late").finished_s or 0) < (record(other, "late").finished_s or 0) / 2
    assert [(r.resizes, r.paused_s, r.is_completed) for r in one.records] == [(0, 0.0, True)] * 2


def test_policies_see_only_sizes_that_ran_and_losses_that_exist() -> None:
    seen: list[Any] = []

    def watching(nodes: Any, jobs: Any, now: float) -> list[Target]:
        seen.extend(jobs)
        return POLICIES["config-manager"](nodes, jobs, now)

    POLICIES["watching"] = watching
    try:
        done = run(scenario(growing(samples=50_000), noise=0.05), "watching")
    finally:
        del POLICIES["watching"]
    ran = {(ps, workers) for ps, workers in sizes(done)}
    assert {(o.ps, o.workers) for job in seen for o in job.observed} <= ran
    assert any(job.progress for job in seen) and not any(job.curve for job in seen)


# ---------------------------------------------------------------- noise and seeds


def busy(seed: int, noise: float) -> tuple[Run, Run]:
    jobs = [
        growing(f"job-{number}", submitted_s=20.0 * number, samples=5_000 + 3_000 * number)
        for number in range(6)
    ]
    world = scenario(*jobs, cluster=cluster(2), noise=noise)
    return run(world, "config-manager", 0), run(world, "config-manager", seed)


def test_a_run_is_a_function_of_the_seed() -> None:
    first, again = busy(0, noise=0.05)
    assert (
        facts(first) == facts(again)
        and first.held == again.held
        and first.decision_ms == again.decision_ms
    )
    assert timeline(first) == timeline(again)
    first, other = busy(1, noise=0.05)
    assert facts(first) != facts(other)


def test_without_noise_the_seed_does_not_matter() -> None:
    first, other = busy(1, noise=0.0)
    assert facts(first) == facts(other)


WORKS = st.lists(
    st.builds(
        dict,
        submitted_s=st.integers(0, 300).map(float),
        samples=st.integers(1, 50_000),
        ps=st.sampled_from([span(1), span(1, most=2)]),
        workers=st.sampled_from([span(1), span(2, most=4), span(4, least=2)]),
        priority=st.integers(0, 2),
    ),
    min_size=1,
    max_size=6,
)
TENANTS = st.lists(
    st.builds(
        lambda node, cpu, from_s, stay: Tenant(
            node=f"node-{node}", cpu=cpu, from_s=from_s, to_s=from_s + stay
        ),
        st.integers(1, 3),
        st.sampled_from([1.0, 2.5, 6.0]),
        st.integers(0, 400).map(float),
        st.integers(1, 300).map(float),
    ),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(
    WORKS,
    TENANTS,
    st.sampled_from(["static", "config-manager", "flowcon"]),
    st.sampled_from([0.0, 1.0, 30.0]),
)
def test_every_job_that_fits_completes_and_no_node_is_overcommitted(
    works: list[dict[str, Any]], tenants: list[Tenant], policy: str, restart_s: float
) -> None:
    """`Machines` raises an error if a node is overcommitted."""
    jobs = [work(f"job-{number}", **fields) for number, fields in enumerate(works)]
    grounds = cluster(3, cpu=6, tenants=tuple(tenants))
    done = run(scenario(*jobs, cluster=grounds, restart_s=restart_s, noise=0.1), policy)
    assert all(record.is_completed for record in done.records)
    assert done.held[-1][1].cpu == 0.0, "nothing stays behind"


# ---------------------------------------------------------------- the loop


@pytest.fixture
def restless() -> Iterator[str]:
    """Yield the name of a policy that changes the size of every job again and again."""

    def swinging(nodes: Any, jobs: Any, now: float) -> list[Target]:
        return [
            Target(
                job=j.key,
                ps=1,
                workers=1 + (j.size is not None and j.size.workers == 1),
                batch=64,
                reason="swings",
            )
            for j in jobs
        ]

    POLICIES["restless"] = swinging
    yield "restless"
    del POLICIES["restless"]


def test_a_policy_that_resizes_for_ever_does_not_run_for_ever(restless: str) -> None:
    world = scenario(work(samples=10**6, workers=span(1, most=2)), restart_s=1e4)
    done = simulate(
        world, Rules(policy=restless, cooldown_s=0.0, payback_factor=-1e9), 0, lambda: 0.0
    )
    assert done.ended_s <= simulator.patience_s(world)


@pytest.mark.parametrize("report_s", [0.1, 0.7, 1.0 / 3.0])
def test_report_intervals_that_are_not_round_do_not_stop_the_clock(report_s: float) -> None:
    done = run(scenario(work(samples=1_000), report_s=report_s))
    assert record(done).finished_s == pytest.approx(20.0)


def test_progress_callbacks_get_the_number_of_finished_jobs() -> None:
    told: list[tuple[int, float]] = []
    simulate(
        scenario(work(), work("two")),
        ELASTIC,
        0,
        lambda: 0.0,
        lambda over, now: told.append((over, now)),
    )
    assert told[-1][0] == 2 and [now for _, now in told] == sorted(now for _, now in told)


def test_every_decision_is_timed() -> None:
    done: Run = run(scenario(work()))
    assert len(done.decision_ms) > 2 and set(map(round, done.decision_ms)) == {1}


def test_a_scenario_without_jobs_has_an_empty_run() -> None:
    empty: Scenario = scenario()
    assert run(empty).records == ()


def test_a_quota_holds_and_every_job_waiting_for_it_completes() -> None:
    jobs = [growing("one"), growing("two", submitted_s=5.0), growing("free", namespace="other")]
    limits = {"default": Quota(cpu=3.0)}
    for policy in ("config-manager", "weir"):
        limited = msgspec.structs.replace(cluster(cpu=20), quotas=limits)
        done = run(scenario(*jobs, cluster=limited), policy)
        ours = [record(done, job) for job in ("one", "two")]
        times = sorted(at for one in ours for at, *_ in one.sizes)
        held = [sum(_size_at(one, at) for one in ours) for at in times]
        assert max(held) <= 3 and all(one.is_completed for one in done.records), policy
        assert max(sum(size) for size in sizes(done, "free")) > 3


def _size_at(one: JobRecord, at: float) -> int:
    """Return the number of ps and workers at a time."""
    sizes = [ps + workers for since, ps, workers, _ in one.sizes if since <= at]
    over = one.finished_s is not None and at >= one.finished_s
    return 0 if over or not sizes else sizes[-1]
