"""Tests of the conditions of a resize: when a pending change is due, and if its pause pays off."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.policies.contract import JobSnapshot, Observed, Size
from services.allocator.settings import Rules
from services.allocator.steps.resize_conditions import (
    PendingChange,
    change_due_s,
    observed_speed,
    payback_of,
    update_pending_change,
)
from tests.allocator.builders import EVEN, progress, request

RULES = Rules(window_s=2, max_delay_s=5, cooldown_s=10, pause_default_s=5)
JOB = JobSnapshot(
    key="default.mnist",
    request=request(),
    sizes=EVEN,
    submitted_s=0,
    size=Size(1, 2),
    batch=32,
    progress=progress(1, done=0, total=1000, speed=10),
    observed=(Observed(1, 2, 32, 10),),
)


def test_an_unchanged_pending_change_keeps_its_start_time():
    first = update_pending_change(None, Size(2, 2), 32, 100.0, "a")
    assert update_pending_change(first, Size(2, 2), 32, 101.0, "b") is first
    assert update_pending_change(first, Size(2, 3), 32, 101.0, "b") == PendingChange(
        Size(2, 3), 32, 100.0, 101.0, "b"
    )


def test_a_pending_change_is_due_after_window_delay_and_cooldown():
    assert change_due_s(PendingChange(Size(2, 2), 32, 100, 100), 0, RULES) == 102
    assert change_due_s(PendingChange(Size(2, 2), 32, 100, 104), 0, RULES) == 105
    assert change_due_s(PendingChange(Size(2, 2), 32, 100, 100), 99, RULES) == 109


def test_the_gain_is_the_remaining_time_at_both_speeds():
    gain = payback_of(JOB, Size(1, 4), 32, RULES)
    assert (gain.saved_s, gain.cost_s, gain.pays) == (50, 5, True)
    assert not payback_of(replace(JOB, pause_s=60.0), Size(1, 4), 32, RULES).pays


def test_an_observed_speed_precedes_a_prediction():
    seen = (*JOB.observed, Observed(1, 4, 32, 9))
    assert observed_speed(seen, Size(1, 4), 32) == 9
    assert observed_speed(seen, Size(1, 8), 32) == 18
    assert not payback_of(replace(JOB, observed=seen), Size(1, 4), 32, RULES).pays


def test_a_smaller_batch_pays_off_if_it_is_more_efficient():
    """The gradient noise is 8, and the batch of 32 has 8/10 of the speed.

    An example in a batch of 512 is worth (8 + 32)/(8 + 512) of one in a batch of 32. Gradients that
    are one update stale count like those of a batch twice as large.
    """
    seen = (Observed(1, 2, 512, 10), Observed(1, 2, 32, 8))
    wasteful = replace(JOB, batch=512, observed=seen)
    assert not payback_of(wasteful, Size(1, 2), 32, RULES).pays
    told = replace(
        wasteful, progress=replace(progress(1, done=0, total=1000, speed=10), gradient_noise=8.0)
    )
    stale = payback_of(told, Size(1, 2), 32, RULES)
    assert stale.saved_s == pytest.approx(1000 * (1032 / 40 / 10 - 72 / 40 / 8))
    together = replace(told, request=replace(told.request, consistency="global-batch"))
    fresh = payback_of(together, Size(1, 2), 32, RULES)
    assert fresh.saved_s == pytest.approx(1000 * (520 / 40 / 10 - 1 / 8))


@pytest.mark.parametrize(
    ("consistency", "pays"), [("async", False), ("global-batch", True), ("exact", True)]
)
def test_growth_pays_by_progress(consistency, pays):
    """Four workers have twice the speed of two. With stale gradients and little noise their examples
    are worth (1 + 2 x 32)/(1 + 4 x 32) of those of two.
    """
    asked = replace(JOB.request, consistency=consistency)
    seen = (Observed(1, 2, 32, 10), Observed(1, 4, 32, 20))
    report = replace(progress(1, done=0, total=1000, speed=10), gradient_noise=1.0)
    job = replace(JOB, request=asked, observed=seen, progress=report)
    assert payback_of(job, Size(1, 4), 32, RULES).pays == pays


def test_a_policys_prediction_is_used():
    assert payback_of(JOB, Size(1, 2), 512, RULES, faster=2.0).saved_s == 50
    assert not payback_of(JOB, Size(1, 4), 32, RULES, faster=1.01).pays


def test_a_job_without_a_report_has_all_its_work_left():
    assert payback_of(replace(JOB, progress=None), Size(1, 4), 32, RULES).pays
