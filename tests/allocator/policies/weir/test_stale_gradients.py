"""Tests of sizes by progress: stale gradients limit async jobs, and the noise allows batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from services.allocator.models.programs import program_fits
from services.allocator.policies.contract import (
    JobSnapshot,
    Node,
    Observed,
    Reading,
    Size,
    Target,
)
from services.allocator.policies.weir.policy import weir
from services.allocator.policies.weir.stale_gradients import sample_worths
from shared.messages import (
    AllocationDecided,
    ProgressReported,
    Resources,
    RoleResources,
    Span,
    Staleness,
    TaskPlan,
)
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    progress,
    request,
    resumed,
    size,
    span,
)
from tests.allocator.builders import node as nodes

SIZES = RoleResources(chief=Resources(), ps=Resources(cpu=0.5), worker=Resources(cpu=0.5))
SPEEDS = (100.0, 180.0, 250.0, 310.0, 360.0, 400.0)
"""Examples/s with one worker, two, and so on."""


def node(free: float) -> Node:
    return Node("n", Resources(cpu=free, memory_gib=64.0), Resources(cpu=64.0, memory_gib=64.0))


def job(
    workers: int,
    noise: float | None = None,
    consistency: str = "async",
    seen: Sequence[Observed] = (),
    batch: Span | None = None,
    left: int = 1_000_000,
) -> JobSnapshot:
    """Return a running job with one ps and 32 examples an update, of up to six workers."""
    asked = request(
        job="one",
        ps=span(1, 1, 1),
        workers=span(1, 1, 6),
        batch=batch or span(32, 32, 32),
        resources=SIZES,
        consistency=consistency,
    )
    report = ProgressReported(
        job="one",
        uid=1,
        step=1,
        epoch=0,
        samples=0,
        total_samples=left,
        samples_per_second=SPEEDS[workers - 1],
        gradient_noise=noise,
    )
    known = seen or [Observed(1, n, 32, speed) for n, speed in enumerate(SPEEDS, start=1)]
    tasks = [("ps", 0), *(("worker", n) for n in range(workers))]
    return JobSnapshot(
        key="default.one",
        request=asked,
        sizes=SIZES,
        submitted_s=0.0,
        size=Size(1, workers),
        batch=32,
        tasks=tuple(
            TaskPlan(role=role, index=n, serial=at, node="n", resources=Resources(cpu=0.5))
            for at, (role, n) in enumerate(tasks)
        ),
        since_s=-1000.0,
        progress=report,
        observed=tuple(known),
        pause_s=1.0,
    )


def target(one: JobSnapshot, free: float = 10.0) -> Target:
    (found,) = weir([node(free)], [one], 0.0)
    return found


# ---------------------------------------------------------------- async


@pytest.mark.parametrize(
    ("noise", "workers"),
    [(None, 6), (1e9, 6), (10_000.0, 6), (2.0, 1)],
    ids=["not measured", "huge", "large", "small"],
)
def test_an_async_job_grows_as_far_as_its_progress_rises(noise, workers):
    assert target(job(1, noise)).workers == workers


def test_the_reason_against_growth_is_staleness():
    found = target(job(1, 40.0, seen=two_speeds(100.0, 150.0)))
    why = (
        "would be 48% faster, but staler gradients would cost 31% of the progress"
        " (noise scale 40, batch 32)"
    )
    assert found.reason == f"keeps its size: 1 ps and 2 workers {why}"
    assert [(other.workers, other.why) for other in found.alternatives] == [(2, f"it {why}")]


def two_speeds(*speeds: float) -> list[Observed]:
    """Return the speeds with one worker, two and so on; no further worker makes a job faster."""
    last = speeds[-1]
    every = [*speeds, *[last] * (6 - len(speeds))]
    return [Observed(1, n, 32, speed) for n, speed in enumerate(every, start=1)]


def test_a_job_beyond_its_best_size_shrinks():
    found = target(job(6, 2.0))
    assert found.workers == 1 and found.speedup is not None and found.speedup > 1.15
    stale = "; 1 ps and 6 workers are 299% faster, and their staler gradients cost 82% of the"
    assert f"{stale} progress (noise scale 2, batch 32)" in found.reason
    assert found.reason.startswith("100 examples/s with ")


@pytest.mark.parametrize(
    ("noise", "left", "against"),
    [(20.0, 10**6, "below the 15% threshold"), (0.1, 200, "too little to repay a pause of 1.00 s")],
)
def test_a_job_beyond_its_best_size_keeps_it_if_the_gain_is_slight(noise, left, against):
    two = job(2, noise, seen=two_speeds(100.0, 150.0), left=left)
    found = target(two)
    assert found.workers == 2 and against in found.reason
    assert found.reason.startswith("keeps its size: 1 ps and 1 worker would make ")
    assert f"more progress by fresher gradients, {against}" in found.reason


def test_a_job_that_is_kept_beyond_its_best_size_gives_room_to_others():
    two = job(2, 20.0, seen=two_speeds(100.0, 150.0))
    asked = replace(two.request, job="new", workers=span(1, 1, 1))
    new = JobSnapshot(key="default.new", request=asked, sizes=SIZES, submitted_s=0.0)
    found = weir([node(0.5)], [two, new], 0.0)
    assert {each.job: each.workers for each in found} == {"default.one": 1, "default.new": 1}


def test_a_reason_names_examples_and_their_progress():
    found = target(job(1, 1000.0))
    assert found.reason.startswith("400 examples/s (progress of 346) with ")
    whole = target(job(1, None))
    assert whole.reason.startswith("400 examples/s with ")


def test_measured_staleness_replaces_one_update_for_each_further_worker():
    def with_staleness(mean: float, workers: int = 3, samples: int = 0) -> JobSnapshot:
        one = job(3, 100.0)
        last = Reading(
            at_s=0.0,
            samples=samples,
            loss=None,
            samples_per_second=1.0,
            ps=1,
            workers=workers,
            batch=32,
        )
        assert one.progress is not None
        report = replace(one.progress, staleness=Staleness(mean=mean))
        return replace(one, progress=report, recent=(last,))

    assert with_staleness(1.0).worker_staleness == 0.5
    assert with_staleness(1.0).worth(32, Size(1, 5)) == pytest.approx(132 / (100 + 3 * 32))
    assert with_staleness(2.0).worth(32, Size(1, 5)) == pytest.approx(132 / (100 + 5 * 32))
    assert with_staleness(50.0).worker_staleness == 2.0, "not believed"
    assert with_staleness(1.0, workers=1).worker_staleness == 1.0, "of one worker"
    assert with_staleness(1.0, samples=9).worker_staleness == 1.0, "of another report"


def test_the_worths_of_many_sizes_are_those_of_each_job():
    sizes = [Size(0, 4), Size(1, 1), Size(2, 5)]
    jobs = [job(1, noise) for noise in (None, 0.0, 50.0, 1e39)]
    table = np.array([[(size.ps, size.workers, 64) for size in sizes] for _ in jobs], dtype=float)
    found = sample_worths(table, [32] * 4, [one.noise for one in jobs], [1.0] * 4)
    for one, row in zip(jobs, found.tolist(), strict=True):
        assert row == pytest.approx([one.worth(64, size) for size in sizes])


@pytest.mark.parametrize("noise", [-5.0, math.inf, math.nan])
def test_an_impossible_noise_is_not_measured(noise):
    assert job(1, noise).noise is None and target(job(1, noise)).reason == target(job(1)).reason


# ---------------------------------------------------------------- global-batch and exact


@pytest.mark.parametrize("consistency", ["global-batch", "exact"])
@pytest.mark.parametrize("noise", [None, 2.0])
def test_workers_that_share_a_batch_do_not_cost_progress(consistency, noise):
    found = target(job(1, noise, consistency))
    assert (found.workers, found.batch) == (6, 32)


def by_batch(*speeds: float) -> list[Observed]:
    """Return the speeds of one and of six workers with 32, 64, 128, ... examples an update."""
    found = []
    for at, speed in enumerate(speeds):
        found += [Observed(1, 1, 32 << at, 0.5 * speed), Observed(1, 6, 32 << at, speed)]
    return found


@pytest.mark.parametrize(
    ("noise", "least", "most"),
    [(None, 32, 32), (4.0, 32, 32), (1e6, 256, 256), (250.0, 45, 255)],
    ids=["not measured", "small", "huge", "between"],
)
def test_a_global_batch_grows_as_far_as_the_noise_allows(noise, least, most):
    seen = by_batch(100.0, 170.0, 260.0, 340.0)
    wide = job(6, noise, "global-batch", seen, span(32, 32, 256))
    assert least <= target(wide).batch <= most


@pytest.mark.parametrize(
    ("consistency", "form"),
    [("async", "asynchronous"), ("global-batch", "synchronous"), ("exact", "synchronous")],
)
def test_the_request_says_whose_the_batch_is(consistency, form):
    """The speeds are proportional to the workers, as those of jobs with stale gradients."""
    seen = [Observed(1, n, 32, 100.0 * n) for n in range(1, 7)]
    one = job(1, None, consistency, seen)
    (fitted,) = program_fits([one]).values()
    assert fitted.form == form


def test_jobs_of_one_program_with_another_consistency_share_no_speeds():
    kinds = ("async", "global-batch", "exact")
    assert len(program_fits([job(1, None, consistency) for consistency in kinds])) == 3


def test_a_global_batch_that_has_grown_stays_while_no_noise_is_known():
    seen = by_batch(100.0, 170.0, 260.0, 340.0)
    wide = replace(job(6, None, "global-batch", seen, span(32, 32, 256)), batch=128)
    found = target(wide)
    assert (found.batch, found.workers) == (128, 6)


def test_the_batch_of_an_async_job_may_grow_without_a_noise():
    seen = [Observed(1, 1, 32 << at, 100.0 * 1.5**at) for at in range(4)]
    assert target(job(1, None, seen=seen, batch=span(32, 32, 256))).batch == 256


# ---------------------------------------------------------------- through the allocator


def test_a_report_without_a_noise_keeps_the_last_one():
    story = Story(replace(AT_ONCE, policy="weir")).hear(nodes(), accepted(request()))
    story.decided()
    story.hear(resumed(1), replace(progress(1, 10, 10**6, 100.0), gradient_noise=7.0))
    story.hear(progress(1, 20, 10**6, 100.0, step=2))
    assert story.state.jobs["default.mnist"].progress.gradient_noise == 7.0


def test_a_lower_bound_of_the_noise_lets_a_batch_grow_and_no_job_shrink():
    def with_bound(consistency):
        seen = [Observed(1, 1, 32 << at, 100.0 * 1.5**at) for at in range(4)]
        told = job(1, None, consistency, seen, span(32, 32, 256))
        return replace(told, progress=replace(told.progress, gradient_noise_at_least=200.0))

    assert with_bound("global-batch").noise == 200.0
    assert target(with_bound("global-batch")).batch > 32
    assert with_bound("async").noise is None


@pytest.mark.parametrize(("noise", "grows"), [(None, True), (1e6, True), (1.0, False)])
def test_the_allocator_grows_an_async_job_only_if_its_progress_rises(noise, grows):
    """It starts with one worker for lack of room; then the cluster becomes larger."""
    asked = request(ps=span(1, 1, 1), workers=span(1, 1, 4), batch=span(32, 32, 32))
    story = Story(replace(AT_ONCE, policy="weir")).hear(nodes(cpu=3.0), accepted(asked))
    first = story.decided()
    report = replace(progress(1, 10, 10**6, 100.0), gradient_noise=noise)
    story.hear(resumed(1), report, nodes("n2", cpu=8.0))
    decisions = [one for one in story.decide(after_s=1000.0) if isinstance(one, AllocationDecided)]
    assert bool(decisions) == grows and size(first) == (1, 1)
    if not grows:
        why = story.why()
        assert why.startswith("keeps its size: 1 ps and ")
        assert "but staler gradients would cost" in why and "(noise scale 1, batch 32)" in why
