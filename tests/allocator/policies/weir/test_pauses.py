"""What a change costs each job."""

from __future__ import annotations

import math
from statistics import fmean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.policies.contract import PAUSE_S
from services.allocator.policies.weir import pauses

Told = tuple[int, float | None, float | None]
"""The number of a job's program, its own pause, and that of its program's jobs that are over."""
SECONDS = st.none() | st.floats(0.1, 300.0)


def pauses_of(*jobs: Told) -> list[float]:
    own, over = (np.array([math.nan if job[n] is None else job[n] for job in jobs]) for n in (1, 2))
    return [
        float(pause_s) for pause_s in pauses.pauses(own, np.array([job[0] for job in jobs]), over)
    ]


def test_what_was_measured_of_a_job_counts_for_it():
    assert pauses_of((0, 250.0, None), (0, 30.0, None)) == [250.0, 30.0]


def test_before_its_first_pause_a_job_is_taken_to_pause_as_others_of_its_program():
    assert pauses_of((0, 20.0, None), (0, 40.0, None), (0, None, None), (1, 9.0, None))[2] == 30.0
    assert pauses_of((0, None, 60.0), (0, 40.0, 60.0), (1, 9.0, None))[0] == 50.0


def test_a_program_of_which_nobody_paused_is_taken_to_be_like_the_median_one():
    assert pauses_of((0, 1.0, None), (1, 30.0, None), (2, 250.0, None), (3, None, None))[3] == 30.0


def test_before_anybody_paused_a_setting_is_taken():
    assert pauses_of((0, None, None), (1, None, None)) == [PAUSE_S, PAUSE_S]


@given(st.lists(st.tuples(st.integers(0, 3), SECONDS, SECONDS), min_size=1, max_size=12))
def test_it_is_its_own_else_its_programs_mean_else_the_median_program(jobs: list[Told]):
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
