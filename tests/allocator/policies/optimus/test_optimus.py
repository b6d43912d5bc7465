"""Tests of the policy `optimus`: its rule is compared with a slow, literal one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.policies.contract import JobSnapshot, Node, Observed, Size, Target
from services.allocator.policies.optimus.policy import (
    Candidate,
    Rules,
    allot_sizes,
    choose_nodes,
    optimus,
    remaining_examples,
    task_gain,
    total_resources,
)
from shared.messages import ProgressReported, Resources, RoleResources, TaskPlan
from tests.allocator.builders import Story, accepted, node, progress, request, resumed, size, span

FAR = Size(10_000, 10_000)


class Speed:
    """The speed of a synchronous job in examples/s; that of some sizes may be unknown (0)."""

    def __init__(self, chance: random.Random) -> None:
        self.terms = [chance.uniform(0, x) for x in (1.0, 0.1, 0.2, 0.02, 0.02)]
        self.mute = {
            Size(chance.randint(1, 6), chance.randint(1, 6))
            for _ in range(chance.choice([0, 0, 0, 3]))
        }

    def __call__(self, size: Size) -> float:
        p, w = size.ps, size.workers
        terms = zip(self.terms, (10 / w, 1.0, w / p, w, p), strict=True)
        return 0.0 if size in self.mute else 10 / (0.001 + sum(a * x for a, x in terms))


def world(seed: int) -> tuple[list[Candidate], list[Resources]]:
    chance = random.Random(seed)
    jobs = [
        Candidate(
            key=f"j{i}",
            remaining=chance.choice([0.0, chance.uniform(1, 1e5), chance.uniform(1, 1e3)]),
            rate=Speed(chance),
            ps=Resources(cpu=chance.randint(1, 4), memory_gib=chance.randint(1, 10)),
            worker=Resources(
                cpu=chance.randint(1, 4), memory_gib=chance.randint(1, 10), gpu=chance.randint(0, 1)
            ),
            most=FAR,
        )
        for i in range(chance.randint(1, 8))
    ]
    node = Resources(cpu=16, memory_gib=48, gpu=chance.choice([2, 4]))
    return jobs, [node] * chance.randint(1, 8)


# ---------------------------------------------------------------- the authors' rule, literally


def slow_counts(jobs: Sequence[Candidate], cluster: Resources) -> dict[str, tuple[int, int]]:
    """Return ps and workers of each job; all gains are computed again for every task."""
    counts: dict[str, tuple[int, int]] = {}
    for job in jobs:
        if _within({**counts, job.key: (1, 1)}, jobs, cluster):
            counts[job.key] = (1, 1)
    while True:
        offers = [
            offer
            for job in jobs
            if job.key in counts
            for offer in _offers(job, counts[job.key], cluster)
        ]
        if not offers:
            return counts
        saved, job_key, after = max(offers, key=lambda offer: offer[0])  # the first of equals
        if saved <= 0 or not _within({**counts, job_key: after}, jobs, cluster):
            return counts
        counts[job_key] = after


def _within(
    counts: dict[str, tuple[int, int]], jobs: Sequence[Candidate], cluster: Resources
) -> bool:
    for kind in ("cpu", "memory_gib", "gpu"):
        used = 0.0
        for job in jobs:
            ps, workers = counts.get(job.key, (0, 0))
            used += ps * getattr(job.ps, kind) + workers * getattr(job.worker, kind)
        if used > getattr(cluster, kind):
            return False
    return True


def _offers(
    job: Candidate, now: tuple[int, int], cluster: Resources
) -> list[tuple[float, str, tuple[int, int]]]:
    more_ps, more_workers = (now[0] + 1, now[1]), (now[0], now[1] + 1)
    speeds = [job.rate(Size(*size)) for size in (now, more_ps, more_workers)]
    if any(speed <= 0 for speed in speeds):
        return []
    seconds = [job.remaining / speed for speed in speeds]
    by_ps = (seconds[0] - seconds[1]) / _dominant(job.ps, cluster)
    by_worker = (seconds[0] - seconds[2]) / _dominant(job.worker, cluster)
    return (
        [(by_ps, job.key, more_ps)] if by_ps >= by_worker else [(by_worker, job.key, more_workers)]
    )


def _dominant(task: Resources, cluster: Resources) -> float:
    kinds = [("cpu", task.cpu / cluster.cpu), ("memory_gib", task.memory_gib / cluster.memory_gib)]
    kinds.append(("gpu", task.gpu / cluster.gpu))
    name = max(kinds, key=lambda kind: kind[1])[0]
    return float(getattr(task, name))


def slow_nodes(
    jobs: Sequence[Candidate], counts: dict[str, tuple[int, int]], nodes: Sequence[Resources]
) -> dict[str, tuple[list[int], list[int]]]:
    """Return the nodes of each job's ps and workers, by number, as the authors place them.

    Nodes with the fewest used cores come first. After each failure one more node is used.
    """
    used = [[0.0, 0.0, 0.0] for _ in nodes]
    placed: dict[str, tuple[list[int], list[int]]] = {}
    for job in sorted((j for j in jobs if j.key in counts), key=lambda j: sum(counts[j.key])):
        ps, workers = counts[job.key]
        order = sorted(range(len(nodes)), key=lambda n: (used[n][0], n))
        for many in range(1, len(nodes) + 1):
            tried = [list(row) for row in used]
            at_ps = [order[i % many] for i in range(ps)]
            at_workers = [order[i % many] for i in range(workers)]
            if all(_sits(tried, nodes, n, job.ps) for n in at_ps) and all(
                _sits(tried, nodes, n, job.worker) for n in at_workers
            ):
                used, placed[job.key] = tried, (at_ps, at_workers)
                break
        else:
            _slow_turns(job, ps, workers, used, nodes, placed)
    return placed


def _slow_turns(
    job: Candidate,
    ps: int,
    workers: int,
    used: list[list[float]],
    nodes: Sequence[Resources],
    placed: dict[str, tuple[list[int], list[int]]],
) -> None:
    tried = [list(row) for row in used]
    at: tuple[list[int], list[int]] = ([], [])
    turn = 0
    for _ in range(ps + workers):
        found = next(
            (n for n in range(len(nodes)) if _sits(tried, nodes, n, (job.ps, job.worker)[turn])),
            None,
        )
        if found is None:
            break
        at[turn].append(found)
        turn = 1 - turn
        turn = 1 if len(at[0]) >= ps else turn
        turn = 0 if len(at[1]) >= workers else turn
    if at[0] and at[1]:
        used[:] = tried
        placed[job.key] = at


def _sits(used: list[list[float]], nodes: Sequence[Resources], node: int, task: Resources) -> bool:
    """Take the task's resources from the node; return False if there is no room."""
    wants = (task.cpu, task.memory_gib, task.gpu)
    there = (nodes[node].cpu, nodes[node].memory_gib, nodes[node].gpu)
    if any(u + w > t for u, w, t in zip(used[node], wants, there, strict=True)):
        return False
    used[node] = [u + w for u, w in zip(used[node], wants, strict=True)]
    return True


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 10**9))
def test_sizes_and_nodes_follow_the_authors_rule(seed):
    jobs, nodes = world(seed)
    cluster = total_resources((node, 1) for node in nodes)
    counts = slow_counts(jobs, cluster)
    sizes = allot_sizes(jobs, cluster, cluster)
    assert {key: (size.ps, size.workers) for key, size in sizes.items()} == counts
    stand = choose_nodes(jobs, sizes, {str(n): node for n, node in enumerate(nodes)})
    named = slow_nodes(jobs, counts, nodes)
    assert stand == {key: tuple([str(n) for n in at] for at in both) for key, both in named.items()}


def test_a_gain_is_seconds_per_dominant_resource():
    cluster = Resources(cpu=100, memory_gib=100, gpu=4)
    job = Candidate(
        key="a",
        remaining=1000.0,
        rate=lambda size: 10.0,
        ps=Resources(cpu=3, memory_gib=5),
        worker=Resources(cpu=3, memory_gib=5, gpu=2),
        most=FAR,
    )
    assert task_gain(job, "ps", 10.0, 12.5, cluster) == pytest.approx(20.0 / 5)
    assert task_gain(job, "worker", 10.0, 12.5, cluster) == pytest.approx(20.0 / 2)


def test_a_bound_stops_only_its_own_role():
    jobs, _ = world(7)
    bounded = [
        replace(job, most=Size(2, 3), remaining=1e6, rate=lambda s: float(s.ps * s.workers))
        for job in jobs
    ]
    huge = Resources(cpu=10_000, memory_gib=10_000, gpu=10_000)
    assert set(allot_sizes(bounded, huge, huge).values()) == {Size(2, 3)}


# ---------------------------------------------------------------- the policy

TASKS = RoleResources(chief=Resources(), ps=Resources(cpu=1), worker=Resources(cpu=1))


def true_speed(size: Size) -> float:
    return 32 / (0.5 / size.workers + 0.02 + 0.02 * size.workers / size.ps + 0.002 * size.ps)


def seen(job: str = "a", at: float = 0.0, **fields: Any) -> JobSnapshot:
    usual = {"ps": span(1, most=12), "workers": span(1, most=12)}
    return JobSnapshot(
        key=f"default.{job}", request=request(job, **(usual | fields)), sizes=TASKS, submitted_s=at
    )


def having(job: JobSnapshot, want: Target, now: float, done: int = 0) -> JobSnapshot:
    """Return the job after it ran at the target's size and reported its speed."""
    roles = [*["ps"] * want.ps, *["worker"] * want.workers]
    plans = [
        TaskPlan(role=role, index=i, serial=i, node="n0", resources=Resources(cpu=1))  # type: ignore[arg-type]
        for i, role in enumerate(roles)
    ]
    speed = Observed(want.ps, want.workers, 32, true_speed(want.size))
    told = ProgressReported(
        job=job.request.job,
        uid=1,
        step=1,
        epoch=0,
        samples=done,
        total_samples=10**6,
        samples_per_second=1.0,
    )
    return replace(
        job,
        size=want.size,
        batch=32,
        tasks=tuple(plans),
        since_s=now if want.size != job.size else job.since_s,
        observed=(
            *(o for o in job.observed if (o.ps, o.workers) != (want.ps, want.workers)),
            speed,
        ),
        progress=told,
    )


def nodes(cpu: float, jobs: Sequence[JobSnapshot] = ()) -> list[Node]:
    used = sum(t.resources.cpu for job in jobs for t in job.tasks)
    return [
        Node("n0", Resources(cpu=cpu - used, memory_gib=100), Resources(cpu=cpu, memory_gib=100))
    ]


def story(
    job: JobSnapshot, cpu: float, upto_s: int, every_s: int = 60
) -> tuple[JobSnapshot, list[tuple[int, Target]]]:
    """Ask the policy every `every_s` seconds; return the job, and when its size changed to what."""
    changes = []
    for now in range(0, upto_s, every_s):
        for want in optimus(nodes(cpu, [job]), [job], now):
            changes += [(now, want)] if want.size != job.size else []
            job = having(job, want, now)
    return job, changes


def test_eight_random_probes_precede_the_first_fit():
    _, changes = story(seen(), cpu=40, upto_s=3600)
    probes = [
        (now, want.size) for now, want in changes if want.reason == "a probe to measure the speed"
    ]
    assert len({size for _, size in probes}) == len(probes) == 8
    assert all(size.ps == size.workers <= 10 for _, size in probes)
    times = [now for now, _ in probes]
    assert times == [180 * i for i in range(8)]
    assert changes[8][0] % 600 == 0


def test_after_the_probes_the_size_is_a_greedy_optimum():
    job, _ = story(seen(), cpu=40, upto_s=3600)
    assert job.size is not None
    here = true_speed(job.size)
    for more in (Size(job.size.ps + 1, job.size.workers), Size(job.size.ps, job.size.workers + 1)):
        assert true_speed(more) < here * 1.02


def test_jobs_of_one_program_share_observations():
    veteran, _ = story(seen(), cpu=40, upto_s=3600)
    newcomer = seen("b", at=3600)
    wants = {w.job: w for w in optimus(nodes(80, [veteran]), [veteran, newcomer], 3601)}
    assert wants["default.b"].reason != "a probe to measure the speed"


def test_a_job_changes_at_most_once_per_interval():
    job, changes = story(seen(), cpu=40, upto_s=7200, every_s=20)
    settled = [now for now, want in changes if want.reason != "a probe to measure the speed"]
    assert len({now // 600 for now in settled}) == len(settled)
    assert job.since_s == settled[-1]


def test_every_job_gets_one_task_of_each_role_first():
    jobs = [seen(f"j{i}", at=i) for i in range(5)]
    wants = optimus(nodes(11), jobs, 0.0)
    assert sum(w.ps + w.workers for w in wants) <= 11
    assert {w.job for w in wants} == {job.key for job in jobs}
    assert {w.job for w in optimus(nodes(7), jobs, 0.0)} == {f"default.j{i}" for i in range(3)}


def test_a_job_in_flight_keeps_its_capacity():
    flying = replace(
        having(seen(), Target(job="default.a", ps=2, workers=2, batch=32, reason=""), 0.0),
        busy=True,
    )
    wants = optimus(nodes(6, [flying]), [flying, seen("b", at=1)], 700.0)
    assert [(w.job, w.ps, w.workers) for w in wants] == [("default.b", 1, 1)]


def test_remaining_work_is_the_request_unless_convergence_ends_it():
    want = Target(job="default.a", ps=1, workers=1, batch=32, reason="")
    job = having(seen(epochs=100), want, 0.0, done=200_000)
    assert remaining_examples(job, Rules()) == 800_000
    assert remaining_examples(job, Rules(until_converged=True)) == 20 * 10_000


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.lists(st.integers(0, 4), max_size=6), st.floats(0, 5000))
def test_grants_never_exceed_the_cluster(cpu, sizes, now):
    jobs = []
    for i, n in enumerate(sizes):
        want = Target(job=f"default.j{i}", ps=n, workers=n, batch=32, reason="")
        jobs.append(having(seen(f"j{i}", at=i), want, 0.0) if n else seen(f"j{i}", at=i))
    held = sum(len(job.tasks) for job in jobs)
    wants = {w.job: w for w in optimus(nodes(cpu + held, jobs), jobs, now)}
    kept = sum(len(job.tasks) for job in jobs if job.key not in wants)
    assert sum(w.ps + w.workers for w in wants.values()) + kept <= cpu + held
    assert all(w.ps >= 1 and w.workers >= 1 for w in wants.values())


def test_nonsense_reports_change_nothing():
    odd = (Observed(1, 1, 32, float("nan")), Observed(2, 2, 32, -5.0), Observed(3, 3, 32, math.inf))
    job = replace(
        having(seen(), Target(job="default.a", ps=1, workers=1, batch=32, reason=""), 0.0),
        observed=odd,
    )
    assert all(w.ps >= 1 and w.workers >= 1 for w in optimus(nodes(10, [job]), [job], 700.0))
    assert optimus([], [job], 700.0) == []


def test_the_allocator_runs_every_probe():
    asked = request(policy="optimus", ps=span(1, most=4), workers=span(1, most=8))
    story = Story().hear(node(cpu=12), accepted(asked))
    sizes = [size(story.decided())]
    for number in range(1, 5):
        ps, workers = sizes[-1]
        story.hear(
            resumed(number),
            progress(number, 100 * number, 10**6, 100.0 * workers / ps, step=number),
        )
        sizes.append(size(story.decided(after_s=180)))
    assert len(set(sizes)) == 5
    assert all(ps <= 4 and ps <= workers <= 8 for ps, workers in sizes)
