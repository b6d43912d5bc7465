"""Tests of the figures of a chaos run, on short sequences of messages."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from shared.bus.consumer import StoredMessage
from shared.bus.subjects import FACTS, subject_of
from shared.messages import (
    AllocationDecided,
    CheckpointSaved,
    GenerationAbandoned,
    JobAccepted,
    JobFinished,
    Message,
    ProgressReported,
    Span,
    Staleness,
    TaskExited,
    TrainingResumed,
)
from tests.bench.chaos import standing, tallies
from tests.bench.chaos.schedule import Fault
from tests.bench.chaos.tallies import Counted, Record
from tests.launcher.builders import request

UID = 7
BATCH = Span(start=16, min=16, max=16)
JOB: dict[str, Any] = {"job": "tiny", "uid": UID}


def at(stored_s: float, message: Message) -> StoredMessage:
    return StoredMessage(message, subject_of(message), FACTS, round(stored_s * 10), stored_s)


def resumed(generation: int, samples: int = 0) -> TrainingResumed:
    return TrainingResumed(**JOB, generation=generation, step=samples, samples=samples)


def report(generation: int, samples: int, staleness: Staleness | None = None) -> ProgressReported:
    fields: dict[str, Any] = {"epoch": 0, "total_samples": 100, "samples_per_second": 1.0}
    return ProgressReported(
        **JOB,
        generation=generation,
        step=samples,
        samples=samples,
        staleness=staleness,
        **fields,
    )


def saved(generation: int, samples: int, waited_s: float = 0.0) -> CheckpointSaved:
    fields: dict[str, Any] = {"path": "/c", "seconds": 0.5, "waited_s": waited_s}
    return CheckpointSaved(**JOB, generation=generation, step=samples, samples=samples, **fields)


def lost(pod: str, role: Any = "worker") -> TaskExited:
    return TaskExited(**JOB, pod=pod, pod_uid=f"uid-{pod}", role=role, serial=1, node="n")


def decided(revision: int, generation: int) -> AllocationDecided:
    return AllocationDecided(
        **JOB,
        generation=generation,
        revision=revision,
        request=request(),
        tasks=(),
        batch=1,
        reason="-",
    )


def test_examples_applied_too_seldom_are_lost_and_too_often_are_repeated() -> None:
    assert tallies.compare_counts([3, 2, 5], epochs=3, bound=16) == Counted(
        lost=1, twice=2, bound=16
    )
    assert tallies.compare_counts([3, 3], epochs=3, bound=0) == Counted(lost=0, twice=0, bound=0)


def test_workers_that_make_updates_together_must_have_the_updates_of_one_process() -> None:
    together, alone = [
        JobAccepted(
            **JOB, request=replace(request(), consistency=mode, batch=BATCH), accepted_s=1.0
        )
        for mode in ("global-batch", "async")
    ]
    over = JobFinished(**JOB, outcome="succeeded", step=48)
    assert tallies.updates_wrong([at(1, together), at(2, over)], epochs=3, examples=250) == ""
    wrong = tallies.updates_wrong(
        [at(1, together), at(2, replace(over, step=47))], epochs=3, examples=250
    )
    assert wrong == "tiny: 47 updates in place of 48"
    assert tallies.updates_wrong([at(1, alone), at(2, replace(over, step=47))], 3, 250) == ""


def test_a_row_has_what_the_updates_of_its_example_have_added() -> None:
    rows = [3.0] * 240 + [3 + 0.6] * 9 + [3 + 3 * 0.6] + [0.0] * 100
    assert tallies.rows_wrong(rows, 3, 250, batch=16) == 0
    assert tallies.rows_wrong([2.0, 3.0, 4.0, 6.0, *rows[4:]], 3, 250, batch=16) == 3
    assert tallies.rows_wrong([3.0, 2.0], 3, 2, batch=2) == 1


def test_a_worker_reported_lost_twice_counts_once_and_a_ps_does_not_count() -> None:
    log = [at(1, lost("a")), at(2, lost("a")), at(3, lost("b")), at(4, lost("c", "ps"))]
    assert tallies.workers_lost(log) == 2


def test_dropped_gradients_are_those_of_all_reports() -> None:
    log = [
        at(1, report(1, 16, staleness=Staleness(dropped=2))),
        at(2, report(1, 32, staleness=Staleness(mean=1.0))),
        at(3, report(1, 48)),
    ]
    assert tallies.gradients_dropped(log) == 2


def test_updates_after_the_checkpoint_are_redone() -> None:
    log = [at(0, resumed(1)), at(10, saved(1, 20)), at(12.9, report(1, 26)), at(20, resumed(2, 21))]
    assert tallies.redone_s(log, beats=[9.5, 11.0, 12.5, 21.0]) == [3.0]


def test_after_a_drain_nothing_is_redone() -> None:
    log = [at(0, resumed(1)), at(9, report(1, 20)), at(10, saved(1, 20)), at(11, resumed(2, 21))]
    assert tallies.redone_s(log, beats=[9.0]) == [0.0]


def test_before_the_first_checkpoint_everything_is_redone() -> None:
    log = [at(2, resumed(1)), at(5, report(1, 20)), at(9, resumed(2))]
    assert tallies.redone_s(log, beats=[3.0, 4.5]) == [2.5]


def test_redone_updates_count_for_the_loss_that_caused_them() -> None:
    log = [
        at(0, resumed(1)),
        at(10, saved(1, 20)),
        at(30, resumed(2, 21)),
        at(33, report(2, 30)),
        at(40, resumed(3, 21)),
    ]
    assert tallies.redone_s(log, beats=[9.5, 31.0, 32.5, 41.0]) == [0.0, 2.5]
    assert tallies.redone_s(log, beats=[9.5, 31.0, 32.5, 41.0], unsaved=[(35, 45)]) == [0.0]


def test_a_fault_counts_only_the_updates_that_it_caused_to_be_redone() -> None:
    log = [
        at(0, resumed(1)),
        at(10, saved(1, 20)),
        at(12.9, report(1, 26)),
        at(20, resumed(2, 21)),
        at(25, report(2, 40)),
        at(40, resumed(3, 21)),
    ]
    beats = [9.5, 11.0, 12.5, 21.0, 24.5]
    assert tallies.redone_between_s(log, beats, 15.0, 30.0) == 3.0
    assert tallies.redone_between_s(log, beats, 30.0, 50.0) == 4.5
    assert tallies.redone_between_s(log, beats, 41.0, 50.0) == 0.0


def test_a_pod_with_its_own_exit_code_failed_and_a_killed_or_evicted_one_did_not() -> None:
    ends = {
        "a": (1, "Error"),
        "b": (137, "Error"),
        "c": (1, "Evicted"),
        "d": (0, "Completed"),
        "e": (137, "OOMKilled"),
    }
    log = [
        at(1, replace(lost(pod), exit_code=code, reason=reason))
        for pod, (code, reason) in ends.items()
    ]
    assert tallies.own_failures([*log, *log]) == ["a", "e"]


def test_the_longest_commit_delay_is_that_of_a_checkpoint_of_that_time() -> None:
    log = [
        at(10, saved(1, 20, 9.0)),
        at(20, saved(1, 30, 6.5)),
        at(24, saved(1, 40, 0.1)),
        at(30, saved(1, 50, 7.0)),
    ]
    assert tallies.commit_wait_s(log, 15.0, 25.0) == 6.5
    assert tallies.commit_wait_s(log, 40.0, 50.0) == 0.0


def test_the_checkpoint_interval_is_measured_within_one_generation() -> None:
    log = [at(1, saved(1, 10)), at(5, saved(1, 20)), at(9.5, saved(1, 30)), at(30, saved(2, 40))]
    assert tallies.interval_s(log, every_s=4.0) == 4.25
    assert tallies.interval_s(log[:1], every_s=4.0) == 4.0


def test_a_gap_lasts_from_the_loss_to_the_recovery_or_the_end() -> None:
    assert tallies.longest_gap_s([1.0, 2.0, 2.5], 0.5, 4.0) == 1.5
    assert tallies.longest_gap_s([], 0.0, 4.0) == 4.0


def test_missing_revisions_and_unfinished_generations_are_reported() -> None:
    log = [
        at(1, decided(1, 1)),
        at(2, resumed(1)),
        at(3, decided(3, 2)),
        at(4, decided(4, 3)),
        at(5, resumed(3)),
    ]
    assert tallies.revisions_missing(log) == 1
    assert tallies.endless(log) == [2]
    assert (
        tallies.endless([*log, at(6, GenerationAbandoned(**JOB, generation=2, reason="-"))]) == []
    )


def test_training_has_recovered_once_it_resumes_or_a_second_report_has_more_updates() -> None:
    log = [at(1, report(1, 5)), at(2, report(1, 6)), at(3, report(1, 6)), at(4, report(1, 7))]
    assert standing.applies_again_s(log, 0.5) == 2
    assert standing.applies_again_s(log, 1.5) == 4
    assert standing.applies_again_s(log, 3.5) is None
    assert standing.applies_again_s([*log, at(5, resumed(2, 3))], 3.5) == 5


def test_recovery_times_are_grouped_by_kind_without_faults_that_did_not_recover() -> None:
    fault = Fault(1, "ps killed", "child", "at rest", 0.0, 1.0, 0)
    records = [
        Record(fault=fault, hit="x", struck_s=10.0, recovered_s=13.0),
        Record(fault=fault, hit="x", struck_s=10.0, recovered_s=15.0),
        Record(fault=fault, hit="x", struck_s=10.0),
    ]
    assert tallies.recovery(records) == {"ps killed": {"median": 4.0, "max": 5.0}}
