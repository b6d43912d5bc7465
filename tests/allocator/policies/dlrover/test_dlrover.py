"""Tests of the policy `dlrover`: a job starts with the final size of similar jobs.

After that it gets the plans with the largest gain for their cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.policies.contract import (
    FinishedJob,
    JobSnapshot,
    Node,
    Observed,
    Plan,
    ProgramHistory,
    Quota,
    Size,
    Target,
)
from services.allocator.policies.dlrover.model import DlroverModel, fit_dlrover_jobs
from services.allocator.policies.dlrover.policy import AS_PUBLISHED, SETTLE_S, dlrover
from services.allocator.policies.registry import POLICIES
from services.whatif.simulator.outcome import JobRecord
from services.whatif.simulator.scenario import Measured, Surface
from shared.messages import (
    JobFinished,
    ProgressReported,
    Resources,
    RoleResources,
    TaskPlan,
    TaskUsage,
)
from tests.allocator.builders import (
    AT_ONCE,
    EVEN,
    Story,
    accepted,
    node,
    request,
    resumed,
    size,
    span,
    tasks,
)
from tests.whatif.simulator.worlds import cluster, growing, scenario, work
from tests.whatif.simulator.worlds import run as simulated

BATCH, LONG = 32, 10_000_000
NOW = 10 * SETTLE_S
Speed = Callable[[int, int], float]


def one_node(free_cpu: float) -> list[Node]:
    return [Node("n", Resources(cpu=free_cpu, memory_gib=1000), Resources(cpu=64, memory_gib=1000))]


ROOMY = one_node(60)


def computes(ps: int, workers: int) -> float:
    """Return the speed of a compute-bound, asynchronous job."""
    return BATCH * workers / (0.9 + 0.1 * workers / ps)


def transfers(ps: int, workers: int) -> float:
    """Return the speed of a transfer-bound job: one worker per ps keeps the ps busy."""
    return BATCH * workers / (0.05 + 0.95 * workers / ps)


def asked(name: str = "mnist", **fields: Any) -> Any:
    return request(
        name,
        **({"ps": span(1, most=8), "workers": span(1, most=12), "batch": span(BATCH)} | fields),
    )


def running(
    speed: Speed, *sizes: tuple[int, int], samples: int = 0, name: str = "mnist", **fields: Any
) -> JobSnapshot:
    """Return a job that has run at these sizes and has the last of them."""
    ps, workers = sizes[-1]
    roles = ["chief", *["ps"] * ps, *["worker"] * workers]
    tasks = [
        TaskPlan(role=role, index=n, serial=n, node="n", resources=getattr(EVEN, role))  # type: ignore[arg-type]
        for n, role in enumerate(roles)
    ]
    seen = [Observed(p, w, BATCH, speed(p, w), 1.0, 1.0) for p, w in sizes]
    done = ProgressReported(
        job=name,
        uid=1,
        step=1,
        epoch=0,
        samples=samples,
        total_samples=LONG,
        samples_per_second=speed(ps, workers),
    )
    job = JobSnapshot(
        key=f"default.{name}",
        request=asked(name),
        sizes=EVEN,
        submitted_s=0.0,
        size=Size(ps, workers),
        batch=BATCH,
        tasks=tuple(tasks),
        progress=done,
        observed=tuple(seen),
        tried=tuple(seen),
        pause_s=1.0,
    )
    return replace(job, **fields)


def only(wants: list[Target]) -> Target:
    (want,) = wants
    return want


def waiting(**fields: Any) -> JobSnapshot:
    return JobSnapshot(key="default.mnist", request=asked(**fields), sizes=EVEN, submitted_s=0.0)


# ---------------------------------------------------------------- start


def past(ps: int, workers: int, finished_s: float = 0.0, name: str = "mnist") -> FinishedJob:
    plan = Plan(ps, workers, 2.0, 3.0)
    return FinishedJob(
        request=asked(name), plan=plan, ps_gib=8.0, worker_gib=4.0, finished_s=finished_s
    )


def after(*past: FinishedJob) -> JobSnapshot:
    """Return a waiting job with the history of these finished jobs."""
    return replace(waiting(), history=ProgramHistory(past=past))


def test_the_first_job_of_a_program_starts_at_the_requested_size():
    assert only(dlrover(ROOMY, [waiting()], 0.0)).size == Size(1, 1)


def test_a_job_starts_at_the_final_size_of_similar_jobs():
    want = only(dlrover(ROOMY, [after(past(4, 8), past(4, 8, finished_s=5.0))], 0.0, AS_PUBLISHED))
    assert want.size == Size(4, 8) and want.sizes is not None
    assert (want.sizes.ps.cpu, want.sizes.worker.cpu) == (2.0, 3.0)
    assert want.sizes.ps.memory_gib >= 8.0 / 4 and want.sizes.worker.memory_gib >= 4.0


def test_a_restarted_job_does_not_get_less_memory():
    """The job may have run out of the memory that similar jobs used."""
    raised = replace(
        EVEN, ps=Resources(cpu=1, memory_gib=50), worker=Resources(cpu=1, memory_gib=30)
    )
    again = replace(after(past(4, 8)), sizes=raised, progress=running(computes, (1, 1)).progress)
    want = only(dlrover(ROOMY, [again], 0.0, AS_PUBLISHED))
    assert want.sizes is not None and (want.sizes.ps.memory_gib, want.sizes.worker.memory_gib) == (
        50,
        30,
    )


def test_a_warm_start_stays_within_the_bounds():
    assert only(dlrover(ROOMY, [after(past(40, 80))], 0.0)).size == Size(8, 12)


# ---------------------------------------------------------------- running jobs


def test_compute_bound_jobs_get_workers_and_transfer_bound_jobs_get_ps_first():
    quick = only(dlrover(ROOMY, [running(computes, (1, 1), (1, 2), (2, 2))], NOW))
    slow = only(dlrover(ROOMY, [running(transfers, (1, 1), (1, 2), (2, 2))], NOW))
    assert quick.workers > 2 and quick.workers > quick.ps
    assert slow.ps > slow.workers


def test_a_new_size_is_observed_before_a_change():
    fresh = running(computes, (1, 1), since_s=NOW - SETTLE_S / 2)
    assert only(dlrover(ROOMY, [fresh], NOW)).size == Size(1, 1)
    assert only(dlrover(ROOMY, [replace(fresh, since_s=0.0)], NOW)).size != Size(1, 1)


def test_a_nearly_finished_job_is_not_resized():
    late = running(computes, (1, 1), samples=LONG - 300, pause_s=30.0)
    assert only(dlrover(ROOMY, [late], NOW)).size == Size(1, 1)


def test_the_job_of_higher_priority_gets_the_capacity():
    tight = one_node(3)
    jobs = [running(computes, (1, 1), name=name) for name in ("one", "two")]
    jobs = [
        replace(job, request=replace(job.request, priority=p))
        for job, p in zip(jobs, (0, 3), strict=True)
    ]
    one, two = dlrover(tight, jobs, NOW)
    assert two.ps + two.workers > one.ps + one.workers


def test_capacity_is_left_for_a_waiting_job():
    tight = one_node(4)
    alone = only(dlrover(tight, [running(computes, (1, 1))], NOW))
    other = replace(waiting(), key="default.other")
    beside = next(
        w for w in dlrover(tight, [running(computes, (1, 1)), other], NOW) if w.job != other.key
    )
    assert beside.ps + beside.workers < alone.ps + alone.workers


def test_plans_change_cores_unless_sizing_is_by_number():
    job = running(computes, (1, 1), (2, 4))
    free, kept = only(dlrover(ROOMY, [job], NOW, AS_PUBLISHED)), only(dlrover(ROOMY, [job], NOW))
    assert free.sizes is not None and free.sizes.worker.cpu > EVEN.worker.cpu
    assert kept.sizes is None and kept.workers > 4


def test_resources_are_chosen_only_if_the_request_left_them_open():
    job = running(computes, (1, 1), (2, 4))
    open_ = replace(job, request=replace(job.request, resources=None))
    (given,), (free,) = dlrover(ROOMY, [job], NOW), dlrover(ROOMY, [open_], NOW)
    assert given.sizes is None and free.sizes is not None
    first = only(dlrover(ROOMY, [replace(after(past(4, 8)), request=open_.request)], 0.0))
    assert first.size == Size(4, 8) and first.sizes is not None and first.sizes.worker.cpu == 3.0
    assert only(dlrover(ROOMY, [after(past(4, 8))], 0.0)).sizes is None


def test_make_before_break_needs_memory_for_two_generations():
    twice, once = after(past(4, 8)), after(past(4, 8))
    once = replace(once, request=replace(once.request, handover="restart"))
    gib = [
        only(dlrover(ROOMY, [job], 0.0, AS_PUBLISHED)).sizes.ps.memory_gib for job in (twice, once)
    ]  # type: ignore[union-attr]
    assert gib[0] == pytest.approx(2 * gib[1], rel=0.05)


def test_no_plan_exceeds_the_cores_of_its_nodes():
    """Half a core is free beside the job's seven tasks. No pod can move to the other, free node."""
    job = running(computes, (1, 1), (2, 4))
    job = replace(job, request=replace(job.request, resources=None))
    elsewhere = Node("m", Resources(cpu=64, memory_gib=1000), Resources(cpu=64, memory_gib=1000))
    want = only(dlrover([*one_node(0.5), elsewhere], [job], NOW))
    sizes = want.sizes or EVEN
    assert max(sizes.ps.cpu, sizes.worker.cpu) <= 1.0 + 0.5 / 7 and want.workers > 4


def test_no_plan_exceeds_the_remaining_quota():
    job, other = running(computes, (1, 1), (2, 4)), running(computes, (1, 1), name="other")
    both = [replace(each, quota=Quota(cpu=12)) for each in (job, other)]
    mine, theirs = dlrover(ROOMY, both, NOW)
    assert mine.ps + mine.workers <= 12 - 3 - 1  # three tasks of the other job, and its own chief
    assert theirs.ps + theirs.workers <= 12 - 7 - 1


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("resources", [EVEN, None])
def test_stored_models_give_the_same_decisions(
    resources: RoleResources | None,
) -> None:
    jobs = [
        running(computes, (1, 1), (1, 2), (2, 2)),
        running(transfers, (1, 1), (2, 4), name="other"),
        replace(after(past(4, 8)), key="default.first"),
    ]
    jobs = [replace(job, request=replace(job.request, resources=resources)) for job in jobs]
    models = [
        msgspec.json.decode(msgspec.json.encode(model), type=DlroverModel)
        for model in fit_dlrover_jobs(jobs)
    ]
    assert models == fit_dlrover_jobs(jobs)
    fitted = [replace(job, model=model) for job, model in zip(jobs, models, strict=True)]
    for nodes in (ROOMY, one_node(0.3), one_node(3)):
        assert dlrover(nodes, fitted, NOW) == dlrover(nodes, jobs, NOW)
        assert dlrover(nodes, fitted, NOW, AS_PUBLISHED) == dlrover(nodes, jobs, NOW, AS_PUBLISHED)


# ---------------------------------------------------------------- exceptions


def test_all_reduce_jobs_have_no_dlrover_model():
    waits = waiting(ps=span(0, least=0))
    runs = replace(running(computes, (1, 2)), request=waits.request, size=Size(0, 2))
    assert dlrover(ROOMY, [runs], NOW) == []
    assert only(dlrover(ROOMY, [waits], NOW)).size == Size(0, 1)


def test_a_job_with_a_decision_in_flight_is_not_changed():
    assert dlrover(ROOMY, [running(computes, (1, 1), busy=True)], NOW) == []


@settings(max_examples=60, deadline=None)
@example([(1, 1)], [2.6e-304] * 6, 30.0, 10.0)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 12)), min_size=1, max_size=6),
    st.lists(
        st.floats(allow_nan=True, allow_infinity=True) | st.floats(1, 1000), min_size=6, max_size=6
    ),
    st.sampled_from([None, 0.0, 30.0]),
    st.floats(0, 20),
)
def test_sizes_stay_within_bounds_for_any_reports(sizes, speeds, pause_s, cpu):
    job = running(computes, *sizes, pause_s=pause_s)
    told = tuple(replace(o, samples_per_second=v) for o, v in zip(job.tried, speeds, strict=False))
    want = only(dlrover(one_node(cpu), [replace(job, tried=told)], NOW))
    assert want.reason and 1 <= want.ps <= 8 and 1 <= want.workers <= 12 and want.batch == BATCH


# ---------------------------------------------------------------- in the simulator


def trained(policy: str, speed: Speed) -> JobRecord:
    surface = Surface(Measured(p, w, BATCH, speed(p, w)) for p in range(1, 9) for w in range(1, 13))
    one = growing(
        model="net",
        samples=200_000,
        batch=span(BATCH),
        ps=span(1, most=8),
        workers=span(1, most=12),
    )
    (record,) = simulated(
        scenario(one, surfaces={"net": surface}, cluster=cluster(cpu=24), noise=0.02), policy
    ).records
    return record


@pytest.mark.parametrize("speed, share", [(computes, 0.3), (transfers, 0.4)])
def test_a_job_finishes_much_earlier_than_at_its_first_size(speed, share):
    before, after = trained("static", speed), trained("dlrover", speed)
    assert before.is_completed and after.is_completed and 0 < after.resizes < 10
    assert (after.finished_s or math.inf) < share * (before.finished_s or 0.0)


def test_all_jobs_of_a_shared_cluster_finish():
    jobs = [growing(f"job-{n}", submitted_s=60.0 * n, samples=30_000) for n in range(4)]
    alone = work("ring", model="ring", ps=span(0, least=0), worker_cpu=0.0, worker_gpu=1)
    done = simulated(scenario(*jobs, alone, cluster=cluster(2, cpu=6, gpu=1)), "dlrover")
    assert "dlrover" in POLICIES and all(record.is_completed for record in done.records)


# ---------------------------------------------------------------- live, with the allocator's state


def reported(story: Story, generation: int, step: int, uid: int, name: str) -> Story:
    """Report that the ps use a third of their cores and the workers all; each task uses 0.3 GiB."""
    job = story.state.jobs[f"default.{name}"]
    tasks = job.active_decision.tasks if job.active_decision else ()
    used = tuple(
        TaskUsage(task=t.name(), cpu=t.resources.cpu / (3 if t.role == "ps" else 1), memory_gib=0.3)
        for t in tasks
    )
    said = ProgressReported(
        job=name,
        uid=uid,
        generation=generation,
        step=step,
        epoch=0,
        samples=step * 100,
        total_samples=10**7,
        samples_per_second=50.0,
        usage=used,
    )
    return story.hear(said)


def trained_live() -> Story:
    """Return a job with open resources that reported four times and then ran for `SETTLE_S`."""
    story = Story(replace(AT_ONCE, policy="dlrover"))
    first = request(
        resources=RoleResources(), ps=span(1, most=4), workers=span(1, most=8), handover="restart"
    )
    story.hear(node(cpu=16), accepted(first)).decided()
    story.hear(resumed(1))
    for step in range(1, 5):
        reported(story, 1, step, 1, "mnist")
    story.now += SETTLE_S
    return story


def test_a_job_with_open_resources_is_sized_in_all_four_numbers() -> None:
    story = trained_live()
    grown = story.decided()
    before = RoleResources()
    assert size(grown)[1] > 1 and "examples a second" in grown.reason
    ps, worker = (tasks(grown, role)[0].resources for role in ("ps", "worker"))
    assert (ps.cpu, worker.cpu) != (before.ps.cpu, before.worker.cpu)
    assert worker.memory_gib < before.worker.memory_gib


def test_the_next_job_of_a_program_starts_at_its_final_size() -> None:
    story = trained_live()
    grown = story.decided()
    story.hear(resumed(2), JobFinished(job="mnist", uid=1, outcome="succeeded", finished_s=9.0))
    again = request("again", resources=None, ps=span(1, most=4), workers=span(1, most=8))
    first = story.hear(node(cpu=16), accepted(again, uid=2)).decided()
    assert first.reason == "as 1 similar job ended" and size(first) == size(grown)
    assert tasks(first, "worker")[0].resources.cpu == tasks(grown, "worker")[0].resources.cpu
