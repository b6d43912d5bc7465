"""Tests of the policy `dike`: a job is sized by its model, then by probing, and is then kept.

Offers are the sizes of a job that the nodes can hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.models.fitting import Prior, fit_model
from services.allocator.placement.placers import place
from services.allocator.placement.room import Room
from services.allocator.policies.contract import JobSnapshot, Node, Observed, Reading, Size, Target
from services.allocator.policies.dike import (
    PROBES,
    DikeModel,
    FreeNodes,
    dike,
    fit_dike_jobs,
    growing_steps,
    offered_sizes,
    size_by_kind,
)
from services.whatif.simulator.outcome import JobRecord
from services.whatif.simulator.scenario import Measured, Surface
from shared.messages import ModelProfile, ProgressReported, Resources, RoleResources, TaskPlan
from tests.allocator.builders import EVEN, request, span
from tests.whatif.simulator.worlds import cluster, scenario, work
from tests.whatif.simulator.worlds import run as simulated

LONG, BATCH = 10_000_000, 32
Speed = Callable[[Size], float]
ROOMY = [Node("n", Resources(cpu=64, memory_gib=1000))]


def computes(size: Size) -> float:
    """Return the speed of an asynchronous job whose workers hardly affect each other."""
    return BATCH * size.workers / (1.0 + 0.02 * size.workers / size.ps)


def transfers(size: Size) -> float:
    """Return the speed of a synchronous job that is bound by the links of its ps."""
    return BATCH / (0.3 / size.workers + 0.1 + 0.4 * size.workers / size.ps + 0.01 * size.ps)


def asked(ps: int = 8, workers: int = 12) -> Any:
    return request(ps=span(1, most=ps), workers=span(1, most=workers), batch=span(BATCH))


def progress(
    samples: int = 0, total: int = LONG, profile: ModelProfile | None = None
) -> ProgressReported:
    return ProgressReported(
        job="mnist",
        uid=1,
        step=1,
        epoch=0,
        samples=samples,
        total_samples=total,
        samples_per_second=1.0,
        profile=profile,
    )


def running(size: Size, *observed: Observed, **fields: Any) -> JobSnapshot:
    seen = {"progress": progress(), "pause_s": 1.0} | fields
    return JobSnapshot(
        key="default.mnist",
        request=asked(),
        sizes=EVEN,
        submitted_s=0.0,
        size=size,
        batch=BATCH,
        observed=observed,
        **seen,
    )


def seen_at(size: Size, speed: float) -> Observed:
    return Observed(size.ps, size.workers, BATCH, speed)


def only(wants: list[Target]) -> Target:
    (want,) = wants
    return want


class Run:
    """A job that takes the size of each target and reports its speed."""

    def __init__(
        self, speed: Speed, cluster: list[Node] = ROOMY, noise: float = 0.03, seed: int = 0
    ) -> None:
        self.speed, self.cluster, self.noise = speed, cluster, noise
        self.chance = np.random.default_rng(seed)
        self.job = running(Size(1, 1))
        self.sizes: list[Size] = []

    def reports(self, times: int, **fields: Any) -> Run:
        for _ in range(times):
            self._report()
            self.job = replace(self.job, **fields)
            want = only(dike(self.cluster, [self.job], 0.0))
            self.job = replace(self.job, size=want.size)
            self.sizes.append(want.size)
        return self

    def _report(self) -> None:
        size = self.job.size
        assert size is not None
        now = self.speed(size) * (1.0 + self.noise * float(self.chance.standard_normal()))
        before = [
            o.samples_per_second
            for o in self.job.observed
            if (o.ps, o.workers) == (size.ps, size.workers)
        ]
        others = tuple(o for o in self.job.observed if (o.ps, o.workers) != (size.ps, size.workers))
        mean = (before[0] + now) / 2 if before else now
        reading = Reading(
            at_s=0.0,
            samples=0,
            loss=None,
            samples_per_second=now,
            ps=size.ps,
            workers=size.workers,
            batch=BATCH,
        )
        self.job = replace(
            self.job, observed=(*others, seen_at(size, mean)), recent=(*self.job.recent, reading)
        )


# ---------------------------------------------------------------- from the first size to the last


@pytest.mark.parametrize("speed", [computes, transfers])
def test_dike_finds_nearly_the_best_size_and_stays_there(speed):
    best = max(speed(Size(p, w)) for p in range(1, 9) for w in range(1, 13))
    for seed in range(5):
        run = Run(speed, seed=seed).reports(30)
        assert len(set(run.sizes[:PROBES])) > 1
        assert speed(run.sizes[-1]) > 0.93 * best
        assert len(set(run.sizes[-12:])) == 1


def test_dike_stays_within_its_number_of_probes():
    run = Run(transfers, noise=0.0).reports(40)
    assert len({Size(1, 1), *run.sizes}) <= PROBES


def test_a_short_job_is_not_probed():
    short = {"progress": progress(total=2_000), "pause_s": 30.0}
    run = Run(computes).reports(5, **short)
    assert set(run.sizes) == {Size(1, 1)}


def test_a_probes_reason_has_its_expected_gain():
    want = only(dike(ROOMY, [running(Size(1, 1), seen_at(Size(1, 1), 50.0))], 0.0))
    assert want.size != Size(1, 1)
    assert want.reason.startswith("probe 2: expected to be ")
    assert [(a.ps, a.workers) for a in want.alternatives] == [(1, 1)]


def test_a_larger_offer_is_used_after_all_probes_if_it_is_surely_better():
    small, large = (
        [Node("n", Resources(cpu=6, memory_gib=99))],
        [Node("n", Resources(cpu=64, memory_gib=999))],
    )
    run = Run(computes, small, noise=0.0).reports(20)
    before = run.sizes[-1]
    run.cluster = large
    after = run.reports(20).sizes[-1]
    assert computes(after) > 1.5 * computes(before)


# ---------------------------------------------------------------- stored models


def test_a_stored_model_gives_the_same_size():
    jobs = [
        running(Size(1, 1)),
        running(Size(1, 1), seen_at(Size(1, 1), 50.0)),
        running(Size(2, 3), seen_at(Size(1, 1), 50.0), seen_at(Size(2, 3), 90.0)),
    ]
    jobs = [replace(job, key=f"default.{n}") for n, job in enumerate(jobs)]
    models = fit_dike_jobs(jobs)
    carrying = [replace(job, model=model) for job, model in zip(jobs, models, strict=True)]
    assert dike(ROOMY, [carrying[0], jobs[1], carrying[2]], 0.0) == dike(ROOMY, jobs, 0.0)


def test_without_a_plausible_speed_a_job_has_no_model():
    other_batch = Observed(1, 1, 2 * BATCH, 50.0)
    none, some = fit_dike_jobs(
        [running(Size(1, 1), other_batch), running(Size(1, 1), seen_at(Size(1, 1), 50.0))]
    )
    assert none == DikeModel() and some.fit is not None


# ---------------------------------------------------------------- waiting and exceptions


def test_a_waiting_job_starts_at_the_requested_size():
    waiting = JobSnapshot(key="default.mnist", request=asked(), sizes=EVEN, submitted_s=0.0)
    assert only(dike(ROOMY, [waiting], 0.0)).size == Size(1, 1)


def test_a_size_without_a_report_is_awaited():
    want = only(dike(ROOMY, [running(Size(2, 3), seen_at(Size(1, 1), 50.0))], 0.0))
    assert want.size == Size(2, 3) and "until its speed is measured" in want.reason


def test_a_job_with_a_decision_in_flight_is_not_changed():
    assert dike(ROOMY, [running(Size(1, 1), seen_at(Size(1, 1), 50.0), busy=True)], 0.0) == []


def test_a_waiting_job_precedes_a_growing_one():
    tight = [Node("n", Resources(cpu=4, memory_gib=99))]
    waiting = JobSnapshot(key="default.second", request=asked(), sizes=EVEN, submitted_s=1.0)
    wants = dike(tight, [running(Size(1, 1), seen_at(Size(1, 1), 50.0)), waiting], 2.0)
    grown = next(w for w in wants if w.job == "default.mnist")
    assert grown.ps + grown.workers <= 3


# ---------------------------------------------------------------- kinds of models


OFFER = [Size(p, w) for p in range(1, 7) for w in range(1, 9)]


def fitted_to(*shares: float) -> Any:
    return fit_model([seen_at(Size(1, 1), BATCH)], Prior(shares=(*shares, 0.0)))


def test_a_compute_bound_job_gets_all_workers_and_few_ps():
    size = size_by_kind(
        "compute-bound", fitted_to(0.9, 0.02, 0.01, 0.05, 0.0, 0.0, 0.02), OFFER, BATCH
    )
    assert (size is not None and size.workers == 8 and size.ps < 6) or size == Size(6, 8)


def test_a_transfer_bound_job_gets_a_ps_for_each_worker():
    size = size_by_kind(
        "communication-bound", fitted_to(0.7, 0.0, 0.0, 0.28, 0.01, 0.01, 0.0), OFFER, BATCH
    )
    assert size is not None and size.ps == size.workers == 2


def test_a_purely_transfer_bound_job_gets_one_worker_and_all_ps():
    size = size_by_kind(
        "communication-bound", fitted_to(0.01, 0.0, 0.0, 0.97, 0.02, 0.0, 0.0), OFFER, BATCH
    )
    assert size == Size(6, 1)


def test_the_second_size_follows_the_profile():
    """A billion parameters at a batch of 32: the job is transfer-bound."""
    heavy = ModelProfile(parameters=10**9, bytes=4 * 10**9, variables=40)
    job = running(Size(1, 1), seen_at(Size(1, 1), 5.0), progress=progress(profile=heavy))
    want = only(dike(ROOMY, [replace(job, batch=BATCH)], 0.0))
    assert want.ps >= want.workers


# ---------------------------------------------------------------- random reports


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(0, 20), max_size=4),
    st.builds(Size, st.integers(1, 8), st.integers(1, 12)),
    st.lists(
        st.builds(
            Observed,
            st.integers(0, 8),
            st.integers(0, 12),
            st.just(BATCH),
            st.floats(allow_nan=True, allow_infinity=True) | st.floats(1, 1000),
        ),
        max_size=10,
    ),
    st.sampled_from([None, 0.0, 5.0]),
    st.integers(0, 2),
)
def test_the_size_stays_within_its_bounds_and_the_nodes(cpus, size, observed, pause_s, total):
    cluster = [Node(f"n{i}", Resources(cpu=c, memory_gib=100)) for i, c in enumerate(cpus)]
    task = TaskPlan(role="worker", index=0, serial=0, node="gone", resources=EVEN.worker)
    job = running(
        size, *observed, pause_s=pause_s, tasks=(task,), progress=progress(total=total * LONG)
    )
    want = only(dike(cluster, [job], 0.0))
    assert want.reason and 1 <= want.ps <= 8 and 1 <= want.workers <= 12
    if want.size != size:
        assert want.ps + want.workers <= sum(int(c + 1e-6) for c in cpus)


# ---------------------------------------------------------------- in the simulator


def trained(policy: str, samples: int) -> JobRecord:
    """Simulate a job with unknown speeds on one large node; each change stops it for 10 s."""
    speeds = Surface(
        Measured(p, w, BATCH, transfers(Size(p, w))) for p in range(1, 9) for w in range(1, 13)
    )
    one = work(
        model="transfers",
        samples=samples,
        batch=span(BATCH),
        ps=span(1, most=8),
        workers=span(1, most=12),
    )
    world = scenario(one, surfaces={"transfers": speeds}, cluster=cluster(cpu=24), noise=0.03)
    (record,) = simulated(world, policy).records
    return record


def test_a_long_job_is_probed_and_finishes_much_earlier():
    """With one ps and one worker it trains 32 / 0.81 = 40 samples/s.

    With eight ps and two workers, the best size, it trains 74.
    """
    before, after = trained("static", 200_000), trained("dike", 200_000)
    tried = {(ps, workers) for _, ps, workers, _ in after.sizes if workers}
    assert before.is_completed and after.is_completed and 1 < len(tried) <= PROBES
    assert (after.finished_s or math.inf) < 0.6 * (before.finished_s or 0.0)


def test_a_nearly_finished_job_keeps_its_first_size():
    record = trained("dike", 1_200)
    assert record.is_completed and record.resizes == 0


def nodes(*cpus: float, **fields: Any) -> list[Node]:
    return [Node(f"n{i}", Resources(cpu=c, memory_gib=100), **fields) for i, c in enumerate(cpus)]


def job(
    ps: int = 4, workers: int = 6, sizes: RoleResources = EVEN, tasks: tuple[TaskPlan, ...] = ()
) -> JobSnapshot:
    asked = request(ps=span(1, most=ps), workers=span(1, most=workers))
    return JobSnapshot(
        key="default.mnist", request=asked, sizes=sizes, submitted_s=0.0, tasks=tasks
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 6))
def test_exactly_the_offered_sizes_can_be_placed(cpus, ps, workers):
    cluster, asks = nodes(*cpus), job(ps, workers)
    offer = set(offered_sizes(FreeNodes(cluster), asks))
    for size in (Size(p, w) for p in range(1, ps + 1) for w in range(1, workers + 1)):
        placed = place(Room(cluster), asks.key, (), size, asks.sizes, serial=0)
        assert (placed is not None) == (size in offer)


def test_a_job_can_use_its_own_capacity_on_an_unschedulable_node():
    held = [
        TaskPlan(role=r, index=0, serial=s, node="n0", resources=EVEN.ps)
        for s, r in enumerate(("chief", "ps", "worker"))
    ]  # type: ignore[arg-type]
    assert offered_sizes(FreeNodes(nodes(0.0)), job(tasks=tuple(held))) == [Size(1, 1)]
    assert offered_sizes(FreeNodes(nodes(9.0, open=False)), job(tasks=tuple(held))) == [Size(1, 1)]


def test_ps_leave_devices_to_the_workers():
    plain = Node("plain", Resources(cpu=4, memory_gib=64))
    rich = Node("rich", Resources(cpu=2, memory_gib=64, gpu=2))
    wants = RoleResources(
        chief=Resources(), ps=EVEN.ps, worker=Resources(cpu=1, memory_gib=1, gpu=1)
    )
    assert Size(4, 2) in offered_sizes(FreeNodes([plain, rich]), job(sizes=wants))
    assert max(s.workers for s in offered_sizes(FreeNodes([plain, rich]), job(sizes=wants))) == 2


def test_nothing_is_offered_if_the_chief_does_not_fit():
    assert offered_sizes(FreeNodes([]), job()) == offered_sizes(FreeNodes(nodes(0.5)), job()) == []


def test_tasks_without_requests_fit_anywhere_if_there_is_a_node():
    nothing = RoleResources(chief=Resources(), ps=Resources(), worker=Resources())
    assert len(offered_sizes(FreeNodes(nodes(0.0)), job(sizes=nothing))) == 4 * 6
    assert offered_sizes(FreeNodes([]), job(sizes=nothing)) == []


def test_step_sizes_grow_with_the_numbers():
    assert growing_steps(1, 6) == [1, 2, 3, 4, 5, 6]
    assert growing_steps(3, 3) == [3] and growing_steps(4, 3) == []
    many = growing_steps(1, 500)
    assert many[:8] == [1, 2, 3, 4, 5, 6, 7, 8] and many[-1] == 500 and len(many) < 30
