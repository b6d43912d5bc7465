"""Tests of the candidate plans of a running job, and of the measurements behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from services.allocator.models.memory_forecast import AHEAD_S
from services.allocator.policies.contract import JobSnapshot, Observed, Plan, Reading, Size
from services.allocator.policies.dlrover.bidding import Bid, plan_space
from services.allocator.policies.dlrover.candidates import (
    BOUNDLESS,
    HOT,
    Bounds,
    candidates,
    memory_due,
    memory_trend,
    needed_bounds,
    role_resources,
    tasks_of,
)
from services.allocator.policies.dlrover.iteration import fit_throughputs
from services.allocator.policies.dlrover.model import case_of, timed_of
from shared.messages import ProgressReported, Resources, Role, TaskPlan, TaskUsage
from tests.allocator.builders import EVEN, request, span

BATCH, SPEED, LONG = 32, 100.0, 10_000_000


def reading(samples: int = 0, ps: int = 2, **fields: Any) -> Reading:
    usual: dict[str, Any] = {
        "at_s": 0.0,
        "loss": None,
        "samples_per_second": SPEED,
        "workers": 4,
        "batch": BATCH,
    }
    return Reading(samples=samples, ps=ps, **(usual | fields))


def running(*recent: Reading, used: tuple[float, ...] = (), **fields: Any) -> JobSnapshot:
    """Return a running job with two ps of 2 cores and four workers of 4 cores."""
    has: dict[Role, Resources] = {
        "ps": Resources(cpu=2, memory_gib=8),
        "worker": Resources(cpu=4, memory_gib=2),
    }
    roles: list[Role] = ["ps"] * 2 + ["worker"] * 4
    told = ProgressReported(
        job="mnist",
        uid=1,
        step=1,
        epoch=0,
        samples=0,
        total_samples=LONG,
        samples_per_second=SPEED,
        usage=tuple(
            TaskUsage(task=f"ps-{i}", cpu=cpu, memory_gib=1.0) for i, cpu in enumerate(used)
        ),
    )
    job = JobSnapshot(
        key="default.mnist",
        request=request(ps=span(1, most=8), workers=span(1, most=16), batch=span(BATCH)),
        sizes=EVEN,
        submitted_s=0.0,
        size=Size(2, 4),
        batch=BATCH,
        tasks=tuple(
            TaskPlan(role=r, index=i, serial=i, node="n", resources=has[r])
            for i, r in enumerate(roles)
        ),
        progress=told,
        tried=(Observed(2, 4, BATCH, SPEED, 2.0, 4.0),),
        recent=recent,
        pause_s=1.0,
    )
    return replace(job, **fields)


def bid_of(job: JobSnapshot, bounds: Bounds = BOUNDLESS, counts_only: bool = False) -> Bid:
    tasks, (model,) = tasks_of(job), fit_throughputs([case_of(job)])
    reach = plan_space(tasks.plan, job.least, job.most, counts_only)
    return candidates(job, tasks, model, reach, bounds).bid


def due(job: JobSnapshot, plan: Plan, role: Role, speed: float) -> float | None:
    return memory_due(job, memory_trend(job, role), plan, role, speed)


# ---------------------------------------------------------------- candidates


def test_more_expensive_candidates_are_faster():
    bid = bid_of(running())
    assert len(bid.plans) > 3 and (np.diff(bid.cost) > 0).all() and (np.diff(bid.speed) > 0).all()
    assert bid.cpu == pytest.approx(
        bid.plans[:, 0] * bid.plans[:, 2] + bid.plans[:, 1] * bid.plans[:, 3]
    ) and bid.now[0] == pytest.approx(SPEED, rel=0.05)


def test_unused_cores_are_returned():
    """Half of the workers' cores are idle: every candidate has fewer cores for its speed."""
    job, used = running(reading(ps_cpu=3.6, worker_cpu=8.0)), 3.6 + 8.0
    uses = used / SPEED * (bid := bid_of(job)).speed / bid.cpu
    assert uses.min() > 1.15 * used / (2 * 2 + 4 * 4)


def test_cpu_usage_is_ignored_for_a_job_without_ps():
    job = running(reading(ps=0, worker_cpu=3.0))
    alone = replace(
        job, size=Size(0, 4), tasks=tuple(task for task in job.tasks if task.role != "ps")
    )
    assert case_of(alone).shares is None


def test_a_ps_keeps_more_cores_than_the_busiest_one_uses():
    even = bid_of(running(reading(ps_cpu=2.0, worker_cpu=15.0), used=(1.0, 1.0)))
    uneven = bid_of(running(reading(ps_cpu=2.0, worker_cpu=15.0), used=(1.8, 0.2)))

    def on_ps(bid: Any) -> Any:
        return bid.plans[:, 0] * bid.plans[:, 2] / bid.speed

    assert on_ps(even).min() >= 0.99 * HOT * 2.0 / SPEED
    assert on_ps(uneven).min() >= 0.99 * HOT * 1.8 * 2.0 / SPEED


def test_only_binding_bounds_change_the_candidates():
    job = running(reading(ps_cpu=3.6, worker_cpu=15.0))
    tasks, (model,) = tasks_of(job), fit_throughputs([case_of(job)])
    found = candidates(job, tasks, model, plan_space(tasks.plan, job.least, job.most))
    needs = needed_bounds(tasks, found)
    assert bid_of(job, needs).plans.tolist() == found.bid.plans.tolist()
    narrow = bid_of(job, needs._replace(worker_cpu=needs.worker_cpu / 2)).plans
    assert (
        narrow[:, 3].max() <= needs.worker_cpu / 2 and narrow.tolist() != found.bid.plans.tolist()
    )


def test_sizing_by_numbers_keeps_the_cores_of_a_task():
    bid = bid_of(running(), counts_only=True)
    assert set(map(tuple, bid.plans[:, 2:].tolist())) == {(2.0, 4.0)}


def test_a_nearly_finished_job_has_a_larger_weight_and_pause_cost():
    early = running()
    assert early.progress
    late = replace(early, progress=replace(early.progress, samples=LONG - 1000), pause_s=30.0)
    one, other = bid_of(early), bid_of(late)
    assert other.weight > one.weight and other.speed.max() < one.speed.max()


# ---------------------------------------------------------------- measurements


def test_speeds_become_iteration_times_and_zero_is_no_speed():
    job = running(tried=(Observed(2, 4, BATCH, SPEED), Observed(1, 1, BATCH, 0.0)))
    (timed,) = timed_of(job)
    assert timed.plan == Plan(2, 4, 2.0, 4.0) and timed.step_s == pytest.approx(4 * BATCH / SPEED)
    assert role_resources(running(tasks=()), "ps") == Resources()


def test_workers_that_share_a_batch_compute_a_part_of_it():
    """With a global batch the time for the part of each worker is measured."""
    job = running(tried=(Observed(2, 4, BATCH, SPEED),))
    together = replace(job, request=replace(job.request, consistency="global-batch"))
    (timed,) = timed_of(together)
    assert timed.batch == round(BATCH / 4)
    assert timed.step_s == pytest.approx(4 * timed.batch / SPEED)
    assert bid_of(together).now == pytest.approx(bid_of(job).now), "the measured speed"


def test_memory_on_few_ps_predicts_that_on_many():
    """All ps together grow by 1 GiB every 1,000 examples, from 8 GiB.

    The number of ps changed meanwhile. A task needs memory for two generations.
    """
    grown = [
        reading(1000 * i, ps=p, ps_gib=(8.0 + i) / p, worker_gib=1.5)
        for i, p in enumerate([2, 2, 2, 2, 4, 4])
    ]
    ahead = SPEED * AHEAD_S / 1000
    job = running(*grown)
    assert due(job, Plan(2, 4, 2, 4), "ps", SPEED) == pytest.approx(13 + ahead)
    assert due(job, Plan(8, 4, 2, 4), "ps", 2 * SPEED) == pytest.approx(2 * (13 + 2 * ahead) / 8)
    assert due(job, Plan(8, 4, 2, 4), "worker", SPEED) == 2 * 1.5


def test_memory_is_predicted_only_up_to_the_end_and_from_measurements():
    grown = [reading(1000 * i, ps_gib=4.0 + 0.5 * i) for i in range(6)]
    job = running(*grown)
    assert job.progress
    ends = replace(job, progress=replace(job.progress, samples=LONG - 2000))
    assert due(ends, Plan(2, 4, 2, 4), "ps", SPEED) == pytest.approx(13 + 2)
    assert due(running(), Plan(2, 4, 2, 4), "ps", SPEED) is None
