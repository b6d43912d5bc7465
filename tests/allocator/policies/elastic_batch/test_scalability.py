"""Tests of the speed of a job with k devices and a batch.

Also tests the unit in which jobs share a cluster, and the cost of workers in it.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from services.allocator.policies.contract import JobSnapshot, Node
from services.allocator.policies.elastic_batch.scalability import (
    Limits,
    Speed,
    Timing,
    core_pool,
    cores_of_workers,
    device_pool,
    fit_timing,
    prior_timing,
    ps_beside,
    scale_table,
)
from shared.messages import Resources, RoleResources
from tests.allocator.builders import request, span

TRUE = Timing(step_s=0.05, sample_s=0.002, ring_s=0.08, hop_s=0.001)
WIDE = Limits(batch_min=16, batch_max=512, device_batch_max=64, devices_max=16)


def seen(timing: Timing, *pairs: tuple[int, int], noise: float = 0.0) -> list[Speed]:
    rng = np.random.default_rng(1)
    return [
        Speed(each, k, float(timing.rate(each, k)) * (1 + noise * rng.normal()))
        for each, k in pairs
    ]


def test_exactly_the_feasible_entries_have_a_batch():
    table = scale_table(
        TRUE.rate, Limits(batch_min=100, batch_max=120, device_batch_max=32, devices_max=64)
    )
    for k, (scale, batch) in enumerate(zip(*table, strict=True), start=1):
        there = [b * k for b in range(1, 33) if 100 <= b * k <= 120]
        assert np.isfinite(scale) == bool(there)
        assert not there or batch in there


def test_the_batch_of_an_entry_is_the_fastest():
    def humped(each, k):
        return np.asarray(each * k / (1.0 + (each - 5) ** 2), dtype=float)

    table = scale_table(
        humped, Limits(batch_min=1, batch_max=100, device_batch_max=8, devices_max=10)
    )
    for k in range(1, 11):
        best = max((float(humped(b, k)) for b in range(1, 9) if 1 <= b * k <= 100), default=0.0)
        assert table.scales[k - 1] == pytest.approx(best / float(humped(8, 1)))


def test_scalability_is_relative_to_one_device_with_its_largest_batch():
    table = scale_table(TRUE.rate, WIDE)
    assert (table.scales[0], table.batches[0]) == (1.0, 64)
    assert table.scales[15] == pytest.approx(float(TRUE.rate(32, 16) / TRUE.rate(64, 1)))


def test_with_ps_the_batch_is_per_worker():
    table = scale_table(
        TRUE.rate,
        Limits(batch_min=16, batch_max=64, device_batch_max=48, devices_max=4, split=False),
    )
    assert table.batches.tolist() == [48, 48, 48, 48]


def test_with_ps_only_the_first_batch_is_used_before_observations():
    first = Limits(
        batch_min=16, batch_max=64, device_batch_max=48, devices_max=4, split=False, first=32
    )
    assert scale_table(TRUE.rate, first).batches.tolist() == [32, 32, 32, 32]
    assert scale_table(TRUE.rate, replace(first, first=64)).batches.tolist() == [48, 48, 48, 48]


def test_entries_below_the_gang_floor_are_infeasible():
    table = scale_table(
        TRUE.rate,
        Limits(batch_min=1, batch_max=64, device_batch_max=64, devices_max=4, devices_min=3),
    )
    assert np.isfinite(table.scales).tolist() == [False, False, True, True]


def test_a_few_speeds_predict_the_others():
    found = fit_timing(seen(TRUE, (8, 1), (64, 1), (64, 4), (16, 16), noise=0.02), reference=64)
    for each, k in [(32, 2), (48, 8), (8, 12), (64, 16)]:
        assert float(found.rate(each, k)) == pytest.approx(float(TRUE.rate(each, k)), rel=0.12)


def test_the_prior_has_diminishing_returns():
    scales = scale_table(prior_timing(64).rate, WIDE).scales
    gains = np.diff(scales[:8])
    assert (gains > 0).all() and (np.diff(gains) < 0).all()


def test_one_speed_scales_the_time_and_keeps_the_shape():
    found = fit_timing([Speed(64, 1, 640.0)], reference=64)
    assert float(found.rate(64, 1)) == pytest.approx(640.0, rel=0.02)
    guess, table = scale_table(prior_timing(64).rate, WIDE), scale_table(found.rate, WIDE)
    assert table.scales == pytest.approx(guess.scales, rel=0.05)


def test_non_positive_and_nan_speeds_are_ignored():
    nonsense = [
        Speed(64, 1, float("nan")),
        Speed(64, 2, -3.0),
        Speed(64, 2, float("inf")),
        Speed(0, 1, 5.0),
    ]
    assert fit_timing(nonsense, reference=64) == prior_timing(64)


def test_fitted_times_are_never_negative():
    found = fit_timing([Speed(64, 1, 100.0), Speed(64, 2, 1000.0), Speed(8, 4, 1.0)], reference=64)
    assert min(found.step_s, found.sample_s, found.ring_s, found.hop_s) >= 0


SIZES = RoleResources(
    chief=Resources(cpu=0.25), ps=Resources(cpu=0.25), worker=Resources(cpu=0.5, gpu=2)
)


def job(**fields: object) -> JobSnapshot:
    asked = request(**({"ps": span(2, most=3), "workers": span(4, most=9)} | fields))
    return JobSnapshot(key="default.mnist", request=asked, sizes=SIZES, submitted_s=0.0)


def test_ps_follow_the_ratio_of_the_start_within_their_bounds():
    assert [ps_beside(job(), workers) for workers in (1, 2, 3, 4, 5, 9)] == [1, 1, 2, 2, 3, 3]


def test_a_cost_includes_chief_and_ps():
    assert cores_of_workers(job(), 4) == 250 + 2 * 250 + 4 * 500


def test_the_unit_divides_every_task_and_node_remainders_are_lost():
    pool = core_pool(
        [Node("a", Resources(cpu=0.9)), Node("b", Resources(cpu=0.6))], [job()], taken=0
    )
    assert (pool.units, pool.unit) == (3 + 2, 250)
    assert pool.cost(job(), 4) == 1 + 2 + 8
    assert core_pool([Node("a", Resources(cpu=0.9))], [job()], taken=300).units == 3 - 2


def test_a_large_cluster_is_counted_in_coarser_units():
    pool = core_pool([Node("a", Resources(cpu=5000))], [job()], taken=0)
    assert pool.units <= 2048 and pool.cost(job(), 1) == 1


def test_devices_are_counted_one_by_one():
    pool = device_pool(
        [Node("a", Resources(gpu=4)), Node("b", Resources(gpu=4), open=False)], [job()]
    )
    assert (pool.units, pool.cost(job(), 3)) == (4, 6)
