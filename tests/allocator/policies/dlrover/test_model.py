"""Tests of the warm start: the resources that a job probably needs, from finished jobs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.allocator.policies.contract import FinishedJob, Plan
from services.allocator.policies.dlrover.model import (
    MOST_SIMILAR,
    most_similar,
    similarity,
    smooth_plans,
    warm_start,
)
from shared.messages import JobRequested, Program
from tests.allocator.builders import request, span

PLAN = Plan(2, 4, 2.0, 3.0)


def asked(
    file: str = "train.py", digest: str = "a", batch: int = 32, **fields: Any
) -> JobRequested:
    return request(
        program=Program(name=file, digest=f"sha256-{digest * 64}"), batch=span(batch), **fields
    )


def past(
    plan: Plan = PLAN, finished_s: float = 0.0, gib: float = 8.0, **fields: Any
) -> FinishedJob:
    return FinishedJob(
        request=asked(**fields), plan=plan, ps_gib=gib, worker_gib=gib / 2, finished_s=finished_s
    )


def test_similarity_prefers_the_same_program_then_the_same_name():
    alike = [past(), past(digest="b"), past(file="other.py"), past(file="other.py", digest="b")]
    same, renamed_digest, moved, stranger = (similarity(asked(), each) for each in alike)
    assert same > moved > renamed_digest > stranger == 0.0


def test_similarity_of_one_programs_jobs_depends_on_cluster_and_batch():
    here, elsewhere = past(), past(namespace="other")
    near, far = past(batch=64), past(batch=1024)
    assert similarity(asked(), here) > similarity(asked(), elsewhere)
    assert similarity(asked(), here) > similarity(asked(), near) > similarity(asked(), far)


def test_only_the_most_similar_and_latest_jobs_count():
    old = [past(finished_s=float(n)) for n in range(MOST_SIMILAR + 3)]
    kept = most_similar(
        asked(), [*reversed(old), past(file="other.py", digest="b", finished_s=99.0)]
    )
    assert [each.finished_s for each in kept] == [3.0, 4.0, 5.0, 6.0, 7.0]


def test_another_program_gives_no_warm_start():
    assert warm_start(asked(), []) is None
    assert warm_start(asked(), [past(file="other.py", digest="b")]) is None


def test_similar_plans_are_smoothed_exponentially():
    plans = [Plan(1, 8, 1.0, 8.0), Plan(3, 8, 3.0, 4.0), Plan(6, 16, 3.0, 2.0)]
    assert smooth_plans(plans, 0.5) == Plan(4, 12, 2.5, 4.0)
    assert smooth_plans(plans, 1.0) == plans[-1]


def test_warm_start_memory_is_the_maximum_used():
    guess = warm_start(asked(), [past(gib=40.0, finished_s=1.0), past(gib=10.0, finished_s=2.0)])
    assert guess is not None and (guess.ps_gib, guess.worker_gib, guess.jobs) == (40.0, 20.0, 2)


@given(
    st.lists(
        st.builds(
            Plan, st.integers(1, 15), st.integers(1, 60), st.floats(0.1, 8), st.floats(0.1, 16)
        ),
        min_size=1,
    )
)
def test_a_warm_start_is_between_its_plans(plans):
    mean = smooth_plans(plans, 0.5)
    for number in ("ps", "workers", "ps_cpu", "worker_cpu"):
        values = [getattr(plan, number) for plan in plans]
        assert min(values) - 1e-9 <= getattr(mean, number) <= max(values) + 1e-9
