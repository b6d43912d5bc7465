"""Tests of the time until which a waiting job may be overtaken, and of the cost of a pause."""

from __future__ import annotations

import math
from statistics import fmean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.models.speed import Array
from services.allocator.policies.contract import PAUSE_S
from services.allocator.policies.weir import aging
from services.allocator.policies.weir.aging import (
    QUANTILE,
    RECURRING_SHARE,
    SojournInputs,
    all_arrivals,
    fcfs_sojourn_s,
    overdue_jobs,
    typical_sojourn_s,
)


def waiting(asked_s: Array, work_s: Array, pause_s: float = 0.0) -> SojournInputs:
    """Return waiting jobs that take as long at their smallest size as with the whole cluster."""
    none, all_ = np.zeros(len(work_s)), np.ones(len(work_s))
    return SojournInputs(asked_s, work_s, none, work_s, all_ > 0, pause_s * all_)


def late(asked_s: list[float], work_s: list[float], now: float, pause_s: float = 0.0) -> list[int]:
    stays = waiting(np.array(asked_s), np.array(work_s), pause_s)
    return overdue_jobs(stays, *all_arrivals(stays, []), now)


def test_fcfs_sojourn_includes_earlier_jobs():
    assert fcfs_sojourn_s(np.array([0.0, 1.0, 20.0]), np.array([4.0, 3.0, 2.0])).tolist() == [
        4.0,
        6.0,
        2.0,
    ]


def test_typical_sojourn_includes_expected_arrivals():
    asked_s, work_s = np.arange(10.0), np.full(10, 2.0)
    found = [
        typical_sojourn_s(waiting(asked_s, work_s), asked_s, work_s, now) for now in (10.0, 1000.0)
    ]
    again = sum(asked_s <= RECURRING_SHARE * 10.0)
    expected = [np.concatenate([2.0 + asked_s, 12.0 + asked_s[:again]]), 2.0 + asked_s]
    assert found == pytest.approx([float(np.quantile(times, QUANTILE)) for times in expected])


def test_late_jobs_come_first_most_urgent_first():
    """Under first come, first served the last job would end at 570 s."""
    asked_s, work_s = [-30.0, 0.0, -20.0], [200.0, 200.0, 200.0]
    assert late(asked_s, work_s, 190.0) == []
    assert late(asked_s, work_s, 220.0) == [0, 2]


def test_long_pauses_allow_longer_overtaking():
    asked_s, work_s = [-30.0, 0.0, -20.0], [200.0, 200.0, 200.0]
    assert late(asked_s, work_s, 220.0, pause_s=0.1) == [0, 2]
    assert late(asked_s, work_s, 220.0, pause_s=20.0) == []


def test_a_job_that_is_too_late_can_be_overtaken_again():
    assert 0 not in late([-1000.0, 0.0, 0.0, 0.0], [10.0, 10.0, 10.0, 10.0], 20.0)


def test_the_largest_job_may_always_be_overtaken():
    work = [10.0] * 29 + [50.0]
    ready = [late([0.0] * 30, work, now) for now in range(200, 320, 5)]
    assert any(ready) and not any(29 in found for found in ready)


Told = tuple[int, float | None, float | None]
"""The number of a job's program, the job's own pause, and that of the program's finished jobs."""
SECONDS = st.none() | st.floats(0.1, 300.0)


def pauses_of(*jobs: Told) -> list[float]:
    own, over = (np.array([math.nan if job[n] is None else job[n] for job in jobs]) for n in (1, 2))
    return [
        float(pause_s)
        for pause_s in aging.estimate_pauses(own, np.array([job[0] for job in jobs]), over)
    ]


def test_a_jobs_own_pauses_count():
    assert pauses_of((0, 250.0, None), (0, 30.0, None)) == [250.0, 30.0]


def test_before_its_first_pause_a_job_uses_its_programs_pauses():
    assert pauses_of((0, 20.0, None), (0, 40.0, None), (0, None, None), (1, 9.0, None))[2] == 30.0
    assert pauses_of((0, None, 60.0), (0, 40.0, 60.0), (1, 9.0, None))[0] == 50.0


def test_a_program_without_pauses_uses_the_median_program():
    assert pauses_of((0, 1.0, None), (1, 30.0, None), (2, 250.0, None), (3, None, None))[3] == 30.0


def test_before_any_pause_the_setting_is_used():
    assert pauses_of((0, None, None), (1, None, None)) == [PAUSE_S, PAUSE_S]


@given(st.lists(st.tuples(st.integers(0, 3), SECONDS, SECONDS), min_size=1, max_size=12))
def test_the_pause_estimate_is_own_then_program_then_median(jobs: list[Told]):
    over = {program: kin_s for program, _, kin_s in jobs if kin_s is not None}
    jobs = [(program, own_s, over.get(program)) for program, own_s, _ in jobs]
    means = {}
    for program in {job[0] for job in jobs}:
        known = [own_s for other, own_s, _ in jobs if other == program and own_s is not None]
        known += [over[program]] if program in over else []
        if known:
            means[program] = fmean(known)
    usual = median(means.values()) if means else PAUSE_S
    wanted = [means.get(program, usual) if own_s is None else own_s for program, own_s, _ in jobs]
    assert pauses_of(*jobs) == pytest.approx(wanted)
