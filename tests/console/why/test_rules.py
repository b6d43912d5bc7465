"""Tests of the rules for the direct cause of each message, and of the index of known messages."""

from __future__ import annotations

from typing import Any

import pytest

from services.console.log_entry import Entry
from services.console.why.rules import RULES, Known, cause_of, key_of, uid_of
from shared.messages import (
    BY_PERSONS,
    MESSAGES,
    AllocationDecided,
    CancelRequested,
    CapacityChanged,
    CheckpointFailed,
    CheckpointSkipped,
    ClaimsChanged,
    ForgetRequested,
    GenerationAbandoned,
    JobRejected,
    ProgressReported,
    QuotaChanged,
    Resources,
    ServiceTroubled,
    TaskExited,
    TaskLeaving,
    TaskUpdated,
)
from tests.console.why.story import LARGE, SMALL, Growth, Log, node
from tests.shared.sample_messages import request


@pytest.fixture
def grown() -> Growth:
    return Growth()


def led_to(entry: Entry, log: Log) -> list[Entry]:
    return list(cause_of(entry, log.known()))


def test_an_acceptance_is_caused_by_its_request(grown: Growth) -> None:
    assert led_to(grown.job.accepted, grown.log) == [grown.job.requested]
    assert led_to(grown.job.requested, grown.log) == []


def test_a_rejection_is_caused_by_its_request() -> None:
    log = Log(orders=40)
    asked = log.say(request(job="x"))

    assert led_to(log.say(JobRejected(job="x", uid=asked.sequence, reasons=("no",))), log) == [
        asked
    ]


def test_a_decision_is_caused_by_its_event_and_the_first_by_the_acceptance(grown: Growth) -> None:
    assert led_to(grown.first, grown.log) == [grown.job.accepted]
    assert led_to(grown.second, grown.log) == [grown.freed]


def test_a_task_is_caused_by_the_first_decision_that_has_it(grown: Growth) -> None:
    assert [led_to(entry, grown.log) for entry in grown.stood] == [[grown.first]] * 6
    assert [led_to(entry, grown.log) for entry in grown.newcomer] == [[grown.second]] * 2


def test_a_cluster_spec_is_caused_by_the_last_ready_task(grown: Growth) -> None:
    assert led_to(grown.spec1, grown.log) == [grown.first, grown.stood[-1]]
    assert led_to(grown.spec2, grown.log) == [grown.second, grown.newcomer[1]]


def test_a_hand_over_is_caused_by_the_last_prepared_task(grown: Growth) -> None:
    assert [led_to(entry, grown.log) for entry in grown.prepared2] == [[grown.spec2]] * len(LARGE)
    assert led_to(grown.ordered, grown.log) == [grown.prepared2[-1]]


def test_a_resumption_is_caused_by_the_order_and_the_drained_checkpoint(grown: Growth) -> None:
    assert led_to(grown.drained, grown.log) == [grown.ordered]
    assert led_to(grown.trains2, grown.log) == [grown.ordered, grown.drained]
    assert led_to(grown.trains1, grown.log) == [grown.began]


def test_reports_and_periodic_checkpoints_are_caused_by_the_resumption(
    grown: Growth,
) -> None:
    assert led_to(grown.reports1[3], grown.log) == [grown.trains1]
    assert led_to(grown.job.saved(2, 90), grown.log) == [grown.trains2]


def test_a_success_is_caused_by_the_last_report(grown: Growth) -> None:
    assert led_to(grown.end, grown.log) == [grown.reports2[-1]]


def test_a_cancellation_is_caused_by_its_request(grown: Growth) -> None:
    wish = grown.log.say(CancelRequested(job="digits", request_id="a"))

    assert led_to(grown.job.finished(2, "cancelled"), grown.log) == [wish]


def test_a_failure_is_caused_by_the_task_that_ended(grown: Growth) -> None:
    ended = grown.job.task(TaskExited, 2, "worker", 3, node="n1", exit_code=1)

    assert led_to(grown.job.finished(2, "failed"), grown.log) == [grown.trains2, ended]


def test_an_exit_is_caused_by_the_notice_before_it(grown: Growth) -> None:
    notice = grown.job.task(TaskLeaving, 2, "ps", 1, node="n1", why="Evicted")
    other = grown.job.task(TaskExited, 2, "worker", 3, node="n1", exit_code=1)

    assert led_to(grown.job.task(TaskExited, 2, "ps", 1, node="n1"), grown.log) == [notice]
    assert led_to(other, grown.log) == led_to(notice, grown.log) == []


def test_a_repair_is_caused_by_the_exit_of_its_pod(grown: Growth) -> None:
    ended = grown.job.task(TaskExited, 2, "worker", 3, node="n1", exit_code=1)

    assert led_to(grown.job.decided(3, SMALL, "digits-worker-3"), grown.log) == [ended]


@pytest.mark.parametrize("cause", ["memory", "digits-ps-1"])
def test_a_decision_by_usage_is_caused_by_the_last_report(grown: Growth, cause: str) -> None:
    assert led_to(grown.job.decided(3, LARGE, cause), grown.log) == [grown.reports2[-1]]


@pytest.mark.parametrize("cause", ["-", "n9-uid.unread", "document 3"])
def test_an_unread_cause_is_not_guessed(grown: Growth, cause: str) -> None:
    assert led_to(grown.job.decided(3, LARGE, cause), grown.log) == []


def test_an_abandonment_is_caused_by_the_event_before_it(grown: Growth) -> None:
    third = grown.job.decided(3, SMALL, "-")
    alone = grown.log.say(GenerationAbandoned(**grown.job.about(3), reason="unschedulable"))
    failed = grown.job.prepared(3, "chief", 0, error="NotEnoughMemory")
    after = grown.log.say(GenerationAbandoned(**grown.job.about(3), reason="no room"))

    assert led_to(alone, grown.log) == [third]
    assert led_to(after, grown.log) == [third, failed]


def test_a_resize_in_place_is_caused_by_its_revision(grown: Growth) -> None:
    third = grown.job.decided(2, LARGE, "-")
    changed = grown.job.task(TaskUpdated, 2, "ps", 1, resources=Resources(cpu=2.0), revision=3)

    assert led_to(changed, grown.log) == [third]


def test_a_failed_final_checkpoint_is_caused_by_the_hand_over(grown: Growth) -> None:
    lost: dict[str, Any] = {"step": 90, "path": "/c", "cause": "full", "remedy": "room"}
    failed = grown.log.say(CheckpointFailed(**grown.job.about(1), **lost, successor=2))
    periodic = grown.log.say(CheckpointFailed(**grown.job.about(2), **lost))

    assert led_to(failed, grown.log) == [grown.ordered]
    assert led_to(periodic, grown.log) == [grown.trains2]


def test_a_blocking_save_is_caused_by_the_notice_before_it(grown: Growth) -> None:
    notice = grown.job.task(TaskLeaving, 2, "ps", 1, node="n1", why="Evicted")

    assert led_to(grown.job.saved(2, 90, stood="a task leaves"), grown.log) == [
        grown.trains2,
        notice,
    ]


def test_a_skipped_checkpoint_is_caused_by_the_hand_over(grown: Growth) -> None:
    skipped = grown.log.say(CheckpointSkipped(**grown.job.about(2), path="/c", cause="it is torn"))

    assert led_to(skipped, grown.log) == [grown.ordered]


def test_a_node_fact_is_caused_by_the_decision_that_added_or_removed_a_pod(
    grown: Growth,
) -> None:
    came = grown.log.say(node("one", "digits-worker-3"))
    third = grown.job.decided(3, SMALL, "-")
    went = grown.log.say(node("none"))

    assert led_to(came, grown.log) == [grown.second]
    assert led_to(went, grown.log) == [third]


def test_a_node_fact_is_caused_by_the_end_of_a_job() -> None:
    grown = Growth()
    grown.log.say(node("two", "digits-ps-1", "digits-worker-3"))
    over = grown.job.finished(2, "failed")

    assert led_to(grown.log.say(node("empty")), grown.log) == [over]


def test_a_node_fact_caused_by_other_pods_is_a_root(grown: Growth) -> None:
    assert led_to(grown.freed, grown.log) == led_to(grown.full, grown.log) == []
    stranger = grown.log.say(node("strange", "other-ps-1", job="other"))
    assert led_to(stranger, grown.log) == []


def test_every_message_kind_has_a_rule_or_is_a_root() -> None:
    facts_of_the_world = {QuotaChanged, ClaimsChanged, TaskLeaving, ServiceTroubled}
    assert set(MESSAGES) - set(RULES) == {
        *BY_PERSONS,
        CancelRequested,
        ForgetRequested,
        *facts_of_the_world,
    }
    assert set(RULES) - set(MESSAGES) == set() and CapacityChanged in RULES


def test_known_messages_are_unique_and_ordered() -> None:
    told = Growth().log.entries

    assert Known([*reversed(told), *told]).entries == told


def test_the_newest_message_is_the_last_before_the_event() -> None:
    grown = Growth()
    known, uid = grown.log.known(), grown.job.requested.sequence
    third = grown.reports1[2]

    assert known.newest(ProgressReported, uid, third.order) == grown.reports1[1]
    assert (
        known.newest(ProgressReported, uid, third.order, lambda said: said.step < 20)
        == grown.reports1[0]
    )
    assert known.newest(ProgressReported, uid, grown.trains1.order) is None
    assert known.first(AllocationDecided, uid, grown.second.order) == grown.second


def test_a_message_is_found_by_job_by_uid_and_by_node() -> None:
    grown = Growth()
    known = grown.log.known()

    assert (
        known.of(AllocationDecided, "default.digits")
        == known.of(AllocationDecided, 1)
        == [grown.first, grown.second]
    )
    assert known.of(CapacityChanged, "n1") == [grown.full, grown.freed]
    assert (uid_of(grown.job.requested), uid_of(grown.second), uid_of(grown.full)) == (1, 1, 0)
    assert (key_of(grown.second), key_of(grown.full)) == ("default.digits", "")
