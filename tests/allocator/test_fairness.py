"""Tests of fairness: no namespace delays the requests of others, and its open jobs are limited."""

from __future__ import annotations

from services.allocator.admission.requests import _open_job_reasons
from services.allocator.service import changes_no_decision, first_numbers_by_namespace
from services.allocator.settings import Rules
from services.allocator.state.state import State, apply
from shared.bus.subjects import FACTS, ORDERS
from shared.messages import CancelRequested
from tests.allocator.builders import accepted, progress, request


def test_the_oldest_requests_of_each_namespace_are_answered_first() -> None:
    namespaces = dict.fromkeys(range(1, 100), "team-a") | {100: "team-b"}

    assert first_numbers_by_namespace(namespaces, 3) == [1, 2, 3, 100]


def test_the_number_of_open_jobs_of_a_namespace_is_limited() -> None:
    state = apply(State(), accepted(request("one", namespace="team-a"), uid=1), ORDERS, 2, 0.0)
    rules = Rules(open_jobs=1)

    assert list(_open_job_reasons(state, "team-a", rules)) == [
        "namespace: has 1 open job, the limit set by WEIR_ALLOCATOR_OPEN_JOBS"
    ]
    assert not list(_open_job_reasons(state, "team-b", rules))
    assert not list(_open_job_reasons(state, "team-a", Rules(open_jobs=0)))


def test_a_fact_of_an_unknown_job_causes_no_decision() -> None:
    empty = State()
    known = apply(empty, accepted(request(), uid=1), ORDERS, 2, 0.0)

    assert changes_no_decision(empty, apply(empty, progress(1, 1, 10, 1.0), FACTS, 1, 1.0))
    assert not changes_no_decision(
        known, apply(known, CancelRequested(job="mnist"), ORDERS, 3, 1.0)
    )
