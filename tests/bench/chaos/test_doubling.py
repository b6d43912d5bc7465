"""Tests that select the messages to repeat, and their publishers."""

from __future__ import annotations

from typing import Any

from shared.messages import CapacityChanged, JobFinished, Resources
from tests.bench.chaos import doubling
from tests.bench.chaos.test_tallies import JOB, UID, at, decided, report, resumed


def free(at_s: float) -> Any:
    seen = CapacityChanged(
        node="n", node_uid="u", seen=str(at_s), allocatable=Resources(), free=Resources()
    )
    return at(at_s, seen)


LOG = [
    at(1, decided(1, 1)),
    free(2),
    at(3, resumed(1)),
    at(4, report(1, 9)),
    at(5, report(2, 9)),
    free(6),
]


def test_late_repetitions_are_the_older_half_and_reordered_ones_the_newest() -> None:
    assert [sequence for _, _, sequence in doubling.chosen(LOG, UID, "late")] == [10, 20, 30]
    assert [sequence for _, _, sequence in doubling.chosen(LOG, UID, "reordered")] == [
        10,
        20,
        30,
        40,
        50,
        60,
    ]


def test_each_message_is_repeated_by_its_publisher() -> None:
    assert [user for user, _, _ in doubling.chosen(LOG, UID, "late")] == [
        "allocator",
        "monitor",
        "job",
    ]


def test_messages_of_other_jobs_and_ends_are_not_repeated() -> None:
    over = JobFinished(**JOB, outcome="succeeded")
    assert doubling.chosen([at(1, over), at(2, resumed(1))], UID + 1, "reordered") == []
    assert doubling.chosen([at(1, over)], UID, "reordered") == []
