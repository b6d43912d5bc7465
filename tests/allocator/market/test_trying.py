"""What is tried in room that nobody else has a use for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.placing.placement import Node, Size
from services.allocator.placing.quota import Quota
from services.allocator.policies.contract import JobSeen
from services.allocator.policies.weir import weir
from services.allocator.readings import Observed
from shared.messages import Program, ProgressReported, Resources, RoleResources, Span, TaskPlan
from tests.allocator.builders import request, span

NOW = 1e4
DEVICE = Resources(gpu=1)
SIZES = RoleResources(chief=Resources(), ps=Resources(), worker=DEVICE)
NODE = Resources(cpu=64.0, memory_gib=64.0, gpu=4)
IN_PASSES = tuple(
    Observed(0, devices, batch, speed, nodes=nodes)
    for devices, batch, speed, nodes in ((2, 200, 398, 1), (4, 800, 796, 1), (8, 4800, 1583, 2), (16, 12800, 3076, 4))
)
"""Twice as fast with twice the devices. As a device holds 200 and the batch grew as well, exchange would explain it as
well as computing does, and then 32 devices would be no faster; which they are."""
PROVEN_SLOWER = Observed(0, 32, 12800, 3000.0, nodes=8)


def nodes(free: int, held: int = 4) -> list[Node]:
    """The first ones are full, and `free` are empty."""
    there = [Resources(cpu=64.0, memory_gib=64.0, gpu=0)] * held + [NODE] * free
    return [Node(f"n{n}", has, NODE) for n, has in enumerate(there)]


def running(name: str = "one", at: Observed = IN_PASSES[-1], left: float = 1e9, **fields: object) -> JobSeen:
    """At a size that it has shown the speed of. Each example teaches alike, however large the batch."""
    asked = replace(
        request(job=name, workers=span(1, 1, 64), batch=Span(start=200, min=200, max=12800), resources=SIZES),
        ps=Span(start=0, min=0, max=0),
        device_batch_max=200,
    )
    report = ProgressReported(
        job=name,
        uid=1,
        step=1,
        epoch=0,
        samples=0,
        total_samples=int(left),
        samples_per_second=at.samples_per_second,
        gradient_noise=1e12,
    )
    tasks = tuple(
        TaskPlan(role="worker", index=n, serial=n, node=f"n{n // 4}", resources=DEVICE) for n in range(at.workers)
    )
    seen = JobSeen(key=f"default.{name}", request=asked, sizes=SIZES, submitted_s=0.0, size=Size(0, at.workers))
    ran = replace(seen, batch=at.batch, tasks=tasks, since_s=0.0, progress=report, pause_s=30.0, observed=IN_PASSES)
    return replace(ran, **fields)


def wanted(there: list[Node], *jobs: JobSeen) -> dict[str, int]:
    return {want.job.removeprefix("default."): want.workers for want in weir(there, jobs, NOW)}


def test_an_idle_cluster_is_not_left_idle_for_what_a_model_does_not_know():
    [want] = weir(nodes(12), [running()], NOW)
    assert want.workers == 32 and want.faster and want.faster > 1.2
    assert want.reason.startswith("tries 0 ps and 32 workers in room that nobody else has a use for: ")


@pytest.mark.parametrize(
    "fields",
    [
        {"observed": (*IN_PASSES, PROVEN_SLOWER)},
        {"progress": running(left=200_000).progress},
        {"pause_s": 1e4},
        {"since_s": NOW - 60.0},
        {"quota": Quota(gpu=28)},
    ],
    ids=["was tried", "ends soon", "a pause is long", "has just paused", "its quota is spent"],
)
def test_it_does_not_try(fields):
    assert wanted(nodes(12), running(**fields))["one"] <= 16


@pytest.mark.parametrize(("first_s", "most"), [(-1e4, 16), (-1e9, 32)], ids=["busy", "idle"])
def test_while_jobs_come_it_tries_where_all_work_is_little_for_the_time_since_the_first(first_s, most):
    """The other one, of another program, has come just now, and has all that it may have."""
    other = running("other", IN_PASSES[0])
    asked = replace(other.request, program=Program(name="o.py", digest="sha256-" + "1" * 64), workers=span(2, 2, 2))
    other = replace(other, request=asked, submitted_s=NOW - 1.0)
    assert wanted(nodes(11, held=5), running(submitted_s=first_s), other)["one"] == most


def test_it_tries_no_more_than_there_is_room_and_quota_for():
    assert wanted(nodes(12), running(quota=Quota(gpu=32))) == {"one": 32}
    assert [wanted(nodes(free), running())["one"] for free in (4, 3)] == [32, 16]


def test_of_a_program_the_one_tries_that_has_most_left_to_do():
    jobs = running("short", left=5e8), running("long")
    assert wanted(nodes(24, held=8), *jobs) == {"short": 16, "long": 32}


def test_while_another_job_of_its_program_is_about_to_tell_something_nobody_tries():
    other = running("other", IN_PASSES[-1], busy=True, size=Size(0, 20))
    assert wanted(nodes(24, held=8), running(), other) == {"one": 16}


def test_who_waits_comes_before_who_tries():
    """The one that waits wants all there is."""
    waits = running("waits", left=1e6, size=None, tasks=(), batch=0, progress=None, pause_s=None)
    got = wanted(nodes(4), running(), waits)
    assert got["one"] == 16 and got["waits"] > 0
