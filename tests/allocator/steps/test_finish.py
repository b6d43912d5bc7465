"""Tests of the failure budgets: the allocator ends a job that keeps failing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.settings import Rules
from services.trainer.pod.service import EXIT_BUS_LOST
from shared.messages import AllocationDecided, GenerationAbandoned, JobFinished, TaskPlan
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    abandoned,
    accepted,
    exited,
    node,
    progress,
    resumed,
)

KILLED, LOST_ANOTHER, LOST_BUS, TERMINATED = 137, 138, EXIT_BUS_LOST, 143
RULES = replace(AT_ONCE, max_failures=3, max_start_failures=2)


def started(rules: Rules = RULES) -> tuple[Story, AllocationDecided]:
    """Return a job whose generation 1 trains: a chief, a ps and a worker."""
    story = Story(replace(rules, policy="static")).hear(node(), accepted())
    first = story.decided()
    story.hear(resumed(1))
    return story, first


def of_role(decision: AllocationDecided, role: str) -> TaskPlan:
    return next(task for task in decision.tasks if task.role == role)


def replaced(
    story: Story, running: AllocationDecided, role: str, code: int | None, reason: str = "Error"
) -> object:
    """End a task of the running generation; return the action that is decided."""
    gone = exited(of_role(running, role), code, reason, running.generation)
    (action,) = story.hear(gone).decide()
    return action


def comes_to_train(story: Story, action: object) -> AllocationDecided:
    assert isinstance(action, AllocationDecided)
    story.hear(resumed(action.generation))
    return action


@pytest.mark.parametrize(
    ("code", "reason", "charged"),
    [
        (1, "Error", "failed generation 1 of 3 within 1 h"),
        (KILLED, "OOMKilled", "failed generation 1 of 3 within 1 h"),
        (KILLED, "Error", "killed generation 1 of 3 without progress of the job"),
        (TERMINATED, "Error", "not the job's fault, so it counts against no budget"),
        (LOST_BUS, "Error", "not the job's fault, so it counts against no budget"),
        (KILLED, "Evicted", "not the job's fault, so it counts against no budget"),
        (None, "NodeLost", "not the job's fault, so it counts against no budget"),
    ],
)
def test_a_replacement_names_its_failure_budget(
    code: int | None, reason: str, charged: str
) -> None:
    story, running = started()
    again = replaced(story, running, "worker", code, reason)
    assert isinstance(again, AllocationDecided) and again.reason.endswith(f"; replaced ({charged})")


@pytest.mark.parametrize("role", ["chief", "ps", "worker"])
@pytest.mark.parametrize("code", [KILLED, LOST_ANOTHER])
def test_a_job_without_progress_fails_after_repeated_kills(role: str, code: int) -> None:
    story, running = started()
    story.hear(progress(1, done=640, total=6400, speed=10))
    for _ in range(2):
        running = comes_to_train(story, replaced(story, running, role, code))
        story.hear(progress(running.generation, done=320, total=6400, speed=10))

    finished = replaced(story, running, role, code)

    assert isinstance(finished, JobFinished) and finished.outcome == "failed"
    assert finished.cause.startswith(
        "3 generations were killed without progress beyond 640 examples; the last: mnist-"
    )
    assert f"exit code {code}" in finished.cause and finished.samples == 320


def test_a_job_with_progress_may_lose_tasks_any_number_of_times() -> None:
    story, running = started()
    for times in range(1, 10):
        story.hear(progress(running.generation, done=64 * times, total=6400, speed=10))
        running = comes_to_train(story, replaced(story, running, "ps", KILLED))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (KILLED, "Evicted"),
        (KILLED, "Deleted"),
        (None, "NodeLost"),
        (TERMINATED, "Error"),
        (LOST_BUS, "Error"),
    ],
)
def test_evictions_and_bus_losses_never_count_as_failures(code: int | None, reason: str) -> None:
    story, running = started()
    for _ in range(10):
        running = comes_to_train(story, replaced(story, running, "ps", code, reason))


def test_an_exit_caused_by_another_tasks_eviction_never_counts() -> None:
    """In a drain without room elsewhere the chief waits for a next generation and then exits."""
    story, running = started()
    for _ in range(10):
        evicted = exited(of_role(running, "worker"), TERMINATED, "Evicted", running.generation)
        left_alone = exited(of_role(running, "chief"), LOST_ANOTHER, "Error", running.generation)
        (again,) = story.hear(evicted, left_alone).decide()
        running = comes_to_train(story, again)
        assert running.reason.endswith("(not the job's fault, so it counts against no budget)")


def test_a_kill_during_another_tasks_eviction_counts() -> None:
    story, running = started()
    evicted = exited(of_role(running, "worker"), TERMINATED, "Evicted", running.generation)
    (again,) = story.hear(
        evicted, exited(of_role(running, "chief"), KILLED, "Error", running.generation)
    ).decide()
    assert isinstance(again, AllocationDecided)
    assert again.reason.endswith("(killed generation 1 of 3 without progress of the job)")


def test_a_task_failure_counts_despite_progress() -> None:
    story, running = started()
    for times in range(1, 3):
        story.hear(progress(running.generation, done=64 * times, total=6400, speed=10))
        running = comes_to_train(story, replaced(story, running, "worker", 1))

    gone = replace(
        exited(of_role(running, "worker"), 1, "Error", running.generation),
        message="one\ntwo\nthree\n",
    )
    (finished,) = story.hear(gone).decide()

    assert isinstance(finished, JobFinished)
    first, *log = finished.cause.splitlines()
    assert first.startswith(
        "3 generations failed within 1 h; the last: mnist-worker-"
    ) and first.endswith("exit code 1, three")
    assert log == ["one", "two", "three"]


def test_failures_expire_after_the_window() -> None:
    story, running = started(replace(RULES, failure_window_s=600.0))
    for _ in range(10):
        story.decide(after_s=400.0)
        running = comes_to_train(story, replaced(story, running, "worker", 1))

    (finished,) = story.hear(
        exited(of_role(running, "worker"), 1, "Error", running.generation)
    ).decide(after_s=100.0)
    assert isinstance(finished, JobFinished)
    assert finished.cause.startswith("3 generations failed within 10 min; the last: mnist-worker-")


def test_several_failed_tasks_of_one_generation_are_one_failure() -> None:
    story, running = started()
    for role in ("chief", "ps", "worker"):
        story.hear(exited(of_role(running, role), 1, "Error", running.generation))
    (action,) = story.decide()
    assert isinstance(action, AllocationDecided)


# ------------------------------------------------------------ generations that never train


def hung(generation: int, stood: bool = True) -> GenerationAbandoned:
    return replace(
        abandoned(generation), stood=stood, reason="not prepared within 180 s: mnist-chief-0"
    )


def test_a_stalled_job_whose_generations_all_hang_fails() -> None:
    story, running = started()
    action = replaced(story, running, "ps", None, "NodeLost")
    for _ in range(2):
        assert isinstance(action, AllocationDecided)
        (action,) = story.hear(hung(action.generation)).decide(after_s=1000)

    assert isinstance(action, JobFinished) and action.outcome == "failed"
    assert action.cause == "not started again in 2 tries; not prepared within 180 s: mnist-chief-0"


def test_a_training_job_may_retry_any_number_of_times() -> None:
    grown = Story(replace(RULES, policy="config-manager")).hear(node(cpu=3), accepted())
    grown.decided()
    grown.hear(resumed(1), node("n2", cpu=2))
    for _ in range(10):
        grown.hear(hung(grown.decided(after_s=1000).generation))


def test_a_job_without_room_for_new_tasks_waits() -> None:
    story, running = started()
    action = replaced(story, running, "ps", None, "NodeLost")
    for _ in range(10):
        assert isinstance(action, AllocationDecided)
        (action,) = story.hear(hung(action.generation, stood=False)).decide(after_s=1000)


def test_a_resumed_generation_resets_the_failures() -> None:
    story, running = started()
    for _ in range(5):
        action = replaced(story, running, "ps", None, "NodeLost")
        assert isinstance(action, AllocationDecided)
        (again,) = story.hear(hung(action.generation)).decide(after_s=1000)
        running = comes_to_train(story, again)
