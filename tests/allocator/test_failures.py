"""Tests of policies and steps that raise: the job that causes it is set aside.

All other jobs are decided in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from services.allocator import decide, failures
from services.allocator.failures import Failure, FaultSearch, isolate
from services.allocator.policies.contract import JobSnapshot, Target, start_target
from services.allocator.policies.registry import POLICIES
from services.allocator.steps import resize
from services.allocator.steps.verdict import Situation
from shared.messages import AllocationDecided, CancelRequested, JobFinished, Resources
from tests.allocator.builders import AT_ONCE, Story, accepted, node, request, resumed

RULES = replace(AT_ONCE, policy="fragile")
JOBS = [f"j{number:02}" for number in range(20)]
Calls = list[list[str]]


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch, failures_set_aside: None) -> Callable[..., Calls]:
    """Return a function that makes policies which start every job.

    A policy raises if all of certain jobs are passed to it.
    """

    def made(*together: str, error: type[Exception] = OverflowError) -> Calls:
        calls: Calls = []

        def policy(cluster: Any, jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
            calls.append([job.request.job for job in jobs])
            if set(together) <= set(calls[-1]):
                raise error("(34, 'Numerical result out of range')")
            return [start_target(job, "starts") for job in jobs]

        monkeypatch.setitem(POLICIES, "fragile", policy)
        return calls

    return made


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch, failures_set_aside: None) -> tuple[set[str], Calls]:
    """Return the set of faulty jobs, and the calls of a policy that starts every job.

    It raises if any of the faulty jobs is passed to it.
    """
    bad, calls = set[str](), Calls()

    def policy(cluster: Any, jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
        calls.append([job.request.job for job in jobs])
        if bad.intersection(calls[-1]):
            raise OverflowError(f"because of {min(bad.intersection(calls[-1]))}")
        return [start_target(job, "starts") for job in jobs]

    monkeypatch.setitem(POLICIES, "fragile", policy)
    return bad, calls


def story(*names: str) -> Story:
    """Return waiting jobs with these names, and a node with room for all."""
    large = Resources(cpu=500, memory_gib=900)
    asked = Story(RULES).hear(replace(node(), allocatable=large, free=large))
    for uid, name in enumerate(names, 1):
        asked.hear(accepted(request(name), uid))
    return asked


def started(told: Story) -> list[str]:
    return sorted(
        action.job for action in told.decisions.actions if isinstance(action, AllocationDecided)
    )


@pytest.mark.parametrize("guilty", [("j00",), ("j07",), ("j19",)])
def test_a_job_that_makes_its_policy_raise_is_set_aside(
    fragile: Callable[..., Calls], guilty: tuple[str, ...]
) -> None:
    calls, told = fragile(*guilty), story(*JOBS)
    told.decide()

    assert started(told) == [name for name in JOBS if name not in guilty]
    assert [(each.job, each.policy) for each in told.decisions.failures] == [
        (f"default.{guilty[0]}", "fragile")
    ]
    assert (
        told.why(guilty[0])
        == "set aside: policy 'fragile' failed for this job: OverflowError: (34, 'Numerical result"
        " out of range')"
    )
    assert "in policy" in told.decisions.failures[0].traceback and len(calls) < 15


def test_one_of_two_jobs_that_fail_only_together_is_set_aside(
    fragile: Callable[..., Calls],
) -> None:
    fragile("j03", "j15")
    told = story(*JOBS)
    told.decide()

    assert len(started(told)) == len(JOBS) - 1 and len(told.decisions.failures) == 1


def test_a_policy_that_always_raises_keeps_its_jobs_at_little_cost(
    fragile: Callable[..., Calls],
) -> None:
    calls, told = fragile(), story(*JOBS)

    assert (
        told.decide() == ()
        and len(told.decisions.failures) == len(JOBS)
        and len(calls) == 2 * len(JOBS) - 1
    )
    calls.clear()
    assert (
        told.decide() == ()
        and len(told.decisions.failures) == len(JOBS)
        and len(calls) == 1 + failures.RETRIED
    )
    assert all(why.startswith("set aside: ") for why in told.decisions.why.values())


def test_a_policy_is_never_called_without_jobs(
    monkeypatch: pytest.MonkeyPatch, failures_set_aside: None
) -> None:
    def policy(cluster: Any, jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
        share = 100 // len(jobs)
        if any(job.request.job == "j07" for job in jobs):
            raise OverflowError("by design")
        return [start_target(job, f"starts with {share} %") for job in jobs]

    monkeypatch.setitem(POLICIES, "fragile", policy)
    told = story(*JOBS)
    told.decide()

    assert started(told) == [name for name in JOBS if name != "j07"]
    assert told.why("j07").endswith("OverflowError: by design")


def test_the_traceback_of_a_repeated_failure_does_not_grow(
    monkeypatch: pytest.MonkeyPatch, failures_set_aside: None
) -> None:
    wants: dict[str, Target] = {}

    def policy(cluster: Any, jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
        return [
            wants.setdefault(job.key, replace(start_target(job, "starts"), ps=99)) for job in jobs
        ]

    monkeypatch.setitem(POLICIES, "fragile", policy)
    told = story("j00", "j01", "j02")
    lengths = []
    for _ in range(20):
        told.decide()
        lengths.append(sorted(len(each.traceback) for each in told.decisions.failures))

    assert max(lengths[-1]) <= max(lengths[0]) and len(lengths[-1]) == 3


def test_the_search_for_many_faulty_jobs_ends(fragile: Callable[..., Calls]) -> None:
    calls = 0

    def compute(names: Sequence[str]) -> Sequence[str]:
        nonlocal calls
        calls += 1
        if names:
            raise ValueError
        return names

    search = FaultSearch()
    found = isolate(
        compute, [f"{number:04}" for number in range(2_000)], ValueError(), search, "fragile"
    )

    assert len(search.faulty) > 20 and len(search.faulty) + len(found.untried) == 2_000
    assert found.result is None and calls == failures.MOST_TRIES


def test_a_job_that_stays_faulty_costs_few_computations_a_pass(
    fragile: Callable[..., Calls],
) -> None:
    calls, told = fragile("j07"), story(*JOBS)
    told.decide()
    calls.clear()
    told.decide()

    assert [each.job for each in told.decisions.failures] == ["default.j07"] and len(
        calls
    ) == 2  # all jobs, then all but the faulty one


BAD, GOOD = (
    [f"bad{number:02}" for number in range(60)],
    [f"good{number:02}" for number in range(60)],
)


def test_many_faulty_jobs_do_not_delay_a_healthy_one_for_long(
    faulty: tuple[set[str], Calls],
) -> None:
    bad, calls = faulty
    bad.update(BAD)
    told = story(*BAD, *GOOD)
    for _ in range(4):
        calls.clear()
        told.decide()
        assert len(calls) <= 1 + failures.MOST_TRIES
        for name in {*GOOD} - {*started(told)}:
            assert "OverflowError" not in told.why(name), "no other job's error"
        if told.decisions.untried:
            assert told.decisions.wake_s == told.now + failures.UNTRIED_S
            told.now = told.decisions.wake_s

    assert all(told.state.jobs[f"default.{name}"].pending_generation for name in GOOD)
    assert sorted(each.job for each in told.decisions.failures) == [
        f"default.{name}" for name in BAD
    ]
    assert told.decisions.untried == ()


def test_an_untried_job_has_that_reason_and_is_tried_first(
    faulty: tuple[set[str], Calls],
) -> None:
    bad, _ = faulty
    bad.update(BAD)
    told = story(*BAD, "good")
    told.decide()
    assert (
        told.why("good")
        == "set aside for now: policy 'fragile' failed for other jobs and has not run for this"
        " one yet"
    )

    more = [f"more{number:02}" for number in range(60)]
    bad.update(more)
    for uid, name in enumerate(more, 100):
        told.hear(accepted(request(name, priority=1), uid))
    told.decide()
    assert "good" in started(told), "although as many faulty jobs were submitted before it in rank"


def test_faulty_jobs_are_retried_rarely_and_in_turn(
    faulty: tuple[set[str], Calls],
) -> None:
    bad, calls = faulty
    bad.update(BAD[:10])
    told = story(*BAD[:10], *GOOD)
    told.decide()
    told.decide()
    bad.remove("bad07")
    for _ in range(5):
        assert told.decisions.wake_s is not None
        calls.clear()
        told.decide(after_s=told.decisions.wake_s - told.now)
        assert len(calls) <= 5
        for each in told.decisions.failures:
            assert f"because of {each.job.partition('.')[2]}" in each.error, "each keeps its own"

    assert (
        told.state.jobs["default.bad07"].pending_generation == 1
        and len(told.decisions.failures) == 9
    )


def test_many_jobs_with_failing_steps_do_not_delay_a_healthy_one_for_long(
    faulty: tuple[set[str], Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    raises_for(monkeypatch, resize, "start_or_resize", *BAD)
    told = story(*BAD, *GOOD[:5])
    for _ in range(4):
        told.decide(after_s=failures.UNTRIED_S)

    assert all(told.state.jobs[f"default.{name}"].pending_generation for name in GOOD[:5])
    assert {each.job for each in told.decisions.failures} == {f"default.{name}" for name in BAD}


def test_the_total_search_effort_of_a_pass_is_bounded(
    faulty: tuple[set[str], Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, calls = faulty
    bad.update(BAD[:20])
    raises_for(monkeypatch, resize, "start_or_resize", *GOOD[:20])
    told = story(*BAD[:20], *GOOD)
    for _ in range(12):
        calls.clear()
        told.decide(after_s=failures.UNTRIED_S)
        assert len(calls) <= 1 + 2 * failures.MOST_TRIES, (
            "a computation, and at most one call in a computed pass"
        )

    assert all(told.state.jobs[f"default.{name}"].pending_generation for name in GOOD[20:])
    assert told.decisions.untried == () and len(told.decisions.failures) == 40


def test_a_running_job_keeps_its_size_while_its_policy_fails(
    fragile: Callable[..., Calls],
) -> None:
    fragile("absent")
    told = story("j00", "j01")
    told.decide()
    told.hear(resumed(1, "j00", uid=1), resumed(1, "j01", uid=2))
    fragile("j00")
    told.hear(accepted(request("j02"), 3)).decide()

    assert started(told) == ["j02"] and told.state.jobs["default.j00"].running == 1
    assert told.why("j00").startswith("set aside: ")


def test_a_faulty_job_can_be_cancelled(fragile: Callable[..., Calls]) -> None:
    fragile("j01")
    told = story("j00", "j01")
    told.decide()
    (end,) = told.hear(CancelRequested(job="j01")).decide()

    assert isinstance(end, JobFinished) and (end.job, end.outcome) == ("j01", "cancelled")
    assert told.decide(after_s=1.0) == () and told.decisions.failures == ()


def test_a_job_that_makes_a_step_raise_is_set_aside(
    fragile: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    fragile("absent")
    raises_for(monkeypatch, resize, "start_or_resize", "j05")
    told = story(*JOBS)
    told.decide()

    assert started(told) == [name for name in JOBS if name != "j05"]
    assert [(each.job, each.policy) for each in told.decisions.failures] == [("default.j05", "")]
    assert (
        told.why("j05")
        == "set aside: a step of the decision failed for this job: ZeroDivisionError: by design"
    )


def test_if_every_step_raises_only_cancelled_jobs_change(
    fragile: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("by design")

    fragile("absent")
    monkeypatch.setattr(decide, "free_nodes", broken)
    told = story("j00", "j01").hear(CancelRequested(job="j01"))
    told.decide()

    assert [(type(action), action.key()) for action in told.decisions.actions] == [
        (JobFinished, "default.j01")
    ]
    assert told.why("j00").startswith("set aside: a step of the decision failed for this job: ")


def test_strict_rules_raise_what_the_policy_raises(fragile: Callable[..., Calls]) -> None:
    fragile("j00")
    told = story("j00")

    with pytest.raises(OverflowError):
        decide.decide(told.state, told.now, replace(RULES, strict=True))


def test_an_error_without_text_is_a_failure() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("by design")

    assert (
        failures.failure_of("default.a", Silent(), "weir").error
        == "Silent: its message cannot be shown: ValueError"
    )


def test_an_error_of_any_length_is_shortened_in_a_reason() -> None:
    assert len(failures.failure_of("default.a", ValueError("x" * 10_000), "weir").reason) < 300
    assert Failure(job="default.a", error="e").where == "a step of the decision"


def raises_for(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, *guilty: str) -> None:
    before = getattr(module, name)

    def step(situation: Situation) -> Any:
        if situation.job.request.job in guilty:
            raise ZeroDivisionError("by design")
        return before(situation)

    monkeypatch.setattr(module, name, step)
