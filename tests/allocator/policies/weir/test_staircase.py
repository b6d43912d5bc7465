"""Tests of the staircase of a job's configurations, computed for many jobs at once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.models.fitting import Prior, fit_model
from services.allocator.models.speed import Array, Fit
from services.allocator.policies.contract import JobSnapshot, Observed, Size
from services.allocator.policies.weir.staircase import (
    FLOOR_COST,
    SLOPE_TOLERANCE,
    Config,
    batch_sizes,
    build_staircases,
    concave_hulls,
    larger_sizes,
    size_bounds,
    task_counts,
    with_present_config,
)
from shared.messages import ProgressReported, Resources, RoleResources
from tests.allocator.builders import request, span

Point = tuple[float, float]


def on_hull(points: list[Point]) -> list[Point]:
    cost, speed = np.array(points, dtype=float).reshape(1, -1, 2).transpose(2, 0, 1)
    return [points[n] for n in concave_hulls(cost, speed, np.zeros((1, 2)))[0]]


POINTS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 100)), max_size=12)


def test_dominated_points_are_left_out():
    assert on_hull([(1, 5), (2, 5), (3, 4)]) == [(1, 5)]


def test_points_below_the_hull_are_skipped():
    assert on_hull([(1, 1), (2, 10), (3, 12)]) == [(2, 10), (3, 12)]


def test_points_on_a_straight_line_are_kept():
    assert len(on_hull([(n, 10.0 * n) for n in range(1, 6)])) == 5


def test_a_job_without_speed_has_no_hull():
    assert on_hull([(1, 0.0)]) == []


@given(POINTS)
def test_the_hull_is_concave_and_complete(points):
    found = on_hull([(float(c), float(s)) for c, s in points])
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise([(0.0, 0.0), *found])]
    assert all(later <= earlier * SLOPE_TOLERANCE + 1e-9 for earlier, later in pairwise(slopes))
    for cost, speed in points:
        assert speed <= _height(found, cost) * SLOPE_TOLERANCE ** len(found) + 1e-9


def _height(found: list[Point], cost: float) -> float:
    for before, step in pairwise([(0.0, 0.0), *found]):
        if step[0] >= cost:
            return before[1] + (step[1] - before[1]) * (cost - before[0]) / (step[0] - before[0])
    return found[-1][1] if found else 0.0


THERE = Resources(cpu=100.0, memory_gib=400.0, gpu=2)
NODE = Resources(cpu=16.0, memory_gib=64.0, gpu=2)
SIZES = RoleResources(
    chief=Resources(cpu=0.5), ps=Resources(cpu=1.0, memory_gib=1.0), worker=Resources(cpu=2.0)
)
SPANS = st.builds(
    lambda least, more, most: span(least + more, least, least + more + most),
    *[st.integers(1, 12)] * 3,
)
SEEN = st.builds(Observed, st.integers(1, 9), st.integers(1, 9), st.just(32), st.floats(1.0, 1e3))
FITS = st.lists(SEEN, max_size=4).map(lambda seen: fit_model(seen, Prior(batch=32)))


def job(ps, workers, batch=None, cpu=2.0, noise=None) -> JobSnapshot:
    asked = request(ps=ps, workers=workers, batch=batch or span(32))
    report = ProgressReported(
        job="mnist",
        uid=1,
        step=1,
        epoch=0,
        samples=0,
        total_samples=9,
        samples_per_second=1.0,
        gradient_noise=noise,
    )
    sizes = RoleResources(chief=SIZES.chief, ps=SIZES.ps, worker=Resources(cpu=cpu))
    return JobSnapshot(
        key="default.mnist", request=asked, sizes=sizes, submitted_s=0.0, progress=report
    )


JOBS = st.builds(
    job,
    SPANS,
    SPANS,
    st.sampled_from([span(32), span(32, 16, 64)]),
    st.sampled_from([0.5, 2.0, 20.0]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(JOBS, FITS), min_size=1, max_size=5))
def test_a_staircase_does_not_depend_on_other_jobs(jobs):
    for (one, fitted), stairs in zip(jobs, build_staircases(jobs, THERE, NODE), strict=True):
        steps, alone = _configs(stairs.steps), _alone(one, fitted)
        assert [(c.size, c.batch, c.cpu) for c in steps] == [
            (c.size, c.batch, c.cpu) for c in alone
        ]
        assert [c.speed for c in steps] == pytest.approx([c.speed for c in alone])


def _alone(one: JobSnapshot, fitted: Fit) -> list[Config]:
    return _configs(build_staircases([(one, fitted)], THERE, NODE)[0].steps)


def _configs(steps: Array) -> list[Config]:
    return [Config.of_row(row) for row in steps.tolist()]


@settings(max_examples=40, deadline=None)
@given(JOBS, FITS)
def test_a_staircase_starts_at_the_gang_floor_and_is_concave(one, fitted):
    steps = _alone(one, fitted)
    if not steps:
        assert _cpu(one, one.least) > THERE.cpu
        return
    assert steps[0].size == one.least
    assert all(c.cpu == pytest.approx(_cpu(one, c.size)) for c in steps)
    assert (
        steps[0].cost <= FLOOR_COST
    )  # a minimum that is slightly larger than the rounded cluster may fit
    assert all(c.cost <= 1.0 + 1e-9 for c in steps[1:])
    slopes = [(b.speed - a.speed) / (b.cost - a.cost) for a, b in pairwise(steps)]
    assert all(later <= earlier * SLOPE_TOLERANCE for earlier, later in pairwise(slopes))
    assert all(slope > 0.0 for slope in slopes)


def _cpu(one: JobSnapshot, size: Size) -> float:
    return one.sizes.chief.cpu + size.ps * one.sizes.ps.cpu + size.workers * one.sizes.worker.cpu


def test_a_steps_cost_is_its_dominant_share():
    for one, total in (
        (job(span(1), span(1, 1, 8)), "cpu"),
        (job(span(1), span(1, 1, 8), cpu=0.01), "memory_gib"),
    ):
        there = replace(THERE, memory_gib=4.0) if total == "memory_gib" else THERE
        steps = _configs(build_staircases([(one, fit_model([]))], there, NODE)[0].steps)
        assert steps[0].cost == pytest.approx(getattr(steps[0], total) / getattr(there, total))
        assert steps[0].scarce == ("cpu", "memory_gib", "gpu").index(total)


def test_gradient_noise_favours_large_batches():
    quiet, noisy = (
        job(span(1), span(1, 1, 4), span(32, 32, 512), noise=noise) for noise in (1.0, 1e6)
    )
    stairs = build_staircases([(quiet, fit_model([])), (noisy, fit_model([]))], THERE, NODE)
    few, many = (_configs(one.steps) for one in stairs)
    assert few[-1].batch < many[-1].batch


def test_candidate_counts_are_few_within_bounds_and_up_to_twice_the_observed():
    assert task_counts(span(1, 1, 3), 0) == (1, 2) and task_counts(span(1, 1, 3), 2) == (1, 2, 3)
    wide = task_counts(span(1, 1, 400), 200)
    assert wide[:8] == (1, 2, 3, 4, 5, 6, 7, 8) and wide[-1] == 400 and len(wide) < 48
    assert batch_sizes(span(32, 32)) == (32,) and batch_sizes(span(100, 16, 256)) == (
        16,
        23,
        32,
        45,
        64,
        91,
        100,
        128,
        181,
        256,
    )


@pytest.mark.parametrize(
    ("least", "most", "batch"), [(250, 250, {250}), (250, 330, {300}), (100, 330, {100, 200, 300})]
)
def test_device_batches_are_whole_passes(least, most, batch):
    """A device holds 100 examples."""
    one = job(span(0, 0, 0), span(1, 1, 1), span(least, least, most), cpu=2.0)
    one = replace(one, request=replace(one.request, device_batch_max=100))
    fitted = fit_model([Observed(0, 1, least, 10.0)], Prior(batch=least, device=100.0))
    sizes = larger_sizes(size_bounds(one, NODE), fitted, (0, 0))
    assert {int(n) for n in sizes[:, 2]} == batch
    assert {c.batch for c in _alone(one, fitted)} <= batch


@pytest.mark.parametrize(
    ("cost", "speed", "costs"),
    [
        (0.75, 25.0, [0.25, 0.5, 0.75, 1.0]),
        (0.75, 45.0, [0.25, 0.5, 0.75]),
        (0.75, 20.0, [0.25, 0.5, 1.0]),
        (0.5, 25.0, [0.25, 0.5, 1.0]),
        (0.1, 5.0, [0.25, 0.5, 1.0]),
    ],
    ids=[
        "between two",
        "larger ones are no faster",
        "a smaller one is as fast",
        "is a step",
        "below the least",
    ],
)
def test_the_current_size_is_added_as_a_step_if_useful(cost, speed, costs):
    steps = np.array([Config(1, n, 32, 0.0, 0.0, 0.0, n / 4, 10.0 * n) for n in (1, 2, 4)])
    found = with_present_config(steps, Config(1, 3, 32, 0.0, 0.0, 0.0, cost, speed))
    assert [step.cost for step in _configs(found)] == costs
