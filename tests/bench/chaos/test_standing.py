"""Where a job stands, from what was heard of it."""

from __future__ import annotations

from shared.messages import ClusterSpecPublished, GenerationAbandoned, TaskAddress
from tests.bench.chaos import standing
from tests.bench.chaos.test_tallies import JOB, UID, at, decided, lost, report, resumed
from tests.launcher.builders import request


def published(generation: int, *pods: str) -> ClusterSpecPublished:
    tasks = tuple(
        TaskAddress(role="worker", index=n, pod=pod, host="h", port=1) for n, pod in enumerate(pods)
    )
    return ClusterSpecPublished(
        **JOB, generation=generation, revision=1, request=request(), tasks=tasks, batch=1
    )


RUNS = [at(1, decided(1, 1)), at(2, published(1, "b", "a")), at(3, resumed(1))]


def test_a_job_is_stable_while_nothing_is_in_flight_and_no_task_is_lost() -> None:
    assert standing.rests(RUNS)
    assert not standing.rests(RUNS[:2])
    assert not standing.rests([*RUNS, at(4, decided(2, 2))])
    assert standing.rests(
        [*RUNS, at(4, decided(2, 2)), at(5, GenerationAbandoned(**JOB, generation=2, reason="-"))]
    )
    assert not standing.rests([*RUNS, at(4, lost("a"))])
    assert standing.rests([*RUNS, at(4, lost("somebody-else"))])


def test_the_tasks_of_a_job_are_those_of_its_running_generation() -> None:
    assert [task.pod for task in standing.tasks([*RUNS, at(4, published(2, "c"))])] == ["a", "b"]
    assert standing.tasks(RUNS, "ps") == []


def test_a_repeated_message_counts_at_the_time_of_the_first() -> None:
    log = standing.of_job([*RUNS, at(9, resumed(1)), at(5, report(1, 20))], UID)
    assert [each.stored_s for each in log] == [1, 2, 3, 5]
    assert standing.of_job(RUNS, UID + 1) == []


def test_the_progress_of_a_job_comes_from_its_last_report() -> None:
    assert standing.samples(RUNS) == (0, 1)
    assert standing.samples([*RUNS, at(4, report(1, 20)), at(5, report(1, 30))]) == (30, 100)
