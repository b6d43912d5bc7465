"""Tests of the policy `weir`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from services.allocator.policies.contract import (
    JobSnapshot,
    Node,
    Observed,
    ProgramHistory,
    Quota,
    Size,
    Target,
)
from services.allocator.policies.weir.auction import NO_STEP
from services.allocator.policies.weir.job_rows import fit_rows
from services.allocator.policies.weir.market import JobArrays, Market
from services.allocator.policies.weir.policy import largest_node, weir
from services.allocator.steps.resize_conditions import payback_of
from shared.messages import ProgressReported, Resources, RoleResources, Span, TaskPlan
from tests.allocator.builders import AT_ONCE, Story, accepted, request, size, span
from tests.allocator.builders import node as nodes

SIZES = RoleResources(chief=Resources(), ps=Resources(cpu=0.5), worker=Resources(cpu=0.5))


def node(cpu: float, name: str = "n") -> Node:
    return Node(name, Resources(cpu=cpu, memory_gib=64.0), Resources(cpu=64.0, memory_gib=64.0))


def waiting(name: str) -> JobSnapshot:
    asked = request(job=name, ps=span(1, 1, 1), workers=span(1, 1, 8), resources=SIZES)
    return JobSnapshot(key=f"default.{name}", request=asked, sizes=SIZES, submitted_s=0.0)


def running(name: str, left: int, since_s: float = -1000.0) -> JobSnapshot:
    """Return a job with one worker; it trained 100 examples/s with one worker and 190 with two."""
    job = waiting(name)
    report = ProgressReported(
        job=name, uid=1, step=1, epoch=0, samples=0, total_samples=left, samples_per_second=100.0
    )
    seen = (Observed(1, 1, 32, 100.0), Observed(1, 2, 32, 190.0))
    tasks = tuple(
        TaskPlan(role=role, index=0, serial=n, node="n", resources=Resources(cpu=0.5))
        for n, role in enumerate(("ps", "worker"))
    )
    had = replace(job, size=Size(1, 1), batch=32, tasks=tasks, since_s=since_s)
    return replace(had, progress=report, observed=seen, pause_s=1.0)


def with_seen(job: JobSnapshot, most: int, speeds: tuple[float, ...]) -> JobSnapshot:
    """Return the job with at most `most` workers, and the speeds with one worker, two and so on."""
    seen = tuple(Observed(1, n, 32, speed) for n, speed in enumerate(speeds, start=1))
    return replace(job, observed=seen, request=replace(job.request, workers=span(1, 1, most)))


def workers(wants: list[Target]) -> dict[str, int]:
    return {want.job.removeprefix("default."): want.workers for want in wants}


def test_a_single_job_gets_the_free_capacity():
    assert workers(weir([node(1.0)], [running("one", 10_000)], 0.0)) == {"one": 3}


def test_the_shorter_job_gets_more():
    got = workers(weir([node(1.5)], [running("long", 100_000), running("short", 10_000)], 0.0))
    assert got["short"] > got["long"] >= 1


def test_a_job_fits_the_exact_total_despite_rounding():
    """There are 104 cores, rounded to 100, and the job needs 102. With 101 cores it has no room."""
    large = waiting("large")
    large = replace(large, request=replace(large.request, workers=span(203, 203, 203)))
    assert workers(weir([node(104.0)], [large], 0.0)) == {"large": 203}
    assert workers(weir([node(101.0)], [large], 0.0)) == {"large": 0}


def test_a_recently_paused_job_does_not_grow():
    assert workers(weir([node(2.0)], [running("one", 10_000, since_s=-0.2)], 0.0)) == {"one": 1}


@pytest.mark.parametrize(("stood_s", "keeps"), [(4.0, 2), (10_000.0, 1)])
def test_capacity_moves_to_a_shorter_job_only_if_it_pays_for_both_pauses(stood_s, keeps):
    """The cluster is full, and the other job is shorter by a tenth.

    A job that has kept its size for long is expected to keep it for long.
    """
    had = running("long", 110_000, since_s=-stood_s)
    two = replace(
        had, size=Size(1, 2), tasks=(*had.tasks, replace(had.tasks[1], index=1, serial=2))
    )
    assert workers(weir([node(0.0)], [two, running("short", 100_000)], 0.0))["long"] == keeps


def test_a_job_in_cooldown_keeps_a_size_between_two_steps():
    """Three workers are no step, because four are much faster; the job has just paused."""
    had = running("one", 100_000, since_s=-0.2)
    more = [replace(had.tasks[1], index=n, serial=n + 1) for n in (1, 2)]
    seen = (*had.observed, Observed(1, 3, 32, 200.0), Observed(1, 4, 32, 390.0))
    three = replace(had, size=Size(1, 3), tasks=(*had.tasks, *more), observed=seen)
    assert workers(weir([node(4.0)], [three], 0.0)) == {"one": 3}


@pytest.mark.parametrize("said", [1e300, math.inf, math.nan, 1e-300])
def test_an_implausible_speed_is_replaced_by_the_predicted_one(said):
    had = running("one", 10_000)
    unheard, odd = (
        replace(had, observed=(*told, had.observed[1]))
        for told in ((), (Observed(1, 1, 32, said),))
    )
    other = running("other", 20_000)
    assert workers(weir([node(2.0)], [odd, other], 0.0)) == workers(
        weir([node(2.0)], [unheard, other], 0.0)
    )


def test_a_statistically_inefficient_batch_is_avoided():
    had = running("one", 10_000)
    asked = replace(had.request, batch=span(32, 32, 512), workers=span(1, 1, 1))
    fast = (Observed(1, 1, 32, 100.0), Observed(1, 1, 512, 120.0))
    wide = replace(had, request=asked, batch=512, observed=fast)
    assert [want.batch for want in weir([node(0.0)], [wide], 0.0)] != [32]
    told = replace(wide, progress=replace(wide.progress, gradient_noise=8.0))
    assert [want.batch for want in weir([node(0.0)], [told], 0.0)] == [32]


def gpus(name: str = "n", free: int = 0) -> Node:
    return Node(
        name,
        Resources(cpu=64.0, memory_gib=64.0, gpu=free),
        Resources(cpu=64.0, memory_gib=64.0, gpu=4),
    )


def side_by_side(devices: int, nodes: int) -> JobSnapshot:
    """Return a job on devices, with measured speeds.

    They are proportional to the devices on one node, and half of that on two nodes.
    """
    sizes = RoleResources(chief=Resources(), ps=Resources(), worker=Resources(gpu=1))
    asked = replace(
        request(job="d", workers=span(1, 1, 64), resources=sizes), ps=Span(start=0, min=0, max=0)
    )
    job = JobSnapshot(key="default.d", request=asked, sizes=sizes, submitted_s=0.0)
    tasks = tuple(
        TaskPlan(role="worker", index=n, serial=n, node=f"n{n % nodes}", resources=sizes.worker)
        for n in range(devices)
    )
    report = ProgressReported(
        job="d", uid=1, step=1, epoch=0, samples=0, total_samples=10**6, samples_per_second=100.0
    )
    seen = tuple(
        Observed(0, n, 32, 100.0 * n if on == 1 else 50.0 * n, nodes=on)
        for n, on in ((1, 1), (2, 1), (2, 2), (4, 1))
    )
    had = replace(job, size=Size(0, devices), batch=32, tasks=tasks, since_s=-1e6, observed=seen)
    return replace(had, progress=report, pause_s=1.0)


def test_device_counts_fill_nodes():
    """Two of three devices are used, and four of eight: eight on two nodes would be no faster."""
    free = ([gpus("n0", 2)], [gpus("n0", 3), gpus("n1", 4)])
    assert [weir(there, [side_by_side(1, 1)], 0.0)[0].workers for there in free] == [2, 4]


def test_the_speed_of_spread_devices_is_predicted():
    [want] = weir([gpus("n0", 3)], [side_by_side(1, 1)], 0.0)
    assert want.workers == 4 and want.speedup is not None and want.speedup_if_spread is not None
    assert want.speedup > 3.0 > want.speedup_if_spread


@pytest.mark.parametrize("seen_there", [True, False], ids=["measured", "by the model"])
def test_the_saving_of_a_change_uses_the_speeds_of_its_reason(seen_there):
    """On two nodes two devices are half as fast as on one, or were never measured there.

    Four devices on one node are faster.
    """
    had = side_by_side(2, 2)
    elsewhere = (Observed(0, 1, 32, 100.0, nodes=1), Observed(0, 4, 32, 300.0, nodes=1))
    job = had if seen_there else replace(had, observed=elsewhere)
    [want] = weir([gpus("n0", 4)], [job], 0.0)
    gain = payback_of(job, want.size, want.batch, AT_ONCE, want.speedup, want.speed_now)
    then = 10**6 / (gain.left_s - gain.saved_s)
    assert want.workers == 4 and f"{then:,.0f} examples/s" in want.reason


def test_without_reports_a_job_has_its_first_batch():
    wide = replace(waiting("one"), request=replace(waiting("one").request, batch=span(64, 32, 512)))
    assert [want.batch for want in weir([node(4.0)], [wide], 0.0)] == [64]


def test_a_job_shrinks_for_a_much_shorter_waiting_one():
    had = running("one", 1_000_000)
    more = replace(had.tasks[1], index=1, serial=2)
    wide = replace(
        had, size=Size(1, 2), tasks=(*had.tasks, more), request=replace(had.request, epochs=10_000)
    )
    less, first = weir([node(0.5)], [wide, waiting("new")], 0.0)
    assert workers([less, first]) == {"one": 1, "new": 1}
    given_up = "the rest goes to jobs that gain more by it"
    assert given_up in less.reason and given_up not in first.reason


@pytest.mark.parametrize(
    ("one_ps", "one_worker", "least", "has", "why"),
    [
        (105.0, 180.0, 1, Size(2, 1), "; with 1 ps and 2 workers it would be 42% slower"),
        (180.0, 105.0, 1, Size(1, 2), "; with 2 ps and 1 worker it would be 42% slower"),
        (105.0, 180.0, 2, Size(2, 1), "now or soon"),
    ],
)
def test_a_shrink_names_the_cost_of_the_other_role(one_ps, one_worker, least, has, why):
    """If the other role has no task to give up, no cost is named."""
    had = running("one", 1_000_000)
    asked = replace(had.request, ps=span(2, least, 2), workers=span(2, 1, 2), epochs=10_000)
    two = tuple(replace(task, index=1, serial=task.serial + 2) for task in had.tasks)
    seen = (
        Observed(1, 1, 32, 100.0),
        Observed(1, 2, 32, one_ps),
        Observed(2, 1, 32, one_worker),
        Observed(2, 2, 32, 200.0),
    )
    wide = replace(had, size=Size(2, 2), tasks=(*had.tasks, *two), request=asked, observed=seen)
    new = replace(waiting("new"), request=replace(waiting("new").request, workers=span(1, 1, 1)))
    less, _ = weir([node(0.5)], [wide, new], 0.0)
    assert less.size == has and less.reason.endswith(why)


def with_two(job: JobSnapshot) -> JobSnapshot:
    """Return the job with a second worker."""
    return replace(
        job, size=Size(1, 2), tasks=(*job.tasks, replace(job.tasks[1], index=1, serial=2))
    )


@pytest.mark.parametrize(("pause_s", "more"), [(1.0, True), (250.0, False)])
def test_before_its_first_pause_growth_depends_on_the_programs_pauses(pause_s, more):
    """The job has 53 s left."""
    one, beside = replace(with_two(running("one", 10_000)), pause_s=None), running("beside", 10_000)
    got = workers(weir([node(4.0)], [one, replace(beside, busy=True, pause_s=pause_s)], 0.0))
    assert (got["one"] > 2) == more


def field_of(jobs: list[JobSnapshot]) -> Market:
    there = Resources(cpu=4.0, memory_gib=64.0)
    return Market(JobArrays(jobs, fit_rows(jobs, there, there)), np.arange(len(jobs)))


def test_a_longer_pause_lowers_the_value_of_growth_only():
    short, long = (
        field_of([replace(running("one", 100_000), pause_s=s)]).step_values[0] for s in (1.0, 100.0)
    )
    assert short[0] == long[0] and short[1] > long[1] > 0.0


@pytest.mark.parametrize(("keeps", "before"), [(0, [1, 2, 0]), (1, [0, 1, 2])])
def test_a_late_job_comes_first_for_capacity_above_the_floors(keeps, before):
    """The late job competes with a running job's second worker and with a shorter waiting job."""
    short = replace(waiting("short"), request=replace(waiting("short").request, priority=3))
    jobs = [with_two(running("one", 100_000)), waiting("late"), short]
    field = field_of(jobs)
    offers = field.offers_for_overdue(field.step_offers(0.0), [1], np.array([keeps, NO_STEP, 0]))
    assert np.argsort([-offers[0, 1], -offers[1, 0], -offers[2, 0]]).tolist() == before


def test_growth_leaves_a_reserve_of_a_large_cluster():
    """There is room for 64 workers, and two of them, a 32nd, stay free.

    With room for three workers none stays free.
    """
    much = replace(
        running("one", 10**7), request=replace(waiting("one").request, workers=span(1, 1, 64))
    )
    seen = tuple(Observed(1, n, 32, 100.0 * n) for n in (1, 32, 62, 64))
    assert 50 < workers(weir([node(31.5)], [replace(much, observed=seen)], 0.0))["one"] <= 62
    assert workers(weir([node(1.0)], [running("one", 10_000)], 0.0)) == {"one": 3}


def test_a_job_in_flight_has_no_target():
    assert weir([node(2.0)], [replace(running("one", 10_000), busy=True)], 0.0) == []


def test_a_long_running_job_keeps_its_floor():
    got = workers(weir([node(0.0)], [running("long", 10**9), running("short", 10)], 0.0))
    assert got["long"] == 1


def test_a_job_without_capacity_waits_with_the_missing_amount():
    """The other job has a decision in flight, so the policy is not asked about it."""
    (waits,) = weir([node(0.75)], [replace(running("one", 10_000), busy=True), waiting("new")], 0.0)
    assert (waits.ps, waits.workers) == (0, 0)
    assert (
        waits.reason
        == "waits: a chief, 1 ps and 1 worker would need 0.25 cpu more than is free on the nodes"
    )


def test_a_job_that_keeps_its_size_has_the_reason_against_the_next_step():
    def why(free: float, *others: JobSnapshot, since_s: float = -1000.0) -> str:
        wants = weir([node(free)], [running("one", 100_000, since_s=since_s), *others], 0.0)
        return next(want.reason for want in wants if want.job == "default.one")

    assert why(0.0) == "keeps its size: the nodes cannot hold another task, even if empty"
    busy = replace(with_two(running("busy", 10)), busy=True)
    assert (
        why(0.25, busy)
        == "keeps its size: 1 ps and 2 workers would need 0.25 cpu more than is free on the nodes"
    )
    assert (
        why(4.0, since_s=-0.2) == "keeps its size: 1 ps and 2 workers would pause it again too soon"
    )
    short = why(0.5, running("short", 10_000))
    assert short.startswith(
        "keeps its size: 1 ps and 2 workers would need more than is free on the nodes, and other"
    )


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (
            with_seen(running("one", 10_000), 2, (100.0, 106.0)),
            "1 ps and 2 workers would be 6% faster, below the 15% threshold",
        ),
        (
            replace(running("one", 10_000), pause_s=99.0),
            (
                "1 ps and 4 workers would be 207% faster, too little to repay a pause of 1 min 39 s"
                " before it ends"
            ),
        ),
    ],
)
def test_a_job_without_a_worthwhile_growth_has_the_gain(job, told):
    (want,) = weir([node(10.0)], [job], 0.0)
    assert want.size == job.size and want.reason.startswith(f"keeps its size: {told}")


def test_a_job_at_its_maximum_has_that_reason():
    job = running("one", 100_000)
    (want,) = weir(
        [node(10.0)], [replace(job, request=replace(job.request, workers=span(1, 1, 1)))], 0.0
    )
    assert want.reason == "keeps its size: it is at its maximum"


def test_a_job_that_does_not_scale_has_that_reason():
    (want,) = weir([node(10.0)], [with_seen(running("one", 100_000), 2, (100.0, 60.0, 30.0))], 0.0)
    assert want.reason == "keeps its size: no larger size is expected to be faster"


def test_a_job_with_a_spent_quota_has_that_reason():
    (want,) = weir([node(4.0)], [of("team-a", running("one", 100_000), Quota(cpu=1.25))], 0.0)
    told = "1 ps and 2 workers would need 0.25 cpu more than its namespace's quota has left"
    assert want.reason == f"keeps its size: {told}"
    assert [other.why for other in want.alternatives] == [
        "it would need 0.25 cpu more than its namespace's quota has left"
    ]


def test_the_waiting_job_with_less_remaining_work_starts_first():
    short, long = waiting("short"), waiting("long")
    known = ProgramHistory(observed=(Observed(1, 1, 32, 100.0),), epoch_samples=1000.0)
    long = replace(long, request=replace(long.request, epochs=50), history=known, submitted_s=-10.0)
    short = replace(short, request=replace(short.request, epochs=2), history=known)
    assert workers(weir([node(1.0)], [long, short], 0.0)) == {"long": 0, "short": 1}


def test_a_job_larger_than_the_cluster_has_its_minimum_as_target():
    assert workers(weir([node(0.0)], [waiting("one")], 0.0)) == {"one": 1}


def closed(free: float, name: str) -> Node:
    return replace(node(free, name), open=False)


def test_capacity_of_unschedulable_nodes_does_not_count():
    """In the second case the job holds one core, its minimum, on the closed node."""
    had = running("one", 10_000)
    there = replace(had, tasks=tuple(replace(task, node="c") for task in had.tasks))
    assert workers(weir([node(1.0), closed(9.0, "c")], [had], 0.0)) == {"one": 3}
    beside = running("beside", 10_000)
    beside = replace(beside, request=replace(beside.request, workers=span(1, 1, 1)))
    assert workers(weir([node(2.0), closed(9.0, "c")], [there, beside], 0.0)) == {
        "one": 3,
        "beside": 1,
    }
    waits, _ = weir([node(0.0), closed(9.0, "c")], [waiting("new"), had], 0.0)
    assert waits.waits


@pytest.mark.parametrize("is_open", [True, False])
def test_capacity_of_a_job_in_flight_is_not_deducted_twice(is_open):
    tasks = tuple([replace(task, node="other") for task in running("busy", 10_000).tasks])
    busy = replace(running("busy", 10_000), tasks=tasks, busy=True)
    cluster = [node(1.0), replace(node(0.0, "other"), open=is_open)]
    assert workers(weir(cluster, [running("one", 10_000), busy], 0.0)) == {"one": 3}


@pytest.mark.parametrize(("stands_on", "share"), [("n", "75%"), ("gone", "75%"), ("c", "100%")])
def test_a_share_is_of_free_and_held_capacity_on_schedulable_nodes(stands_on, share):
    """The job gets 1.5 cores: of one free core and one that it holds, or of 1.5 free cores."""
    had = running("one", 10_000)
    had = replace(had, request=replace(had.request, workers=span(1, 1, 2)))
    had = replace(had, tasks=tuple(replace(task, node=stands_on) for task in had.tasks))
    free = 1.5 if stands_on == "c" else 1.0
    (want,) = weir([node(free), closed(9.0, "c")], [had], 0.0)
    assert (
        want.workers == 2 and f"{share} of the cpu that jobs of this policy may have" in want.reason
    )


def test_the_largest_node_is_schedulable_with_most_devices_then_cores():
    many, few = (
        gpus("many"),
        replace(gpus("few"), allocatable=Resources(cpu=99.0, memory_gib=9.0, gpu=2)),
    )
    assert largest_node([node(1.0), few, many]) == many.allocatable
    assert largest_node([node(1.0), few, replace(many, open=False)]) == few.allocatable
    assert largest_node([]) == largest_node([closed(1.0, "c")]) == Resources()


def test_nothing_to_decide_is_no_error():
    assert weir([], [], 0.0) == [] and weir([], [waiting("one")], 0.0)[0].workers == 1


def of(space: str, job: JobSnapshot, quota: Quota | None = None) -> JobSnapshot:
    return replace(
        job,
        key=f"{space}.{job.request.job}",
        request=replace(job.request, namespace=space),
        quota=quota,
    )


def test_capacity_beyond_a_namespaces_quota_goes_to_others():
    def granted(quota: Quota | None) -> dict[str, int]:
        jobs = [
            of("team-b", running("long", 100_000)),
            of("team-a", running("short", 10_000), quota),
        ]
        return {want.job: want.workers for want in weir([node(1.0)], jobs, 0.0)}

    assert granted(None) == {"team-b.long": 1, "team-a.short": 3}
    assert granted(Quota(cpu=1.5)) == {"team-b.long": 2, "team-a.short": 2}


def test_a_quota_counts_what_a_job_in_flight_holds():
    quota = Quota(cpu=2.0)
    jobs = [
        of("team-a", running("one", 1_000), quota),
        of("team-a", replace(running("two", 9), busy=True), quota),
    ]
    (want,) = weir([node(2.0)], jobs, 0.0)
    assert want.size == Size(1, 1)


def speed(want: Target) -> float:
    """Return the speed that the reason of the target names."""
    return float(want.reason.partition(" ")[0].replace(",", ""))


def test_a_reduced_target_has_its_own_speed_and_share():
    (want,) = weir([node(1.0)], [running("one", 10_000)], 0.0)
    has = want.shrunk_to(Size(1, 2), want.batch, "as far as there is room")
    assert "examples/s with 100% of the cpu that jobs of this policy may have" in want.reason
    assert "examples/s with 75% of the cpu that jobs of this policy may have" in has.reason
    assert speed(has) == pytest.approx(190, rel=0.05) and speed(want) > 1.2 * speed(has)
    assert has.reason.endswith("as far as there is room (wanted: 1 ps and 3 workers)")
    assert (want.size, has.size) == (
        Size(1, 3),
        Size(1, 2),
    ) and want.speedup > has.speedup == pytest.approx(1.9, abs=0.1)


def test_a_start_reduced_by_placement_has_the_granted_size():
    """Five workers fit in sum, but four on the nodes: 2.9 of 4 cpu."""
    sizes = RoleResources(
        chief=Resources(cpu=0.25), ps=Resources(cpu=0.25), worker=Resources(cpu=0.6)
    )
    asked = request(ps=span(1), workers=span(4, 1, 6), resources=sizes)
    story = Story(replace(AT_ONCE, policy="weir")).hear(
        *(nodes(f"n{n}", cpu=1.0) for n in range(4)), accepted(asked)
    )
    first = story.decided()
    assert (
        size(first) == (1, 4) and "72% of the cpu that jobs of this policy may have" in first.reason
    )
    assert first.reason.endswith("as far as there is room (wanted: 1 ps and 5 workers)")
    cpu = "too little cpu: a worker needs 0.6 cpu, and the most free on one node is 0.4"
    assert [(lost.workers, lost.why) for lost in first.alternatives] == [
        (5, f"not enough room ({cpu})")
    ]


def test_the_share_of_a_reduced_start_is_of_its_dominant_resource():
    """At its minimum it uses mostly cpu, with four workers mostly memory: 2.4 of 4 GiB."""
    worker = Resources(cpu=0.2, memory_gib=0.6)
    sizes = RoleResources(chief=Resources(cpu=0.25), ps=Resources(cpu=0.7), worker=worker)
    asked = request(ps=span(1), workers=span(4, 1, 6), resources=sizes)
    has = Resources(cpu=1.0, memory_gib=1.0)
    there = (replace(nodes(f"n{n}"), allocatable=has, free=has) for n in range(4))
    first = Story(replace(AT_ONCE, policy="weir")).hear(*there, accepted(asked)).decided()
    assert (
        size(first) == (1, 4)
        and "60% of the memory that jobs of this policy may have" in first.reason
    )
