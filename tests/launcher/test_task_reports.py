"""Tasks that work and will have to go are told of, once a reason; and those that leave work on as
long as they can.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from services.launcher.facts import NodeFact
from services.launcher.steps.task_reports import about_pod
from shared.messages import SIGTERM, GenerationAbandoned, TaskLeaving
from tests.launcher.builders import UID, decided, names
from tests.launcher.world import World

FIRST, MOVED = "c0 p1 w2", "c0 p3 w2"
DEADLINE_S = 2_000.0


def told(world: World) -> list[tuple[str, str, float]]:
    return [(m.pod, m.why, m.leaves_s) for m in world.all(TaskLeaving)]


def evict(world: World, name: str, **fields: Any) -> None:
    """As the API server shows it: there until its grace is over."""
    world.change(
        name, leaving=True, leaves_s=DEADLINE_S, reason="Evicted", message="drained", **fields
    )
    world.settle()


def condemn(world: World, name: str, **fields: Any) -> None:
    world.nodes[name] = NodeFact(name=name, **fields)
    world.show_nodes()
    world.settle()


def test_an_eviction_is_told_once_with_its_deadline_and_is_no_exit(world: World) -> None:
    world.train(decided(1, FIRST))
    evict(world, "net-ps-1")
    world.settle()
    assert told(world) == [("net-ps-1", "Evicted", DEADLINE_S)]
    assert world.last(TaskLeaving).message == "drained"


def test_our_own_victims_are_no_news(world: World) -> None:
    world.train(decided(1, FIRST))
    world.train(decided(2, MOVED))
    assert "net-ps-1" not in world.standing() and told(world) == []


def test_a_cordon_is_told_of_every_task_on_the_node_and_a_taint_with_its_notice(
    world: World,
) -> None:
    world.train(decided(1, FIRST))
    condemn(world, "node-1", doom="NodeCordoned")
    assert told(world) == [("net-ps-1", "NodeCordoned", 0.0)]
    world.now += 5
    condemn(world, "node-1", doom="NodeTainted", doomed_by="spot", within_s=120.0)
    world.now += 5
    condemn(world, "node-1", doom="NodeTainted", doomed_by="spot", within_s=120.0, ready=True)
    assert told(world)[1:] == [("net-ps-1", "NodeTainted", world.now - 5 + 120.0)]


def test_a_reason_is_said_again_where_it_has_a_time_at_last_or_a_sooner_one(world: World) -> None:
    world.train(decided(1, FIRST))
    condemn(world, "node-1", doom="NodeTainted", doomed_by="rebalance")
    world.now += 60
    condemn(world, "node-1", doom="NodeTainted", doomed_by="spot", within_s=120.0)
    by_s = world.now + 120.0
    assert told(world) == [("net-ps-1", "NodeTainted", 0.0), ("net-ps-1", "NodeTainted", by_s)]
    condemn(world, "node-1", doom="NodeTainted", doomed_by="another", within_s=130.0)
    assert len(told(world)) == 2, "later"
    condemn(world, "node-1", doom="NodeTainted", doomed_by="one more", within_s=30.0)
    assert told(world)[2:] == [("net-ps-1", "NodeTainted", by_s - 90.0)]


def test_an_eviction_that_is_only_announced_is_told_again_when_the_pod_is_deleted_for_it(
    world: World,
) -> None:
    world.train(decided(1, FIRST))
    world.change("net-ps-1", reason="Evicted")
    world.settle()
    evict(world, "net-ps-1")
    assert told(world) == [("net-ps-1", "Evicted", 0.0), ("net-ps-1", "Evicted", DEADLINE_S)]


def test_a_pod_that_does_not_run_yet_has_nothing_to_leave(world: World) -> None:
    condemn(world, "node-1", doom="NodeCordoned")
    world.decide(decided(1, FIRST))
    assert told(world) == []


def test_a_leaving_chief_drains_for_its_successor(world: World) -> None:
    world.train(decided(1, FIRST))
    evict(world, "net-chief-0")
    world.hand_over(decided(2, "c3 p1 w2"))
    assert world.ordered()[-1] == (2, 1)


def test_a_generation_whose_pod_leaves_may_be_overtaken_before_it_is_given_up(world: World) -> None:
    world.train(decided(1, FIRST))
    world.stand(decided(2, "c0 p1 w2 w4"))
    evict(world, "net-ps-1")
    assert world.abandoned() == {}
    world.decide(decided(3, "c0 p3 w2 w4"))
    assert world.abandoned() == {2: "superseded by generation 3"}


def test_a_generation_whose_pod_leaves_is_given_up_if_nothing_overtakes_it(world: World) -> None:
    world.train(decided(1, FIRST))
    world.stand(decided(2, "c0 p1 w2 w4"))
    evict(world, "net-ps-1")
    world.wait()
    assert world.abandoned() == {2: "net-ps-1 is being deleted"}


def test_a_cordon_long_ago_takes_nobody_the_time_to_overtake(world: World) -> None:
    world.train(decided(1, FIRST))
    condemn(world, "node-1", doom="NodeCordoned")
    world.now += 600
    world.stand(decided(2, "c0 p1 w2 w4"))
    evict(world, "net-ps-1")
    assert world.abandoned() == {}
    world.wait()
    assert world.abandoned() == {2: "net-ps-1 is being deleted"}


def test_a_generation_for_which_another_has_drained_goes_on_with_a_leaving_pod(
    world: World,
) -> None:
    world.train(decided(1, FIRST))
    world.hand_over(decided(2, "c0 p1 w2 w4"))
    world.drain(1, successor=2)
    evict(world, "net-ps-1")
    world.resume(2)
    world.settle()
    assert world.all(GenerationAbandoned) == [] and world.view.told.jobs[UID].running == 2


def test_a_chief_that_was_to_drain_and_ended_first_ends_its_successor_s_wait(world: World) -> None:
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


def test_a_chief_that_drained_before_it_ended_is_waited_for_no_more(world: World) -> None:
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


def test_what_the_task_itself_said_is_not_said_for_it_and_the_deadline_is_told_beside(
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
    assert world.view.told.jobs[UID].leaving["u4"].notices.keys() == {"SIGTERM", "Evicted"}


def ends(world: World, name: str, **fields: Any) -> None:
    """For so long that the generation which needs it is given up."""
    world.change(name, phase="Failed", ended_s=world.now, **fields)
    world.settle()
    world.wait()


def test_who_gives_a_generation_up_says_which_one_goes_on(world: World) -> None:
    world.train(decided(1, FIRST))
    world.stand(decided(2, "c0 p1 w2 w4"))
    ends(world, "net-worker-4", exit_code=1, reason="Error")
    assert world.last(GenerationAbandoned).goes_on == 1


def test_where_nothing_trained_before_nothing_goes_on(world: World) -> None:
    world.stand(decided(1, FIRST))
    ends(world, "net-worker-2", exit_code=1, reason="Error")
    assert [(m.generation, m.goes_on) for m in world.all(GenerationAbandoned)] == [(1, None)]


def test_where_the_whole_cluster_stops_nothing_goes_on(world: World) -> None:
    world.train(decided(1, FIRST))
    world.stand(decided(2, "c0 p1 w2 w4"))
    for name in world.standing():
        pod = world.pod(name)
        world.hear(
            TaskLeaving(**about_pod(world.view.told.jobs[UID], pod), node=pod.node, why=SIGTERM)
        )
    ends(
        world, "net-worker-4", exit_code=143, reason="Terminated", message="the cluster was stopped"
    )
    assert world.abandoned() == {
        2: "net-worker-4 ended: Terminated (exit code 143) the cluster was stopped"
    }
    assert world.last(GenerationAbandoned).goes_on is None
