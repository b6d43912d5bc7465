"""What one job says changes nothing of another one, whatever uid it writes into its messages."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from services.launcher.reconcile import reconcile
from services.launcher.view import FINISHED_OF_NAME, Told, View, awake, told
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
    CheckpointFailed(**(ABOUT | {"generation": 1}), step=1, path="/c", cause="full", remedy="none", successor=2),
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
def test_a_fact_with_the_uid_of_another_job_changes_nothing_of_that_job(world: World, forged: JobMessage) -> None:
    training(world)
    before = world.view.told.jobs[UID]

    world.hear(forged)

    assert world.view.told.jobs == {UID: before}
    assert not world.view.awaited and reconcile(world.view, world.now, world.rules) == []


@EACH
def test_a_fact_with_a_uid_yet_to_come_changes_nothing_of_the_job_that_gets_it(
    world: World, forged: JobMessage
) -> None:
    world.hear(forged)

    world.train(decided(1, "c0 p1"))
    world.decide(decided(2, "c0"))

    alone = World()
    alone.train(decided(1, "c0 p1"))
    alone.decide(decided(2, "c0"))
    assert world.view.told.jobs == alone.view.told.jobs


def test_the_pods_of_a_job_whose_end_another_one_announced_stay(world: World) -> None:
    """The launcher may have read no decision of the job: orders that are too old are discarded."""
    training(world)
    heard = told(View(pods=world.view.pods, services=world.view.services), FORGED[0], world.now)

    assert reconcile(awake(heard, world.now), world.now, world.rules) == []


def test_many_ends_that_one_job_announces_make_nobody_forget_the_end_of_another() -> None:
    view = told(View(), JobFinished(job=JOB, uid=UID, outcome="succeeded"), 0.0)
    for uid in range(UID + 1, UID + 3 * FINISHED_OF_NAME):
        view = told(view, JobFinished(uid=uid, **STRANGER, outcome="failed"), 1.0)

    assert len(view.told.finished) == FINISHED_OF_NAME + 1
    assert told(view, decided(1, "c0"), 2.0).told.jobs == {}


def test_a_snapshot_of_an_earlier_version_still_says_which_jobs_are_over() -> None:
    old = msgspec.json.decode(b'{"finished": {"7": 1.0}}', type=Told)
    view = View(told=old)

    assert told(view, decided(1, "c0", uid=7), 2.0).told.jobs == {}
    assert list(told(view, decided(1, "c0", uid=8), 2.0).told.jobs) == [8]


def test_a_pod_is_awaited_by_the_job_that_named_it_and_no_other(world: World) -> None:
    """A watch may show a pod late. Another job that names it keeps nobody waiting once the pod is gone."""
    training(world)
    uid = world.pod("net-chief-0").uid
    world.hear(replace(decided(1, "c0", uid=UID + 1), **STRANGER))
    other = {"uid": UID + 1, "generation": 1, **STRANGER}

    world.hear(TaskReady(**(OF_POD | other | {"pod_uid": uid, "pod": "x-chief-0"}), node="n", host="h", ports=(1, 2)))

    assert world.view.awaited == {(UID + 1, uid)}
