"""A policy or a step that raises: the job that causes it is set aside, and all others are decided in the same pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from services.allocator import change, decide, failures
from services.allocator.failures import Failure, isolate
from services.allocator.job import Job
from services.allocator.policies import POLICIES, JobSeen, Want
from services.allocator.policies.contract import at_start
from shared.messages import AllocationDecided, CancelRequested, JobFinished, Resources
from tests.allocator.builders import AT_ONCE, Story, accepted, node, request, resumed

RULES = replace(AT_ONCE, policy="fragile")
JOBS = [f"j{number:02}" for number in range(20)]
Calls = list[list[str]]


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch, failures_set_aside: None) -> Callable[..., Calls]:
    """A policy that starts every job, and raises where it sees all of certain jobs."""

    def made(*together: str, error: type[Exception] = OverflowError) -> Calls:
        calls: Calls = []

        def policy(cluster: Any, jobs: Sequence[JobSeen], now: float) -> list[Want]:
            calls.append([job.request.job for job in jobs])
            if set(together) <= set(calls[-1]):
                raise error("(34, 'Numerical result out of range')")
            return [at_start(job, "starts") for job in jobs]

        monkeypatch.setitem(POLICIES, "fragile", policy)
        return calls

    return made


def story(*names: str) -> Story:
    """These jobs wait, and there is room for all."""
    large = Resources(cpu=500, memory_gib=900)
    asked = Story(RULES).hear(replace(node(), allocatable=large, free=large))
    for uid, name in enumerate(names, 1):
        asked.hear(accepted(request(name), uid))
    return asked


def started(told: Story) -> list[str]:
    return sorted(action.job for action in told.decisions.actions if isinstance(action, AllocationDecided))


@pytest.mark.parametrize("guilty", [("j00",), ("j07",), ("j19",)])
def test_the_job_that_makes_a_policy_raise_is_set_aside_and_the_others_start(
    fragile: Callable[..., Calls], guilty: tuple[str, ...]
) -> None:
    calls, told = fragile(*guilty), story(*JOBS)
    told.decide()

    assert started(told) == [name for name in JOBS if name not in guilty]
    assert [(each.job, each.policy) for each in told.decisions.failures] == [(f"default.{guilty[0]}", "fragile")]
    assert told.why(guilty[0]) == (
        "set aside: policy 'fragile' failed with it: OverflowError: (34, 'Numerical result out of range')"
    )
    assert "in policy" in told.decisions.failures[0].traceback and len(calls) < 15


def test_of_two_jobs_that_fail_only_together_one_is_set_aside(fragile: Callable[..., Calls]) -> None:
    fragile("j03", "j15")
    told = story(*JOBS)
    told.decide()

    assert len(started(told)) == len(JOBS) - 1 and len(told.decisions.failures) == 1


def test_a_policy_that_always_raises_leaves_its_jobs_as_they_are_at_little_cost(fragile: Callable[..., Calls]) -> None:
    calls, told = fragile(), story(*JOBS)

    assert told.decide() == () and len(told.decisions.failures) == len(JOBS) and len(calls) == 2
    assert all(why.startswith("set aside: ") for why in told.decisions.why.values())


def test_the_search_for_many_faulty_jobs_ends(fragile: Callable[..., Calls]) -> None:
    calls = 0

    def compute(names: Sequence[str]) -> Sequence[str]:
        nonlocal calls
        calls += 1
        if names:
            raise ValueError
        return names

    found = isolate(compute, [f"{number:04}" for number in range(2_000)], ValueError())

    assert len(found.faulty) == 2_000 and found.result == [] and calls <= failures.MOST_TRIES


def test_a_job_that_stays_faulty_costs_few_computations_a_pass(fragile: Callable[..., Calls]) -> None:
    calls, told = fragile("j07"), story(*JOBS)
    told.decide()
    calls.clear()
    suspects = [each.job for each in told.decisions.failures]
    again = decide.decide(told.state, told.now, RULES, told.decisions.wishes, suspects)

    assert [each.job for each in again.failures] == ["default.j07"] and len(calls) == 4  # all, none, the sound, it


def test_a_job_that_runs_keeps_what_it_has_while_its_policy_fails(fragile: Callable[..., Calls]) -> None:
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


def test_a_job_that_makes_a_step_raise_is_set_aside_and_the_others_start(
    fragile: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    fragile("absent")
    raises_for(monkeypatch, change, "changed", "j05")
    told = story(*JOBS)
    told.decide()

    assert started(told) == [name for name in JOBS if name != "j05"]
    assert [(each.job, each.policy) for each in told.decisions.failures] == [("default.j05", "")]
    assert told.why("j05") == "set aside: a step of the decision failed with it: ZeroDivisionError: by design"


def test_where_all_steps_raise_nothing_changes_but_what_is_cancelled_ends(
    fragile: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("by design")

    fragile("absent")
    monkeypatch.setattr(decide, "free_nodes", broken)
    told = story("j00", "j01").hear(CancelRequested(job="j01"))
    told.decide()

    assert [(type(action), action.key()) for action in told.decisions.actions] == [(JobFinished, "default.j01")]
    assert told.why("j00").startswith("set aside: a step of the decision failed with it: ")


def test_strict_rules_raise_what_the_policy_raises(fragile: Callable[..., Calls]) -> None:
    fragile("j00")
    told = story("j00")

    with pytest.raises(OverflowError):
        decide.decide(told.state, told.now, replace(RULES, strict=True))


def test_an_error_of_any_length_is_shortened_in_a_reason() -> None:
    assert len(failures.failure("default.a", ValueError("x" * 10_000), "weir").reason) < 300
    assert Failure(job="default.a", error="e").where == "a step of the decision"


def raises_for(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, guilty: str) -> None:
    before = getattr(module, name)

    def step(job: Job, *more: Any) -> Any:
        if job.request.job == guilty:
            raise ZeroDivisionError("by design")
        return before(job, *more)

    monkeypatch.setattr(module, name, step)
