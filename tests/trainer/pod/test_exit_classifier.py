"""What a child's end means depends on what it has said, and on how many there were before it."""

from __future__ import annotations

from services.trainer.pod.service import KILLED, TRIES, Ends
from services.trainer.pod.supervise import Phase, Pod
from services.trainer.protocol import Failed
from tests.trainer.builders import spec

LOST = Failed(cause="ps-0 has gone", peer=True)
GUILTY = Failed(cause="net.py:3: ValueError")


def pod(phase: Phase, name: str = "worker-0") -> Pod:
    return Pod(name=name, newest=1, specs={1: spec(1)}, children={1: phase})


def test_a_child_that_has_said_nothing_was_killed() -> None:
    assert Ends().judged(pod("running"), 1) == ("ends the pod", KILLED)


def test_a_chief_that_is_killed_is_not_taken_for_one_that_lost_another_task() -> None:
    ends, chief = Ends(), pod("running", "chief-0")

    silent = ends.judged(chief, 1)
    ends.on_failed(1, LOST)

    assert (silent, ends.judged(chief, 1)) == (("ends the pod", KILLED), ("breaks", LOST))


def test_a_child_that_meets_servers_that_are_just_going_is_followed_by_others_until_that_was_tried_enough() -> (
    None
):
    ends = Ends()
    ends.on_failed(1, LOST)

    judged = [ends.judged(pod("preparing"), 1)[0] for _ in range(TRIES + 1)]

    assert judged == ["prepares again"] * (TRIES - 1) + ["is missed by its generation"] * 2


def test_tries_of_one_generation_are_not_those_of_another() -> None:
    ends, both = Ends(), Pod(name="worker-0", children={1: "preparing", 2: "preparing"})
    for _ in range(TRIES):
        ends.judged(both, 1)

    assert ends.judged(both, 2)[0] == "prepares again"


def test_the_program_of_a_child_that_is_tried_again_is_not_blamed_for_the_one_before() -> None:
    ends = Ends()
    ends.on_failed(1, GUILTY)

    before = ends.judged(pod("preparing"), 1)
    ends.forget(1)

    assert (before, ends.judged(pod("preparing"), 1)) == (
        ("fails the job", GUILTY),
        ("prepares again", KILLED),
    )
