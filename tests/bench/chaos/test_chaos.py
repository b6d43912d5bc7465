"""Tests of the schedule of faults, and of the state of a job."""

from __future__ import annotations

from shared.messages import ClusterSpecPublished, GenerationAbandoned, TaskAddress
from tests.bench.chaos import standing
from tests.bench.chaos.schedule import BY_NAME, INSIDE, count_kinds, schedule
from tests.bench.chaos.test_tallies import JOB, UID, at, decided, lost, report, resumed
from tests.launcher.builders import request

FAULTS, LEAST, TRAINING, INSIDE_LEAST = 92, 4, 30, 10


def test_an_hour_has_four_faults_of_every_kind_and_more_of_the_hard_ones() -> None:
    for seed in range(1, 20):
        faults = schedule(seed, FAULTS)
        assert count_kinds(faults) == dict.fromkeys(BY_NAME, LEAST)
        assert sum(fault.trains for fault in faults) >= TRAINING
        assert sum(fault.inside for fault in faults) >= INSIDE_LEAST


def test_four_faults_of_a_kind_hit_each_of_its_targets() -> None:
    faults = schedule(1, FAULTS)
    for kind in BY_NAME.values():
        assert {fault.who for fault in faults if fault.kind == kind.name} == {*kind.who}


def test_a_fault_is_scheduled_only_where_it_is_allowed() -> None:
    for fault in schedule(2, FAULTS):
        assert any(fault.moment in moments for moments in BY_NAME[fault.kind].moments)
        assert fault.inside == (fault.moment in INSIDE)


def test_the_schedule_is_a_function_of_the_seed() -> None:
    assert schedule(3, 12) == schedule(3, 12) != schedule(4, 12)
    assert len({fault.kind for fault in schedule(3, 12)}) == 12


def test_a_short_run_may_name_its_kinds_of_faults() -> None:
    assert count_kinds(schedule(1, 6, ("ps killed", "disk full"))) == {
        "ps killed": 3,
        "disk full": 3,
    }


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
