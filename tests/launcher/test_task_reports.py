"""Tests of the reports of tasks that have to leave: one for each reason.

The tasks work on for as long as they can.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from services.launcher.facts import NodeFact
from services.launcher.steps.task_reports import pod_fields
from shared.messages import SIGTERM, GenerationAbandoned, Taint, TaskLeaving, Toleration
from tests.launcher.builders import UID, decided, names, request
from tests.launcher.world import World

FIRST, MOVED = "c0 p1 w2", "c0 p3 w2"
DEADLINE_S = 2_000.0
TOLERATION = Toleration(key="maintenance", value="now")


def told(world: World) -> list[tuple[str, str, float]]:
    return [(m.pod, m.why, m.leaves_s) for m in world.all(TaskLeaving)]


def evict(world: World, name: str, **fields: Any) -> None:
    """Evict a pod as the API server shows it: the pod exists until its grace period ends."""
    world.change(
        name, terminating=True, killed_s=DEADLINE_S, reason="Evicted", message="drained", **fields
    )
    world.settle()


def condemn(world: World, name: str, **fields: Any) -> None:
    world.nodes[name] = NodeFact(name=name, **fields)
    world.show_nodes()
    world.settle()


def test_an_eviction_is_published_once_with_its_deadline(world: World) -> None:
    world.train(decided(1, FIRST))
    evict(world, "net-ps-1")
    world.settle()
    assert told(world) == [("net-ps-1", "Evicted", DEADLINE_S)]
    assert world.last(TaskLeaving).message == "drained"


def test_our_own_deletions_are_not_published(world: World) -> None:
    world.train(decided(1, FIRST))
    world.train(decided(2, MOVED))
    assert "net-ps-1" not in world.standing() and told(world) == []


def test_a_cordon_is_published_for_every_task_and_a_taint_with_its_deadline(
    world: World,
) -> None:
    world.train(decided(1, FIRST))
    condemn(world, "node-1", eviction_reason="NodeCordoned")
    assert told(world) == [("net-ps-1", "NodeCordoned", 0.0)]
    world.now += 5
    condemn(world, "node-1", eviction_reason="NodeTainted", eviction_taint="spot", notice_s=120.0)
    world.now += 5
    condemn(
        world,
        "node-1",
        eviction_reason="NodeTainted",
        eviction_taint="spot",
        notice_s=120.0,
        ready=True,
    )
    assert told(world)[1:] == [("net-ps-1", "NodeTainted", world.now - 5 + 120.0)]


def test_a_reason_is_published_again_with_an_earlier_deadline(world: World) -> None:
    world.train(decided(1, FIRST))
    condemn(world, "node-1", eviction_reason="NodeTainted", eviction_taint="rebalance")
    world.now += 60
    condemn(world, "node-1", eviction_reason="NodeTainted", eviction_taint="spot", notice_s=120.0)
    by_s = world.now + 120.0
    assert told(world) == [("net-ps-1", "NodeTainted", 0.0), ("net-ps-1", "NodeTainted", by_s)]
    condemn(
        world, "node-1", eviction_reason="NodeTainted", eviction_taint="another", notice_s=130.0
    )
    assert len(told(world)) == 2, "later"
    condemn(
        world, "node-1", eviction_reason="NodeTainted", eviction_taint="one more", notice_s=30.0
    )
    assert told(world)[2:] == [("net-ps-1", "NodeTainted", by_s - 90.0)]


def test_an_announced_eviction_is_published_again_at_the_deletion(
    world: World,
) -> None:
    world.train(decided(1, FIRST))
    world.change("net-ps-1", reason="Evicted")
    world.settle()
    evict(world, "net-ps-1")
    assert told(world) == [("net-ps-1", "Evicted", 0.0), ("net-ps-1", "Evicted", DEADLINE_S)]


def test_a_pending_pod_has_no_leaving_report(world: World) -> None:
    condemn(world, "node-1", eviction_reason="NodeCordoned")
    world.decide(decided(1, FIRST))
    assert told(world) == []


def test_a_leaving_chief_drains_for_its_successor(world: World) -> None:
    world.train(decided(1, FIRST))
    evict(world, "net-chief-0")
    world.hand_over(decided(2, "c3 p1 w2"))
    assert world.ordered()[-1] == (2, 1)


def test_a_generation_with_a_leaving_pod_may_be_superseded(world: World) -> None:
    world.train(decided(1, FIRST))
    world.stand(decided(2, "c0 p1 w2 w4"))
    evict(world, "net-ps-1")
    assert world.abandoned() == {}
    world.decide(decided(3, "c0 p3 w2 w4"))
    assert world.abandoned() == {2: "superseded by generation 3"}


def test_a_generation_with_a_leaving_pod_is_abandoned_if_not_superseded(world: World) -> None:
    world.train(decided(1, FIRST))
    world.stand(decided(2, "c0 p1 w2 w4"))
    evict(world, "net-ps-1")
    world.wait()
    assert world.abandoned() == {2: "net-ps-1 is being deleted"}


def test_an_old_cordon_leaves_the_time_to_supersede(world: World) -> None:
    world.train(decided(1, FIRST))
    condemn(world, "node-1", eviction_reason="NodeCordoned")
    world.now += 600
    world.stand(decided(2, "c0 p1 w2 w4"))
    evict(world, "net-ps-1")
    assert world.abandoned() == {}
    world.wait()
    assert world.abandoned() == {2: "net-ps-1 is being deleted"}


def test_a_drained_hand_over_continues_with_a_leaving_pod(
    world: World,
) -> None:
    world.train(decided(1, FIRST))
    world.hand_over(decided(2, "c0 p1 w2 w4"))
    world.drain(1, successor=2)
    evict(world, "net-ps-1")
    world.resume(2)
    world.settle()
    assert world.all(GenerationAbandoned) == [] and world.view.bus_state.jobs[UID].running == 2


def test_a_chief_that_ends_before_draining_ends_the_wait(world: World) -> None:
    world.train(decided(1, FIRST))
    evict(world, "net-chief-0")
    world.hand_over(decided(2, "c3 p1 w2"))
    world.vanish(world.pod("net-chief-0"))
    world.settle()
    assert world.abandoned() == {}
    world.wait()
    assert world.abandoned() == {2: "net-chief-0 ended before it had drained generation 1"}
    world.train(decided(3, "c4 p1 w2"))
    assert world.ordered()[-1] == (3, None)


def test_a_chief_that_ends_after_draining_is_not_awaited(world: World) -> None:
    world.train(decided(1, FIRST))
    evict(world, "net-chief-0")
    world.hand_over(decided(2, "c3 p1 w2"))
    world.drain(1, successor=None)
    world.vanish(world.pod("net-chief-0"))
    world.now += world.rules.drained_s
    world.settle()
    assert world.abandoned() == {}
    world.resume(2)
    world.settle()
    assert world.standing() == sorted(names("c3 p1 w2"))


def test_the_tasks_own_report_is_not_repeated_except_for_the_deadline(
    world: World,
) -> None:
    world.train(decided(1, FIRST))
    own = TaskLeaving(
        **world.about(world.pod("net-ps-1")), node="node-1", why="SIGTERM", leaves_s=DEADLINE_S + 9
    )
    world.hear(own)
    world.hear(replace(own, generation=0))
    evict(world, "net-ps-1")
    assert told(world) == [("net-ps-1", "Evicted", DEADLINE_S)]
    assert world.view.bus_state.jobs[UID].leaving["u4"].notices.keys() == {"SIGTERM", "Evicted"}


def ends(world: World, name: str, **fields: Any) -> None:
    """End a pod, and wait until the generation that needs it is abandoned."""
    world.change(name, phase="Failed", ended_s=world.now, **fields)
    world.settle()
    world.wait()


def test_an_abandonment_names_the_continuing_generation(world: World) -> None:
    world.train(decided(1, FIRST))
    world.stand(decided(2, "c0 p1 w2 w4"))
    ends(world, "net-worker-4", exit_code=1, reason="Error")
    assert world.last(GenerationAbandoned).goes_on == 1


def test_without_a_running_generation_none_continues(world: World) -> None:
    world.stand(decided(1, FIRST))
    ends(world, "net-worker-2", exit_code=1, reason="Error")
    assert [(m.generation, m.goes_on) for m in world.all(GenerationAbandoned)] == [(1, None)]


def test_when_the_whole_cluster_stops_none_continues(world: World) -> None:
    world.train(decided(1, FIRST))
    world.stand(decided(2, "c0 p1 w2 w4"))
    for name in world.standing():
        pod = world.pod(name)
        world.hear(
            TaskLeaving(
                **pod_fields(world.view.bus_state.jobs[UID], pod), node=pod.node, why=SIGTERM
            )
        )
    ends(
        world, "net-worker-4", exit_code=143, reason="Terminated", message="the cluster was stopped"
    )
    assert world.abandoned() == {
        2: "net-worker-4 ended: Terminated (exit code 143) the cluster was stopped"
    }
    assert world.last(GenerationAbandoned).goes_on is None


def test_a_job_that_tolerates_a_taint_is_not_told_to_leave(world: World) -> None:
    taint = Taint(key="maintenance", value="now", effect="NoExecute")
    wanted = replace(decided(1, FIRST), request=request(tolerations=(TOLERATION,)))
    world.train(wanted)
    evicted = {"eviction_reason": "NodeTainted", "eviction_taint": "maintenance:NoExecute"}
    condemn(world, "node-1", **evicted, evicting=(taint,))
    assert told(world) == []
    condemn(world, "node-1", **evicted, evicting=(taint,), cordoned=True)
    assert told(world) == [("net-ps-1", "NodeCordoned", 0.0)]


def test_a_taint_that_announces_the_end_of_a_node_is_heard_by_everybody(world: World) -> None:
    ending = Taint(key="aws-node-termination-handler/spot-itn")
    everything = Toleration(operator="Exists")
    world.train(replace(decided(1, FIRST), request=request(tolerations=(everything,))))
    condemn(
        world,
        "node-1",
        eviction_reason="NodeTainted",
        eviction_taint="aws-node-termination-handler/spot-itn:NoSchedule",
        notice_s=120.0,
        evicting=(ending,),
    )
    assert told(world) == [("net-ps-1", "NodeTainted", world.now + 120.0)]
