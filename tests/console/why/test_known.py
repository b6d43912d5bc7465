"""What was read, by what one asks of it."""

from __future__ import annotations

from services.console.why.known import Known, key_of, uid_of
from shared.messages import AllocationDecided, CapacityChanged, ProgressReported
from tests.console.why.story import Growth


def test_what_is_read_twice_is_there_once_and_in_order() -> None:
    told = Growth().log.entries

    assert Known([*reversed(told), *told]).entries == told


def test_the_newest_is_the_last_before_and_not_the_event_itself() -> None:
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
