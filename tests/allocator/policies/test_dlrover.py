"""A job starts as others like it ended, and then gets what gains most for its cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.job import Observed
from services.allocator.models.history import Past, Plan
from services.allocator.placing.placement import Node, Size
from services.allocator.policies import POLICIES
from services.allocator.policies.contract import JobSeen, Want
from services.allocator.policies.dlrover import SETTLE_S, dlrover, dlrover_counts
from services.allocator.simulator.record import Record
from services.allocator.simulator.surfaces import Measured, Surface
from shared.messages import ProgressReported, Resources, TaskPlan
from tests.allocator.builders import EVEN, request, span
from tests.allocator.simulator.worlds import cluster, growing, scenario, work
from tests.allocator.simulator.worlds import run as simulated

BATCH, LONG = 32, 10_000_000
NOW = 10 * SETTLE_S
Speed = Callable[[int, int], float]


def one_node(free_cpu: float) -> list[Node]:
    return [Node("n", Resources(cpu=free_cpu, memory_gib=1000), Resources(cpu=64, memory_gib=1000))]


ROOMY = one_node(60)


def computes(ps: int, workers: int) -> float:
    """Asynchronous: each worker goes its own way, and disturbs the others on their ps a little."""
    return BATCH * workers / (0.9 + 0.1 * workers / ps)


def transfers(ps: int, workers: int) -> float:
    """The ps are busy with one worker already."""
    return BATCH * workers / (0.05 + 0.95 * workers / ps)


def asked(name: str = "mnist", **fields: Any) -> Any:
    return request(name, **({"ps": span(1, most=8), "workers": span(1, most=12), "batch": span(BATCH)} | fields))


def running(speed: Speed, *sizes: tuple[int, int], samples: int = 0, name: str = "mnist", **fields: Any) -> JobSeen:
    """A job that has had these sizes, and has the last of them."""
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
    job = JobSeen(
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


def only(wants: list[Want]) -> Want:
    (want,) = wants
    return want


def waiting(**fields: Any) -> JobSeen:
    return JobSeen(key="default.mnist", request=asked(**fields), sizes=EVEN, submitted_s=0.0)


# ---------------------------------------------------------------- where it starts


def past(ps: int, workers: int, finished_s: float = 0.0, name: str = "mnist") -> Past:
    plan = Plan(ps, workers, 2.0, 3.0)
    return Past(request=asked(name), plan=plan, ps_gib=8.0, worker_gib=4.0, finished_s=finished_s)


def test_the_first_job_of_its_kind_starts_at_the_size_that_was_asked_for():
    assert only(dlrover_counts(ROOMY, [waiting()], 0.0)).size == Size(1, 1)


def test_a_job_starts_as_those_like_it_ended():
    want = only(dlrover(ROOMY, [waiting()], 0.0, [past(4, 8), past(4, 8, finished_s=5.0)]))
    assert want.size == Size(4, 8) and want.sizes is not None
    assert (want.sizes.ps.cpu, want.sizes.worker.cpu) == (2.0, 3.0)
    assert want.sizes.ps.memory_gib >= 8.0 / 4 and want.sizes.worker.memory_gib >= 4.0


def test_a_job_that_has_run_before_does_not_start_again_with_less_memory():
    """It may have run out of what its like once used."""
    raised = replace(EVEN, ps=Resources(cpu=1, memory_gib=50), worker=Resources(cpu=1, memory_gib=30))
    again = replace(waiting(), sizes=raised, progress=running(computes, (1, 1)).progress)
    want = only(dlrover(ROOMY, [again], 0.0, [past(4, 8)]))
    assert want.sizes is not None and (want.sizes.ps.memory_gib, want.sizes.worker.memory_gib) == (50, 30)


def test_history_does_not_lead_out_of_the_bounds():
    assert only(dlrover(ROOMY, [waiting()], 0.0, [past(40, 80)])).size == Size(8, 12)


# ---------------------------------------------------------------- how it goes on


def test_what_computes_gets_workers_and_what_transfers_gets_ps_before_workers():
    quick = only(dlrover_counts(ROOMY, [running(computes, (1, 1), (1, 2), (2, 2))], NOW))
    slow = only(dlrover_counts(ROOMY, [running(transfers, (1, 1), (1, 2), (2, 2))], NOW))
    assert quick.workers > 2 and quick.workers > quick.ps
    assert slow.ps > slow.workers


def test_a_size_is_watched_for_a_while_first():
    fresh = running(computes, (1, 1), since_s=NOW - SETTLE_S / 2)
    assert only(dlrover_counts(ROOMY, [fresh], NOW)).size == Size(1, 1)
    assert only(dlrover_counts(ROOMY, [replace(fresh, since_s=0.0)], NOW)).size != Size(1, 1)


def test_a_job_that_is_nearly_done_is_not_stopped_for_more():
    late = running(computes, (1, 1), samples=LONG - 300, pause_s=30.0)
    assert only(dlrover_counts(ROOMY, [late], NOW)).size == Size(1, 1)


def test_of_two_jobs_the_more_urgent_one_gets_the_room():
    tight = one_node(3)
    jobs = [running(computes, (1, 1), name=name) for name in ("one", "two")]
    jobs = [replace(job, request=replace(job.request, priority=p)) for job, p in zip(jobs, (0, 3), strict=True)]
    one, two = dlrover_counts(tight, jobs, NOW)
    assert two.ps + two.workers > one.ps + one.workers


def test_a_job_that_waits_is_left_room_for():
    tight = one_node(4)
    alone = only(dlrover_counts(tight, [running(computes, (1, 1))], NOW))
    other = replace(waiting(), key="default.other")
    beside = next(w for w in dlrover_counts(tight, [running(computes, (1, 1)), other], NOW) if w.job != other.key)
    assert beside.ps + beside.workers < alone.ps + alone.workers


def test_cores_are_part_of_a_plan_and_by_number_they_stay():
    job = running(computes, (1, 1), (2, 4))
    free, kept = only(dlrover(ROOMY, [job], NOW)), only(dlrover_counts(ROOMY, [job], NOW))
    assert free.sizes is not None and free.sizes.worker.cpu > EVEN.worker.cpu
    assert kept.sizes is None and kept.workers > 4


# ---------------------------------------------------------------- what it leaves alone


def test_devices_side_by_side_have_no_ps_and_no_model():
    waits = waiting(ps=span(0, least=0))
    runs = replace(running(computes, (1, 2)), request=waits.request, size=Size(0, 2))
    assert dlrover_counts(ROOMY, [runs], NOW) == []
    assert only(dlrover_counts(ROOMY, [waits], NOW)).size == Size(0, 1)


def test_a_job_with_a_decision_in_flight_is_left_alone():
    assert dlrover_counts(ROOMY, [running(computes, (1, 1), busy=True)], NOW) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 12)), min_size=1, max_size=6),
    st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.floats(1, 1000), min_size=6, max_size=6),
    st.sampled_from([None, 0.0, 30.0]),
    st.floats(0, 20),
)
def test_whatever_was_reported_the_size_stays_within_its_bounds(sizes, speeds, pause_s, cpu):
    job = running(computes, *sizes, pause_s=pause_s)
    told = tuple(replace(o, samples_per_second=v) for o, v in zip(job.tried, speeds, strict=False))
    want = only(dlrover_counts(one_node(cpu), [replace(job, tried=told)], NOW))
    assert want.reason and 1 <= want.ps <= 8 and 1 <= want.workers <= 12 and want.batch == BATCH


# ---------------------------------------------------------------- in the simulator


def trained(policy: str, speed: Speed) -> Record:
    surface = Surface(Measured(p, w, BATCH, speed(p, w)) for p in range(1, 9) for w in range(1, 13))
    one = growing(model="net", samples=200_000, batch=span(BATCH), ps=span(1, most=8), workers=span(1, most=12))
    (record,) = simulated(scenario(one, surfaces={"net": surface}, cluster=cluster(cpu=24), noise=0.02), policy).records
    return record


@pytest.mark.parametrize("speed, share", [(computes, 0.3), (transfers, 0.4)])
def test_a_job_ends_in_a_fraction_of_the_time_that_its_first_size_takes(speed, share):
    before, after = trained("static", speed), trained("dlrover", speed)
    assert before.completed and after.completed and 0 < after.resizes < 10
    assert (after.finished_s or math.inf) < share * (before.finished_s or 0.0)


def test_jobs_that_share_a_cluster_all_end():
    jobs = [growing(f"job-{n}", submitted_s=60.0 * n, samples=30_000) for n in range(4)]
    alone = work("ring", model="ring", ps=span(0, least=0), worker_cpu=0.0, worker_gpu=1)
    done = simulated(scenario(*jobs, alone, cluster=cluster(2, cpu=6, gpu=1)), "dlrover")
    assert "dlrover" in POLICIES and all(record.completed for record in done.records)
