"""Tests of the view: messages of one job change nothing about another job.

This holds for any content and any number of messages.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from services.launcher.jobs import NOTICES_KEPT, UIDS_OF_POD_KEPT, UNKNOWN_PODS_KEPT
from services.launcher.reconcile import reconcile
from services.launcher.view import (
    MAX_FINISHED_OF_NAME,
    BusState,
    View,
    fold_message,
    start_watching,
)
from shared.bounds import MOST_OF_JOB
from shared.messages import (
    CheckpointFailed,
    CheckpointSaved,
    GenerationPrepared,
    JobFinished,
    JobMessage,
    TaskLeaving,
    TaskReady,
    TrainingResumed,
)
from tests.launcher.builders import JOB, UID, decided
from tests.launcher.world import World

STRANGER = {"namespace": "team-b", "job": "x"}
ABOUT = {"uid": UID, "generation": 2, **STRANGER}
OF_POD = {**ABOUT, "pod": "net-chief-0", "pod_uid": "u1", "role": "chief", "serial": 0}
FORGED: list[JobMessage] = [
    JobFinished(**ABOUT, outcome="failed"),
    TrainingResumed(**ABOUT, step=1, samples=1),
    CheckpointSaved(**ABOUT, step=1, samples=1, path="/c", seconds=1.0, final=True),
    CheckpointFailed(
        **(ABOUT | {"generation": 1}), step=1, path="/c", cause="full", remedy="none", successor=2
    ),
    GenerationPrepared(**OF_POD, error="no"),
    TaskReady(**OF_POD, node="n", host="h", ports=(1, 2)),
    TaskLeaving(**OF_POD, node="n", why="SIGTERM"),
]
EACH = pytest.mark.parametrize("forged", FORGED, ids=lambda m: type(m).__name__)


def training(world: World) -> World:
    """Return a world in which generation 1 trains and 2 is decided."""
    world.train(decided(1, "c0 p1 w2"))
    world.decide(decided(2, "c0 p1 w2 w3"))
    return world


@EACH
def test_a_fact_with_another_jobs_uid_does_not_change_that_job(
    world: World, forged: JobMessage
) -> None:
    training(world)
    before = world.view.bus_state.jobs[UID]

    world.hear(forged)

    assert world.view.bus_state.jobs == {UID: before}
    assert not world.view.awaited_pods and reconcile(world.view, world.now, world.rules) == []


@EACH
def test_a_fact_with_a_future_uid_does_not_change_the_later_job(
    world: World, forged: JobMessage
) -> None:
    world.hear(forged)

    world.train(decided(1, "c0 p1"))
    world.decide(decided(2, "c0"))

    alone = World()
    alone.train(decided(1, "c0 p1"))
    alone.decide(decided(2, "c0"))
    assert world.view.bus_state.jobs == alone.view.bus_state.jobs


def test_an_end_announced_by_another_job_deletes_no_pods(world: World) -> None:
    """The launcher may have read no decision of the job, because old orders are discarded."""
    training(world)
    heard = fold_message(
        View(pods=world.view.pods, services=world.view.services), FORGED[0], world.now
    )

    assert reconcile(start_watching(heard, world.now), world.now, world.rules) == []


def test_many_announced_ends_do_not_displace_the_end_of_another_job() -> None:
    view = fold_message(View(), JobFinished(job=JOB, uid=UID, outcome="succeeded"), 0.0)
    for uid in range(UID + 1, UID + 3 * MAX_FINISHED_OF_NAME):
        view = fold_message(view, JobFinished(uid=uid, **STRANGER, outcome="failed"), 1.0)

    assert len(view.bus_state.finished) == MAX_FINISHED_OF_NAME + 1
    assert fold_message(view, decided(1, "c0"), 2.0).bus_state.jobs == {}


def test_a_snapshot_of_an_earlier_version_keeps_finished_jobs() -> None:
    old = msgspec.json.decode(b'{"finished": {"7": 1.0}}', type=BusState)
    view = View(bus_state=old)

    assert fold_message(view, decided(1, "c0", uid=7), 2.0).bus_state.jobs == {}
    assert list(fold_message(view, decided(1, "c0", uid=8), 2.0).bus_state.jobs) == [8]


def test_a_pod_is_awaited_only_by_its_own_job(world: World) -> None:
    """A watch may show a pod late. Another job that names the pod keeps only itself waiting."""
    training(world)
    uid = world.pod("net-chief-0").uid
    world.hear(replace(decided(1, "c0", uid=UID + 1), **STRANGER))
    other = {"uid": UID + 1, "generation": 1, **STRANGER}

    world.hear(
        TaskReady(
            **(OF_POD | other | {"pod_uid": uid, "pod": "x-chief-0"}),
            node="n",
            host="h",
            ports=(1, 2),
        )
    )

    assert world.view.awaited_pods == {(UID + 1, uid)}


def test_many_early_facts_of_one_job_do_not_displace_those_of_another() -> None:
    quiet = TrainingResumed(job=JOB, uid=UID, generation=1, step=1, samples=1)
    flood = [TrainingResumed(**ABOUT, step=step, samples=1) for step in range(2_000)]
    view = View()
    for fact in [quiet, *flood]:
        view = fold_message(view, fact, 0.0)

    assert len(view.bus_state.early) <= 1 + MOST_OF_JOB
    assert fold_message(view, decided(1, "c0"), 1.0).bus_state.jobs[UID].running == 1


def test_invented_pods_of_a_job_are_kept_in_small_numbers(
    world: World,
) -> None:
    training(world)
    before = world.view.bus_state.jobs[UID]
    about = {"job": JOB, "uid": UID, "generation": 2, "role": "chief", "serial": 0}
    for number in range(3_000):
        pod = {**about, "pod": f"net-chief-{number % 2 * number}", "pod_uid": f"invented-{number}"}
        for fact in (
            TaskReady(**pod, node="n", host="h", ports=(1, 2)),
            TaskLeaving(**pod, node="n", why="SIGTERM"),
            GenerationPrepared(**pod),
        ):
            world.view = fold_message(world.view, fact, world.now)
    world.view = fold_message(
        world.view, GenerationPrepared(**pod | {"pod": "net-chief-0", "pod_uid": "u1"}), world.now
    )
    for number in range(300):
        fact = TaskLeaving(**about, pod="net-chief-0", pod_uid="u1", node="n", why=f"why {number}")
        world.view = fold_message(world.view, fact, world.now)

    job = world.view.bus_state.jobs[UID]
    most = UNKNOWN_PODS_KEPT + 10 * UIDS_OF_POD_KEPT
    assert (
        max(
            map(len, (job.ready, job.leaving, job.generations[2].prepared, world.view.awaited_pods))
        )
        <= most
    )
    assert "u1" in job.generations[2].prepared and len(job.leaving["u1"].notices) == NOTICES_KEPT
    others = {uid: fact for uid, fact in before.ready.items() if fact.pod != "net-chief-0"}
    assert others and others.items() <= job.ready.items()


def test_a_pod_ready_before_its_decision_is_ready_after_it() -> None:
    view = fold_message(View(), decided(1, "c0 p1"), 0.0)
    pod = {
        "job": JOB,
        "uid": UID,
        "pod": "net-worker-2",
        "pod_uid": "u9",
        "role": "worker",
        "serial": 2,
    }
    view = fold_message(view, TaskReady(**pod, node="n", host="h", ports=(1, 2)), 1.0)

    assert "u9" in fold_message(view, decided(2, "c0 p1 w2"), 2.0).bus_state.jobs[UID].ready
