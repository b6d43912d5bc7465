"""Tests of what a pod does when it, or another pod of its generation, has to leave."""

from __future__ import annotations

import math
from typing import Any

import pytest

from services.trainer.pod import supervise
from services.trainer.pod.supervise import (
    Action,
    BeginChild,
    DrainChild,
    EndChild,
    GoAway,
    GoOnChild,
    SaveChild,
    ShutdownTimes,
)
from shared.messages import SIGTERM, TaskLeaving
from tests.trainer.builders import JOB, abandoned, final, order, resumed, spec
from tests.trainer.pod.test_supervise import Teller, beside, running

TIMES = ShutdownTimes(leave_s=1.0, last_save_s=3.0)
NOW, GRACE = 1000.0, 30.0
ALL = ("chief-0", "ps-0", "worker-0")


def notice(pod: str, why: str = SIGTERM, leaves_s: float = NOW + GRACE) -> TaskLeaving:
    role: Any = pod.split("-")[0]
    about = {"pod": pod, "pod_uid": pod, "role": role, "serial": 0, "node": "n"}
    return TaskLeaving(**JOB, generation=1, **about, why=why, leaves_s=leaves_s)


def hears(teller: Teller, *facts: TaskLeaving, now: float = NOW) -> list[Action]:
    found: list[Action] = []
    for fact in facts:
        teller.pod, actions = supervise.on_leaving(teller.pod, fact, now, TIMES)
        found += actions
    return found


def at(teller: Teller, now: float) -> list[Action]:
    teller.pod, actions = supervise.due_actions(teller.pod, now, TIMES)
    return list(actions)


# ------------------------------------------------------------ another task leaves


@pytest.mark.parametrize("why", [SIGTERM, "Evicted", "NodeTainted"])
@pytest.mark.parametrize("who", ["ps-0", "chief-0"])
def test_the_chief_saves_once_when_a_ps_or_the_chief_has_a_deadline(who: str, why: str) -> None:
    teller = running()
    assert hears(teller, notice(who, why), notice(who, why), notice(who, "Deleted")) == [
        SaveChild(1)
    ]


def test_a_leaving_worker_and_a_cordon_cause_no_save() -> None:
    teller = running()
    assert (
        hears(teller, notice("worker-0"), notice("ps-0", "NodeCordoned", 0.0), notice("ps-9")) == []
    )


def test_only_the_chief_saves() -> None:
    assert hears(running("worker-0"), notice("ps-0")) == []


def test_the_chief_makes_the_final_save_just_before_the_deadline() -> None:
    teller = running()
    hears(teller, notice("ps-0"))
    assert supervise.next_due_s(teller.pod, TIMES) == NOW + GRACE - 4.0
    assert at(teller, NOW + GRACE - 4.1) == []
    assert at(teller, NOW + GRACE - 4.0) == [DrainChild(1, None)]
    assert at(teller, NOW + GRACE) == [] and supervise.next_due_s(teller.pod, TIMES) == math.inf


def test_a_failed_final_save_lets_training_continue_and_is_retried() -> None:
    teller = running()
    hears(teller, notice("ps-0"))
    assert at(teller, NOW + GRACE - 4.0) == [DrainChild(1, None)]

    teller.pod = supervise.on_unsaved(teller.pod, 1, final=False)
    assert teller.pod.children[1] == "draining", "that was one of those made now and then"
    teller.pod = supervise.on_unsaved(teller.pod, 1, final=True)

    assert teller.pod.children[1] == "running"
    assert hears(teller, notice("worker-0"), now=NOW + GRACE - 3.0) == [DrainChild(1, None)]


def test_with_a_short_grace_period_the_final_save_is_immediate() -> None:
    teller = running()
    hears(teller, notice("ps-0"))
    assert hears(teller, notice("ps-0", "Evicted", NOW + 2.0)) == [DrainChild(1, None)]


def test_the_deadline_of_a_taint_stops_no_training() -> None:
    teller = running()
    hears(teller, notice("ps-0", "NodeTainted"))
    assert at(teller, NOW + GRACE) == []


def test_a_hand_over_before_the_deadline_needs_no_second_save() -> None:
    teller = beside()
    assert hears(teller, notice("ps-0")) == [SaveChild(1)]
    assert teller.hear(order(2, previous=1)) == [DrainChild(1, 2)]
    assert at(teller, NOW + GRACE) == []
    assert teller.hear_all(final(1, successor=2), resumed(2)) == [
        BeginChild(2, "/c/gen-1/ckpt-10", True),
        EndChild(1),
    ]


def test_a_hand_over_after_the_final_save_begins_from_it() -> None:
    teller = beside()
    hears(teller, notice("ps-0"))
    at(teller, NOW + GRACE - 4.0)
    teller.hear(final(1))
    assert teller.hear(order(2, previous=1)) == [BeginChild(2, "/c/gen-1/ckpt-10", True)]


def test_a_finally_saved_generation_continues_if_the_next_is_abandoned() -> None:
    teller = beside()
    hears(teller, notice("ps-0"))
    at(teller, NOW + GRACE - 4.0)
    assert teller.hear_all(final(1), abandoned(2)) == [EndChild(2), GoOnChild(1)]
    assert at(teller, NOW + GRACE - 3.0) == [DrainChild(1, None)]


# ------------------------------------------------------------ this task leaves


def test_a_stopping_pod_works_until_the_next_generation_trains() -> None:
    teller = beside("ps-0")
    teller.hear(order(2, previous=1))
    hears(teller, notice("ps-0"))
    assert at(teller, NOW + GRACE / 2) == []
    teller.hear_all(resumed(2), spec(3, previous=2, pods=["chief-0", "ps-1", "worker-0"]))
    assert at(teller, NOW + GRACE / 2) == []
    teller.hear(resumed(3))
    assert at(teller, NOW + GRACE / 2) == [GoAway()]


def test_a_stopping_pod_leaves_shortly_before_its_grace_period_ends() -> None:
    teller = running("worker-0")
    hears(teller, notice("worker-0"))
    assert supervise.next_due_s(teller.pod, TIMES) == NOW + GRACE - 1.0
    assert at(teller, NOW + GRACE - 1.1) == [] and at(teller, NOW + GRACE - 1.0) == [GoAway()]


def test_an_idle_or_preparing_pod_leaves_at_once() -> None:
    idle, preparing = Teller("ps-0"), Teller("ps-0")
    preparing.hear(spec(1))
    assert [hears(each, notice("ps-0")) for each in (idle, preparing)] == [[GoAway()], [GoAway()]]


def test_a_pod_with_only_a_notice_stays_until_sigterm() -> None:
    teller = running("ps-0")
    hears(teller, notice("ps-0", "Evicted"))
    assert at(teller, NOW + GRACE) == []


def test_a_ps_leaves_after_the_final_save() -> None:
    teller = running("ps-0")
    hears(teller, notice("ps-0"))
    teller.hear(final(1))
    assert at(teller, NOW + GRACE - 3.0) == [GoAway()]


@pytest.mark.parametrize("name", ALL)
def test_when_all_pods_stop_the_chief_saves_and_then_all_leave(name: str) -> None:
    teller = running(name)
    told = hears(teller, *map(notice, ALL))
    assert told == ([SaveChild(1), DrainChild(1, None)] if name == "chief-0" else [])
    teller.pod, _ = supervise.on_final(teller.pod, final(1))
    assert at(teller, NOW + 1.0) == [GoAway()]
