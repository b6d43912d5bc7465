"""The tool's rules, each on numbers that can be worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.policies.contract import Past, Plan
from services.allocator.policies.dlrover.thresholds import (
    Use,
    created,
    halved,
    inherited,
    initial_ps,
    more_workers,
    relieved,
    speed_ratio,
    worker_size,
)
from shared.messages import Resources
from tests.allocator.builders import request


def use(
    ps_cpu: float = 2.0, hottest: float = 2.0, worker_cpu: float = 3.0, worker_gib: float = 4.0
) -> Use:
    return Use(ps_cpu, hottest, worker_cpu, worker_gib)


@pytest.mark.parametrize(
    ("limit", "task"),
    [((12, 30), (3, 6)), ((200, 400), (16, 8)), ((2, 4), (0.4, 0.8)), ((0, 0), (0, 0))],
)
def test_a_first_task_is_a_fifth_of_the_limit_and_never_more_than_its_bounds(limit, task):
    assert created(Resources(cpu=limit[0], memory_gib=limit[1])) == Resources(
        cpu=task[0], memory_gib=task[1]
    )


def test_a_job_inherits_the_mean_of_all_ps_cores_and_the_most_of_everything_else():
    past = [
        Past(request=request(), plan=Plan(2, 4, 4.0, 2.0), ps_gib=10.0, worker_gib=1.0),
        Past(request=request(), plan=Plan(6, 4, 2.0, 3.0), ps_gib=20.0, worker_gib=2.0),
    ]
    count, sizes = inherited(past)
    assert count == 3  # (8 + 12) / 2 cores in all, 4 each
    assert sizes.ps == Resources(cpu=4.0, memory_gib=pytest.approx(8.0)) and sizes.worker.cpu == 3.0
    assert sizes.worker.memory_gib == 3.0


def test_as_many_ps_as_the_workers_to_come_will_keep_busy():
    """5 cores a process (2 + 3): 6 of them fit into 30 cores, and leave 12 to the ps."""
    assert initial_ps(use(), 1, 30.0, 4.0) == 3
    assert initial_ps(use(), 1, 3000.0, 4.0) == 15


def test_a_hot_ps_gets_cores_for_the_workers_to_come_and_no_more_than_a_node_has():
    assert relieved(use(hottest=1.7), 1, 30.0, 2.0) == 2.0
    assert relieved(use(hottest=1.9), 2, 30.0, 2.0) == pytest.approx(1.9 * 7 / 2, abs=0.06)
    assert relieved(use(hottest=30.0, ps_cpu=30.0), 1, 4000.0, 30.0) == 32.0
    assert relieved(use(hottest=1.9), 30, 30.0, 2.0) == 2.0


@pytest.mark.parametrize(
    ("utilisation", "ratio", "workers"),
    [
        (0.3, 1.0, 12),
        (0.9, 1.0, 4),
        (0.96, 1.0, 4),
        (0.3, 0.19, 4),
        (0.3, 0.2, 12),
        (0.01, 1.0, 60),
        (0.0, 1.0, 4),
    ],
)
def test_workers_come_until_the_busiest_ps_is_at_its_threshold_or_speed_no_longer_rises(
    utilisation, ratio, workers
):
    assert more_workers(4, utilisation, ratio) == workers


def test_the_last_workers_are_measured_by_those_before_them():
    assert speed_ratio({1: 10.0, 2: 19.0, 4: 21.0}, 4) == pytest.approx(1.0 / 9.5)
    assert (
        speed_ratio({2: 19.0}, 2)
        == speed_ratio({1: 10.0}, 2)
        == speed_ratio({1: 0.0, 2: 5.0}, 2)
        == 1.0
    )


@given(st.dictionaries(st.integers(1, 9), st.floats(), max_size=5), st.integers(1, 9))
def test_no_speed_brings_the_ratio_out_of_the_numbers(speeds, workers):
    assert abs(speed_ratio(speeds, workers)) < float("inf")


def test_a_worker_has_what_workers_use_with_memory_to_spare():
    assert worker_size(use(worker_cpu=2.64, worker_gib=2.0)) == Resources(cpu=2.6, memory_gib=3.0)
    assert worker_size(use(worker_cpu=0.2, worker_gib=0.1)) == Resources(cpu=1.0, memory_gib=1.0)


def test_what_is_pending_is_halved_down_to_a_least_and_never_enlarged():
    assert halved(Resources(cpu=16, memory_gib=32)) == Resources(cpu=8, memory_gib=16)
    assert halved(Resources(cpu=6, memory_gib=8)) == Resources(cpu=4, memory_gib=6)
    assert halved(Resources(cpu=1, memory_gib=1)) == Resources(cpu=1, memory_gib=1)
