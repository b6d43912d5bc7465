"""Tests of the meaning of a child's exit.

It depends on the child's events, and on the number of exits before it.
"""

from __future__ import annotations

from services.trainer.pod.state_machine import KILLED, TRIES, ExitClassifier
from services.trainer.pod.supervise import Phase, Pod
from services.trainer.protocol import Failed
from tests.trainer.builders import spec

LOST = Failed(cause="ps-0 has gone", peer=True)
GUILTY = Failed(cause="net.py:3: ValueError")


def pod(phase: Phase, name: str = "worker-0") -> Pod:
    return Pod(name=name, newest=1, specs={1: spec(1)}, children={1: phase})


def test_an_exit_without_an_event_is_a_kill() -> None:
    assert ExitClassifier().classify(pod("running"), 1) == ("ends the pod", KILLED)


def test_a_killed_chief_is_distinguished_from_one_that_lost_a_task() -> None:
    ends, chief = ExitClassifier(), pod("running", "chief-0")

    silent = ends.classify(chief, 1)
    ends.record_failure(1, LOST)

    assert (silent, ends.classify(chief, 1)) == (("ends the pod", KILLED), ("breaks", LOST))


def test_a_child_that_meets_stopping_servers_is_retried_a_bounded_number_of_times() -> None:
    ends = ExitClassifier()
    ends.record_failure(1, LOST)

    judged = [ends.classify(pod("preparing"), 1)[0] for _ in range(TRIES + 1)]

    assert judged == ["prepares again"] * (TRIES - 1) + ["is missed by its generation"] * 2


def test_retries_are_counted_for_each_generation() -> None:
    ends, both = ExitClassifier(), Pod(name="worker-0", children={1: "preparing", 2: "preparing"})
    for _ in range(TRIES):
        ends.classify(both, 1)

    assert ends.classify(both, 2)[0] == "prepares again"


def test_a_retried_child_is_not_blamed_for_an_earlier_failure() -> None:
    ends = ExitClassifier()
    ends.record_failure(1, GUILTY)

    before = ends.classify(pod("preparing"), 1)
    ends.forget_failure(1)

    assert (before, ends.classify(pod("preparing"), 1)) == (
        ("fails the job", GUILTY),
        ("prepares again", KILLED),
    )
