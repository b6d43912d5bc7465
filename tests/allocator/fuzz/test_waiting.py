"""Tests of the bound on waiting, under every policy, in random worlds in which jobs keep arriving.

    due(J)     = submitted(J) + reserve_after_s, or the start of the last job before it in the
                 queue, if that is later
    start(J)  <= the end of the last job that ran at due(J), or due(J) if none did

Before J in the queue are jobs of higher priority, and jobs of its own priority that were submitted
earlier. Both times are times of decisions. The bound holds for jobs whose smallest size fits the
empty cluster.

Tenants (the pods of other users) take one node for some time, evict the tasks on it, and leave one
by one. No job is due before they have left. A job that stands still because of them is due as if it
had been submitted when they came.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from services.whatif.simulator.outcome import JobRecord, Run
from services.whatif.simulator.run import simulate
from services.whatif.simulator.scenario import Cluster, Machine, Scenario, Tenant, Work
from tests.whatif.simulator.worlds import scenario, span, work

EXAMPLES = max(4, int(os.environ.get("FUZZ_DECISIONS", "20000")) // 2500)
AFTER_S, SLACK_S = 120.0, 1.0
RESTART_S = 1.0
STREAM, EVERY_S = 40, 11.0
"""The number of small jobs, and the time between two of them, in seconds."""
MACHINES = st.lists(st.sampled_from([4.0, 6.0, 8.0]), min_size=1, max_size=3)
TASKS = st.tuples(
    st.sampled_from([1, 2]), st.sampled_from([1, 2, 3]), st.sampled_from([1.0, 1.5, 2.0, 4.0])
)
GUESTS = st.tuples(st.integers(0, 2), st.integers(1, 300), st.integers(1, 200))
"""The node of the tenants, when they come, and how long the first one stays, in seconds."""
JOB = st.tuples(
    TASKS,
    st.booleans(),
    st.sampled_from([0, 0, 0, 3]),
    st.integers(0, 300),
    st.integers(1_000, 20_000),
)


def stream_job(number: int) -> Work:
    return work(f"small-{number}", samples=2_000 + 700 * (number % 5), submitted_s=number * EVERY_S)


def drawn_job(number: int, shape: Any) -> Work:
    (ps, workers, cores), elastic, priority, at_s, samples = shape
    spans = {"ps": span(ps, least=ps), "workers": span(workers, least=workers)}
    if elastic:
        spans = {"ps": span(ps, most=ps + 1), "workers": span(workers, most=workers + 2)}
    return work(
        f"job-{number}",
        **spans,
        ps_cpu=cores,
        worker_cpu=cores,
        priority=priority,
        submitted_s=float(at_s),
        samples=samples,
    )


def guests_of(machines: list[float], drawn: tuple[int, int, int]) -> tuple[Tenant, Tenant]:
    number, from_s, for_s = drawn
    number %= len(machines)
    half = Tenant(
        node=f"node-{number}",
        cpu=machines[number] / 2,
        from_s=float(from_s),
        to_s=float(from_s + for_s),
    )
    return half, replace(half, to_s=float(from_s + 2 * for_s))


def world(machines: list[float], shapes: list[Any], *guests: Tenant) -> Scenario:
    jobs = [drawn_job(number, shape) for number, shape in enumerate(shapes)]
    jobs += [stream_job(number) for number in range(STREAM)]
    nodes = tuple(Machine(name=f"node-{number}", cpu=cpu) for number, cpu in enumerate(machines))
    ordered = tuple(sorted(jobs, key=lambda job: (job.submitted_s, job.job)))
    return scenario(
        *ordered, cluster=Cluster(nodes=nodes, tenants=guests), restart_s=RESTART_S, report_s=20.0
    )


def start_s(record: JobRecord) -> float | None:
    return record.sizes[0][0] if record.sizes else None


def end_s(done: Run, record: JobRecord) -> float:
    return done.ended_s if record.finished_s is None else record.finished_s


def is_before(one: JobRecord, other: JobRecord) -> bool:
    """Return True if the first job is before the other one in the queue.

    Jobs of one priority are in the order of their submission.
    """
    return (-one.work.priority, one.work.submitted_s, one.work.job) < (
        -other.work.priority,
        other.work.submitted_s,
        other.work.job,
    )


def bound_s(
    done: Run, record: JobRecord, start: float | None, *guests: Tenant, since_s: float | None = None
) -> float:
    """Return the latest time in s at which a job may start or continue.

    `start`: when it started or continued; `since_s`: when it lost tasks.
    """
    due_s = (record.work.submitted_s if since_s is None else since_s) + AFTER_S
    due_s = max([due_s, *(guest.to_s or 0.0 for guest in guests)])
    before = [each for each in done.records if is_before(each, record)]
    started = [at for each in before if (at := start_s(each)) is not None]
    started += [at for each in before if (at := back_s(each, *guests)) is not None]
    due_s = max([due_s, *(at for at in started if start is None or at < start)])
    running = [each for each in done.records if (at := start_s(each)) is not None and at <= due_s]
    return max([due_s, *(end_s(done, each) for each in running if each is not record)])


def back_s(record: JobRecord, *guests: Tenant) -> float | None:
    """Return the time in s at which an evicted job of a fixed size continued, else None.

    Such a job pauses only for an eviction.
    """
    return (
        guests[0].from_s + record.paused_s
        if guests and is_fixed(record) and record.resizes
        else None
    )


def is_fixed(record: JobRecord) -> bool:
    return (
        record.work.ps.min == record.work.ps.max
        and record.work.workers.min == record.work.workers.max
    )


def fits_alone(machines: list[float], record: JobRecord) -> bool:
    asked = record.work
    room = sorted(machines, reverse=True)
    for _ in range(asked.ps.min + asked.workers.min):
        room[0] -= asked.ps_cpu
        room.sort(reverse=True)
        if room[-1] < 0:
            return False
    return True


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(MACHINES, st.lists(JOB, min_size=1, max_size=6))
def test_no_job_waits_longer_than_the_bound(
    policy: str, machines: list[float], shapes: list[Any]
) -> None:
    rules = Rules(policy=policy, reserve_after_s=AFTER_S)
    done = simulate(world(machines, shapes), rules, 0, lambda: 0.0)
    for record in done.records:
        start = start_s(record)
        if fits_alone(machines, record):
            assert start is not None and start <= bound_s(done, record, start) + SLACK_S, (
                record.work.job,
                start,
            )


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(MACHINES, st.lists(JOB, min_size=1, max_size=6), GUESTS)
@example([8.0], [((1, 2, 2.0), False, 0, 0, 20_000)], (0, 50, 10))
@example(
    [4.0, 4.0, 4.0],
    [((1, 1, 1.0), False, 0, 0, 1_000), ((1, 2, 4.0), False, 0, 155, 1_000)],
    (0, 204, 1),
)
@example(
    [4.0, 4.0, 6.0],
    [((1, 1, 1.0), False, 0, 0, 1_000)] * 5 + [((1, 2, 4.0), False, 3, 122, 18_885)],
    (0, 190, 1),
)
def test_no_job_that_lost_tasks_waits_longer_than_the_bound(
    policy: str, machines: list[float], shapes: list[Any], drawn: Any
) -> None:
    guests = guests_of(machines, drawn)
    rules = Rules(policy=policy, reserve_after_s=AFTER_S)
    done = simulate(world(machines, shapes, *guests), rules, 0, lambda: 0.0)
    for record in (each for each in done.records if fits_alone(machines, each)):
        start, back = start_s(record), back_s(record, *guests)
        assert start is not None and start <= bound_s(done, record, start, *guests) + SLACK_S, (
            record.work.job,
            start,
        )
        assert record.finished_s is not None, "it went on"
        if back is not None:
            bound = bound_s(done, record, back, *guests, since_s=guests[0].from_s)
            assert back <= bound + RESTART_S + SLACK_S, (record.work.job, back)
