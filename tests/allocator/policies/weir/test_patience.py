"""Until when a job that waits may be overtaken."""

from __future__ import annotations

import numpy as np
import pytest

from services.allocator.models.speed import Array
from services.allocator.policies.weir.patience import (
    AGAIN,
    SHARE,
    Stays,
    everybody,
    through_s,
    urgent,
    usual_s,
)


def waiting(asked_s: Array, work_s: Array, pause_s: float = 0.0) -> Stays:
    """At its least size each takes as long as with the whole cluster."""
    none, all_ = np.zeros(len(work_s)), np.ones(len(work_s))
    return Stays(asked_s, work_s, none, work_s, all_ > 0, pause_s * all_)


def late(asked_s: list[float], work_s: list[float], now: float, pause_s: float = 0.0) -> list[int]:
    stays = waiting(np.array(asked_s), np.array(work_s), pause_s)
    return urgent(stays, *everybody(stays, []), now)


def test_first_come_first_served_makes_a_job_wait_for_those_before_it():
    assert through_s(np.array([0.0, 1.0, 20.0]), np.array([4.0, 3.0, 2.0])).tolist() == [
        4.0,
        6.0,
        2.0,
    ]


def test_while_jobs_keep_coming_the_first_of_them_are_expected_once_more():
    asked_s, work_s = np.arange(10.0), np.full(10, 2.0)
    found = [usual_s(waiting(asked_s, work_s), asked_s, work_s, now) for now in (10.0, 1000.0)]
    again = sum(asked_s <= AGAIN * 10.0)
    expected = [np.concatenate([2.0 + asked_s, 12.0 + asked_s[:again]]), 2.0 + asked_s]
    assert found == pytest.approx([float(np.quantile(times, SHARE)) for times in expected])


def test_who_would_end_too_late_goes_first_the_most_urgent_before_the_others():
    """First come, first served, the last would be through after 570 s."""
    asked_s, work_s = [-30.0, 0.0, -20.0], [200.0, 200.0, 200.0]
    assert late(asked_s, work_s, 190.0) == []
    assert late(asked_s, work_s, 220.0) == [0, 2]


def test_where_pauses_are_long_jobs_may_be_overtaken_for_longer():
    asked_s, work_s = [-30.0, 0.0, -20.0], [200.0, 200.0, 200.0]
    assert late(asked_s, work_s, 220.0, pause_s=0.1) == [0, 2]
    assert late(asked_s, work_s, 220.0, pause_s=20.0) == []


def test_who_is_given_up_is_overtaken_again():
    assert 0 not in late([-1000.0, 0.0, 0.0, 0.0], [10.0, 10.0, 10.0, 10.0], 20.0)


def test_the_largest_of_many_may_always_be_overtaken():
    work = [10.0] * 29 + [50.0]
    ready = [late([0.0] * 30, work, now) for now in range(200, 320, 5)]
    assert any(ready) and not any(29 in found for found in ready)
