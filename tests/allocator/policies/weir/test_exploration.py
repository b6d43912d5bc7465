"""Tests of exploration: sizes that are tried on capacity that no job needs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from services.allocator.placement.amounts import total_of
from services.allocator.policies.contract import JobSnapshot, Node, Observed, Quota, Size
from services.allocator.policies.weir.job_rows import JobRow, fit_rows
from services.allocator.policies.weir.market import JobArrays, Market
from services.allocator.policies.weir.policy import (
    exploration_candidates,
    explored_sizes,
    largest_node,
    two_digits,
    weir,
)
from services.allocator.steps.resize_conditions import payback_of
from shared.messages import Program, ProgressReported, Resources, RoleResources, Span, TaskPlan
from tests.allocator.builders import AT_ONCE, request, span

NOW = 1e4
DEVICE = Resources(gpu=1)
SIZES = RoleResources(chief=Resources(), ps=Resources(), worker=DEVICE)
NODE = Resources(cpu=64.0, memory_gib=64.0, gpu=4)
IN_PASSES = tuple(
    Observed(0, devices, batch, speed, nodes=nodes)
    for devices, batch, speed, nodes in (
        (2, 200, 398, 1),
        (4, 800, 796, 1),
        (8, 4800, 1583, 2),
        (16, 12800, 3076, 4),
    )
)
"""Speeds of a job: twice the devices are twice as fast.

A device holds 200 examples and the batch grew as well, so cheaper exchange explains the speeds as
well as computation does. By that explanation 32 devices would be no faster, although they are.
"""
PROVEN_SLOWER = Observed(0, 32, 12800, 3000.0, nodes=8)


def nodes(free: int, held: int = 4) -> list[Node]:
    """Return `held` full nodes and `free` empty ones."""
    there = [Resources(cpu=64.0, memory_gib=64.0, gpu=0)] * held + [NODE] * free
    return [Node(f"n{n}", has, NODE) for n, has in enumerate(there)]


def running(
    name: str = "one", at: Observed = IN_PASSES[-1], left: float = 1e9, **fields: object
) -> JobSnapshot:
    """Return a running job, with a measured speed of its size.

    Its gradient noise is so high that an example is worth the same at any batch size.
    """
    asked = replace(
        request(
            job=name,
            workers=span(1, 1, 64),
            batch=Span(start=200, min=200, max=12800),
            resources=SIZES,
        ),
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
        TaskPlan(role="worker", index=n, serial=n, node=f"n{n // 4}", resources=DEVICE)
        for n in range(at.workers)
    )
    seen = JobSnapshot(
        key=f"default.{name}", request=asked, sizes=SIZES, submitted_s=0.0, size=Size(0, at.workers)
    )
    ran = replace(
        seen,
        batch=at.batch,
        tasks=tasks,
        since_s=0.0,
        progress=report,
        pause_s=30.0,
        observed=IN_PASSES,
    )
    return replace(ran, **fields)


def wanted(there: list[Node], *jobs: JobSnapshot) -> dict[str, int]:
    return {want.job.removeprefix("default."): want.workers for want in weir(there, jobs, NOW)}


def test_an_idle_cluster_is_used_for_exploration():
    [want] = weir(nodes(12), [running()], NOW)
    assert want.workers == 32 and want.speedup and want.speedup > 1.2
    assert want.reason.startswith("tries 0 ps and 32 workers on free capacity: ")


@pytest.mark.parametrize(
    "fields",
    [
        {"observed": (*IN_PASSES, PROVEN_SLOWER)},
        {"progress": running(left=200_000).progress},
        {
            "progress": None,
            "request": replace(running().request, batch=Span(start=12800, min=200, max=12800)),
        },
        {"pause_s": 1e4},
        {"since_s": NOW - 60.0},
        {"quota": Quota(gpu=28)},
    ],
    ids=[
        "was tried",
        "ends soon",
        "nobody knows when it ends",
        "a pause is long",
        "has just paused",
        "its quota is spent",
    ],
)
def test_conditions_that_prevent_exploration(fields):
    assert wanted(nodes(12), running(**fields))["one"] <= 16


@pytest.mark.parametrize(("first_s", "most"), [(-1e4, 16), (-1e9, 32)], ids=["busy", "idle"])
def test_exploration_with_arrivals_needs_little_total_work(first_s, most):
    """The other job, of another program, has just arrived and is at its maximum."""
    other = running("other", IN_PASSES[0])
    asked = replace(
        other.request,
        program=Program(name="o.py", digest="sha256-" + "1" * 64),
        workers=span(2, 2, 2),
    )
    other = replace(other, request=asked, submitted_s=NOW - 1.0)
    assert wanted(nodes(11, held=5), running(submitted_s=first_s), other)["one"] == most


def test_exploration_stays_within_capacity_and_quota():
    assert wanted(nodes(12), running(quota=Quota(gpu=32))) == {"one": 32}
    assert [wanted(nodes(free), running())["one"] for free in (4, 3)] == [32, 16]


def test_the_job_with_the_most_work_explores_for_its_program():
    jobs = running("short", left=5e8), running("long")
    assert wanted(nodes(24, held=8), *jobs) == {"short": 16, "long": 32}


@pytest.mark.parametrize("busy", [True, False])
def test_no_exploration_while_a_job_of_the_program_is_about_to_report(busy):
    other = running("other", left=1e8, busy=busy, size=Size(0, 12), since_s=NOW - 1.0)
    assert wanted(nodes(24, held=8), running(), other)["one"] == 16


def of(digit: str, job: JobSnapshot) -> JobSnapshot:
    """Return the job with another program."""
    program = Program(name=f"{digit}.py", digest="sha256-" + digit * 64)
    return replace(job, request=replace(job.request, program=program))


def test_with_room_for_one_exploration_the_program_with_the_most_work_explores():
    jobs = (
        running("small", left=3e8),
        of("1", running("middle", left=5e8)),
        running("large", left=9e8),
    )
    assert wanted(nodes(4, held=12), *jobs) == {"small": 16, "middle": 16, "large": 32}
    assert wanted(nodes(8, held=12), *jobs) == {"small": 16, "middle": 32, "large": 32}


def waiting(name: str, most: int, **fields: object) -> JobSnapshot:
    job = of(
        "2", running(name, size=None, tasks=(), batch=0, progress=None, pause_s=None, observed=())
    )
    return replace(job, request=replace(job.request, workers=span(1, 1, most)), **fields)


@pytest.mark.parametrize(
    ("fields", "most"), [({}, 16), ({"quota": Quota(gpu=0)}, 32)], ids=["room", "its quota"]
)
def test_no_exploration_while_a_job_waits_except_for_its_quota(fields, most):
    waits = waiting("waits", 1, submitted_s=0.0, **fields)
    if fields:
        waits = replace(waits, key="other.waits", request=replace(waits.request, namespace="other"))
    assert wanted(nodes(24), running(), waits)["one"] == most


def test_capacity_of_a_job_without_a_grant_is_not_free():
    """The quota of the other job's namespace is 0 devices now; the job is left its minimum."""
    had = of("3", running("had", quota=Quota(gpu=0)))
    had = replace(
        had,
        key="other.had",
        request=replace(had.request, namespace="other", workers=span(16, 16, 16)),
    )
    assert wanted(nodes(0, held=8), running(), had)["one"] == 16


def test_an_explored_size_is_complete_or_skipped():
    [want] = weir(nodes(12), [running()], NOW)
    part = want.shrunk_to(Size(0, 28), 12800, "as far as there is room")
    assert not payback_of(
        running(), part.size, part.batch, AT_ONCE, part.speedup, part.speed_now
    ).pays


def test_devices_that_fit_on_one_node_are_explored_on_one():
    big = Resources(cpu=64.0, memory_gib=64.0, gpu=32)
    there = [Node("n0", replace(big, gpu=16), big), *(Node(f"n{n}", big, big) for n in (1, 2))]
    one = running()
    one = replace(one, tasks=tuple(replace(task, node="n0") for task in one.tasks))
    [want] = weir(
        there, [replace(one, observed=tuple(replace(o, nodes=1) for o in IN_PASSES))], NOW
    )
    assert (want.workers, want.speedup_if_spread) == (32, 1.0)


def with_rows(there: list[Node], jobs: tuple[JobSnapshot, ...], kept: bool) -> list[JobSnapshot]:
    """Return the jobs with their rows. `kept`: rows are encoded and decoded, as if stored."""
    held = [task.resources for job in jobs for task in job.tasks]
    rows = fit_rows(
        jobs, two_digits(total_of([node.free for node in there] + held)), largest_node(there)
    )
    if kept:
        rows = msgspec.json.decode(msgspec.json.encode(rows), type=list[JobRow])
    return [replace(job, model=row) for job, row in zip(jobs, rows, strict=True)]


@pytest.mark.parametrize("kept", [False, True], ids=["made before", "read again"])
@pytest.mark.parametrize(
    ("there", "jobs", "tried"),
    [
        (nodes(12), (running(),), {"one": 32}),
        (nodes(4), (running(),), {"one": 32}),
        (nodes(3), (running(),), {}),
        (nodes(12), (running(quota=Quota(gpu=32)),), {"one": 32}),
        (nodes(12), (running(observed=(*IN_PASSES, PROVEN_SLOWER)),), {}),
        (nodes(12), (running(pause_s=1e4),), {}),
        (nodes(24, held=8), (running("short", left=5e8), running("long")), {"long": 32}),
        (
            nodes(24, held=8),
            (running(), running("other", left=1e8, busy=True, size=Size(0, 12))),
            {},
        ),
        (
            nodes(8, held=12),
            (
                running("small", left=3e8),
                of("1", running("middle", left=5e8)),
                running("large", left=9e8),
            ),
            {"middle": 32, "large": 32},
        ),
        (nodes(24), (running(), waiting("waits", 1, submitted_s=0.0)), {}),
    ],
    ids=[
        "alone",
        "room for one",
        "no room",
        "a quota",
        "was tried",
        "long pause",
        "two of a program",
        "one in flight",
        "two programs",
        "one waits",
    ],
)
def test_stored_rows_give_the_same_exploration(there, jobs, tried, kept):
    wants = weir(there, jobs, NOW)
    assert {
        want.job.removeprefix("default."): want.workers for want in wants if "tries" in want.reason
    } == tried
    again = weir(there, with_rows(there, jobs, kept), NOW)
    assert [replace(want, describe_partial=None) for want in again] == [
        replace(want, describe_partial=None) for want in wants
    ]
    for one, other in zip(again, wants, strict=True):
        if "tries" in other.reason:
            parts = [want.shrunk_to(Size(0, 28), want.batch, "so") for want in (one, other)]
            assert parts[0].speedup == parts[1].speedup == 1.0


def field_of(jobs: Sequence[JobSnapshot]) -> Market:
    table = JobArrays(jobs, [job.model for job in with_rows(nodes(8), jobs, False)])
    return Market(table, table.changeable_places())


def test_an_exploration_reduces_capacity_and_its_own_quota():
    """`left` is what each job may still take; each exploration reduces it for the others."""
    jobs = running("large", left=9e8), of("1", running("middle", left=5e8))
    field = field_of(jobs)
    places = exploration_candidates(field)
    assert places == [0, 1]
    changing = replace(jobs[0], key="default.changing", busy=True)
    assert exploration_candidates(field_of((*jobs, changing))) == [1]
    for devices, found in (
        ((40, 40), [0, 1]),
        ((16, 40), [0, 1]),
        ((31, 31), [0]),
        ((0, 40), [1]),
        ((0, 0), []),
    ):
        left = np.array([[64.0, 64.0, float(count)] for count in devices])
        tried = explored_sizes(field, places, left, NOW)
        assert sorted(tried) == found and all(config.workers == 32 for config in tried.values())
        assert left.tolist() == [[64.0, 64.0, float(count)] for count in devices], (
            "it is left as it was"
        )
