"""Tests of the pure reconciler with whole lives of a job."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.launcher.actions import CreatePod, CreatePolicy, CreateService, DeletePod, Publish
from services.launcher.facts import PodFact, ServiceFact
from services.launcher.reconcile import reconcile
from services.launcher.steps.generations import predecessor
from services.launcher.steps.pod_actions import delete_pod
from services.launcher.view import (
    View,
    start_watching,
    with_pod,
    with_refusal,
    with_service,
    without_pod,
)
from shared.messages import (
    ClusterSpecPublished,
    GenerationAbandoned,
    GenerationPrepared,
    ModelProfile,
    TaskExited,
    TaskReady,
    TaskStarted,
)
from tests.launcher.builders import UID, decided, names
from tests.launcher.world import World


def test_a_first_start_creates_service_pods_spec_and_order(
    world: World,
) -> None:
    world.decide(decided(1, "c0 p1 w2"))
    assert [type(a) for a in world.done] == [
        CreateService,
        CreatePolicy,
        CreatePod,
        CreatePod,
        CreatePod,
    ]
    assert all(a.owner_uid == "s1" for a in world.done if isinstance(a, CreatePod))
    world.run_pods()
    world.settle()
    spec = world.spec(1)
    assert spec.previous is None and [t.pod for t in spec.tasks] == names("c0 p1 w2")
    assert world.ordered() == []
    world.prepare(1)
    world.settle()
    assert world.ordered() == [(1, None)]


def test_a_started_pod_is_reported_once(world: World) -> None:
    world.train(decided(1, "c0 p1 w2"))
    assert sorted(m.pod for m in world.all(TaskStarted)) == sorted(names("c0 p1 w2"))


def test_no_spec_is_published_before_the_last_task_is_ready(world: World) -> None:
    world.decide(decided(1, "c0 p1"))
    world.change("net-chief-0", phase="Running")
    world.change("net-ps-1", phase="Running")
    pod = world.pod("net-ps-1")
    world.hear(TaskReady(**world.about(pod), node="n", host="h", ports=(1, 2)))
    world.settle()
    assert world.all(ClusterSpecPublished) == []


def test_a_ready_message_of_another_pod_with_the_name_does_not_count(world: World) -> None:
    world.decide(decided(1, "c0"))
    world.change("net-chief-0", phase="Running")
    stale = {**world.about(world.pod("net-chief-0")), "pod_uid": "another"}
    world.hear(TaskReady(**stale, node="n", host="h", ports=(1, 2)))
    world.settle()
    assert world.all(ClusterSpecPublished) == []


def test_a_pod_that_reports_before_its_watch_event_is_not_lost() -> None:
    world = World()
    world.decide(decided(1, "c0"))
    pod = world.pod("net-chief-0")
    world.view = without_pod(world.view, pod)
    world.hear(TaskReady(**world.about(pod), node="n", host="h", ports=(1, 2)))
    assert reconcile(world.view, world.now, world.rules) == []
    late = reconcile(start_watching(world.view, world.now), world.now, world.rules)
    assert [a.message.reason for a in late if isinstance(a, Publish)] == ["net-chief-0 is gone"]
    world.show(pod)
    assert world.view.awaited_pods == frozenset()


def test_a_growth_keeps_every_pod(world: World) -> None:
    world.train(decided(1, "c0 p1 w2"))
    world.train(decided(2, "c0 p1 w2 w3"))
    assert world.ordered() == [(1, None), (2, 1)]
    assert world.spec(2).previous == 1
    assert world.standing() == names("c0 p1 w2 w3")


def test_shrinking_removes_the_named_victims_only_after_the_smaller_generation_resumed(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1 w2 w3"))
    world.hand_over(decided(2, "c0 p1 w3"))
    world.drain(1)
    world.settle()
    assert world.standing() == names("c0 p1 w2 w3")
    world.resume(2)
    world.settle()
    assert world.standing() == names("c0 p1 w3")


def test_a_victim_is_not_reported_as_lost(world: World) -> None:
    world.train(decided(1, "c0 p1 w2 w3"))
    world.train(decided(2, "c0 p1 w3"))
    world.reap()
    world.settle()
    assert world.all(TaskExited) == []


def test_ports_alternate_between_the_generations_that_a_pod_serves(world: World) -> None:
    for generation in (1, 2, 3):
        world.train(decided(generation, "c0 p1" + " w2" * (generation > 1)))
    ports = [{t.pod: t.port for t in world.spec(g).tasks} for g in (1, 2, 3)]
    assert [p["net-ps-1"] for p in ports] == [2222, 2223, 2222]
    assert [p.get("net-worker-2") for p in ports] == [None, 2222, 2223]


def test_after_an_abandoned_generation_the_port_is_still_not_the_running_ones(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.stand(decided(2, "c0 p1 w2"))
    world.prepare(2, error="out of memory")
    world.settle()
    world.train(decided(3, "c0 p1 w3"))
    assert {t.port for t in world.spec(3).tasks if t.role != "worker"} == {2223}


@pytest.mark.parametrize("before", [0, 1])
def test_an_unschedulable_pod_abandons_its_generation_after_a_timeout(
    world: World, before: int
) -> None:
    if before:
        world.train(decided(1, "c0 p1"))
    world.decide(decided(2, "c0 p1 w2"))
    world.change(
        "net-worker-2", unschedulable="0/3 nodes are available", unschedulable_since_s=world.now
    )
    world.settle()
    assert world.abandoned() == {}
    world.wait()
    assert world.now == 1000.0 + world.rules.unschedulable_s
    assert "unschedulable: 0/3 nodes" in world.abandoned()[2]
    assert world.standing() == (names("c0 p1") if before else [])
    assert not world.last(GenerationAbandoned).stood, "the cluster is at fault"


def test_a_preparation_error_abandons_the_generation_and_deletes_only_its_new_pods(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1 w2"))
    world.stand(decided(2, "c0 p1 w2 w3"))
    world.prepare(2, error="bind failed")
    world.settle()
    assert "bind failed" in world.abandoned()[2]
    assert world.standing() == names("c0 p1 w2")
    assert world.ordered() == [(1, None)]
    assert world.last(GenerationAbandoned).stood, "all had what they needed"


def test_a_long_reason_keeps_the_pod_and_the_end_of_the_traceback(world: World) -> None:
    world.train(decided(1, "c0 p1 w2"))
    world.stand(decided(2, "c0 p1 w2 w3"))
    world.prepare(2, error="Traceback" + "\n  File" * 2000 + "\nMemoryError: the last words")
    world.settle()
    reason = world.abandoned()[2]
    assert reason.startswith("net-chief-0: Traceback") and reason.endswith(
        "MemoryError: the last words"
    )
    assert len(reason) < 5000


@pytest.mark.parametrize(
    ("step", "limit", "says"),
    [
        ("decide", "start", "net-worker-2 (Pending)"),
        ("stand", "prepare", "not prepared"),
        ("hand_over", "resume", "not resumed"),
    ],
)
def test_each_step_has_a_timeout(world: World, step: str, limit: str, says: str) -> None:
    world.train(decided(1, "c0 p1"))
    getattr(world, step)(decided(2, "c0 p1 w2"))
    begun = world.now
    world.wait()
    assert world.now - begun == getattr(world.rules, f"{limit}_timeout_s")
    assert says in world.abandoned()[2]
    assert world.standing() == names("c0 p1")


@pytest.mark.parametrize(("step", "limit"), [("stand", "prepare"), ("hand_over", "resume")])
@pytest.mark.parametrize(
    ("model_bytes", "longer_s"), [(40 * 10**9, 40 * 30.0), (10**15, 3600.0)], ids=["large", "wrong"]
)
def test_a_large_model_has_more_time_to_be_restored(
    world: World, step: str, limit: str, model_bytes: int, longer_s: float
) -> None:
    half = model_bytes // 2
    world.profile = ModelProfile(parameters=1, bytes=half, variables=1, table_bytes=half)
    world.train(decided(1, "c0 p1"))
    getattr(world, step)(decided(2, "c0 p1 w2"))
    begun = world.now
    world.wait()
    assert world.now - begun == getattr(world.rules, f"{limit}_timeout_s") + longer_s
    assert set(world.abandoned()) == {2}


def test_the_first_generation_of_a_large_model_has_more_time_to_resume(world: World) -> None:
    """It may continue from the checkpoint of another job."""
    world.profile = ModelProfile(parameters=1, bytes=10**9, variables=1, table_bytes=3 * 10**9)
    world.hand_over(decided(1, "c0 p1"))
    begun = world.now
    world.wait()
    assert world.now - begun == world.rules.resume_timeout_s + 4 * 30.0


def test_a_newer_decision_supersedes_one_in_flight_and_keeps_common_pods(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1"))
    world.stand(decided(2, "c0 p1 w2 w3"))
    world.train(decided(3, "c0 p1 w3 w4"))
    assert world.abandoned() == {2: "superseded by generation 3"}
    assert world.ordered() == [(1, None), (3, 1)]
    assert world.standing() == names("c0 p1 w3 w4")


def test_after_the_final_checkpoint_a_newer_decision_waits(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2"))
    world.drain(1)
    world.stand(decided(3, "c0 p1 w2 w3"))
    assert world.abandoned() == {} and "net-worker-3" not in world.standing()
    world.resume(2)
    world.settle()
    world.train(decided(3, "c0 p1 w2 w3"))
    assert world.ordered() == [(1, None), (2, 1), (3, 2)]


def test_before_the_final_checkpoint_a_newer_decision_supersedes_an_ordered_hand_over(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2"))
    world.train(decided(3, "c0 p1 w3"))
    assert world.abandoned() == {2: "superseded by generation 3"}


def test_after_a_failed_hand_over_the_previous_generation_continues(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2"))
    world.drain(1)
    world.settle()
    world.wait()
    assert "not resumed" in world.abandoned()[2]
    world.train(decided(3, "c0 p1 w3"))
    assert world.ordered()[-1] == (3, 1)


def test_a_generation_without_a_final_checkpoint_is_abandoned_at_once(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2"))
    world.cannot_save(1, successor=2)
    world.settle()
    assert world.abandoned() == {2: "no checkpoint to begin from: it is full; make room"}
    world.train(decided(3, "c0 p1 w3"))
    assert world.ordered()[-1] == (3, 1)


def test_a_failed_save_between_hand_overs_abandons_nothing(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.stand(decided(2, "c0 p1 w2"))
    world.cannot_save(1, successor=None)
    world.settle()
    assert world.abandoned() == {}


def test_the_spec_has_the_time_with_the_cluster_off(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1 w2"))
    for pod in names("c0 p1 w2"):
        world.change(pod, phase="Failed", exit_code=0)
    world.train(replace(decided(2, "c3 p4 w5"), off_s=600.0))
    world.train(replace(decided(3, "c3 p4 w5 w6"), off_s=600.0))

    assert [world.spec(number).off_s for number in (1, 2, 3)] == [0.0, 600.0, 0.0]


@pytest.mark.parametrize(
    ("lost", "next_ones"), [("net-chief-0", "c4 p1 p2 w3"), ("net-ps-2", "c0 p1 p4 w3")]
)
def test_a_generation_without_its_chief_or_ps_is_no_previous_generation(
    world: World, lost: str, next_ones: str
) -> None:
    world.train(decided(1, "c0 p1 p2 w3"))
    world.change(lost, phase="Failed", exit_code=137)
    world.train(decided(2, next_ones))
    assert world.spec(2).previous is None
    assert world.ordered()[-1] == (2, None)


@pytest.mark.parametrize("next_one", ["net-ps-1", "net-worker-3"])
def test_after_the_final_checkpoint_a_lost_worker_is_tolerated_but_not_a_ps_or_the_last_worker(
    world: World, next_one: str
) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2 w3"))
    world.drain(1)
    world.change("net-worker-2", phase="Failed", exit_code=1, reason="Error")
    world.settle()
    assert world.abandoned() == {}
    world.change(next_one, phase="Failed", exit_code=137, reason="OOMKilled")
    world.settle()
    assert 2 in world.abandoned()


@pytest.mark.parametrize("far", ["prepared", "ordered", "drained"])
@pytest.mark.parametrize("name", ["net-chief-0", "net-ps-1", "net-worker-2"])
def test_a_lost_prepared_child_abandons_the_generation_at_once(
    world: World, far: str, name: str
) -> None:
    world.train(decided(1, "c0 p1"))
    world.stand(decided(2, "c0 p1 w2"))
    if far == "prepared":
        for task in ("net-chief-0", "net-ps-1"):  # the third one is not prepared yet
            world.hear(GenerationPrepared(**{**world.about(world.pod(task)), "generation": 2}))
    else:
        world.prepare(2)
    world.settle()
    if far == "drained":
        world.drain(1, successor=2)
        world.settle()
    begun = world.now
    world.fail(2, name)
    assert world.now == begun and "the child was killed" in world.abandoned()[2]
    world.train(decided(3, "c0 p1 w3"))
    assert world.ordered()[-1] == (3, 1), "the one before went on"


@pytest.mark.parametrize("drained", [False, True])
def test_a_chief_that_dies_after_the_order_ends_the_wait(world: World, drained: bool) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2"))
    if drained:
        world.drain(1, successor=2)
    world.settle()
    world.change("net-chief-0", phase="Failed", exit_code=137, ended_s=world.now)
    world.settle()
    assert world.last(TaskExited).pod == "net-chief-0" and world.abandoned() == {}
    world.train(decided(3, "c3 p1 w2"))
    assert world.now == 1000.0 and world.ordered()[-1] == (3, None)
    assert list(world.abandoned()) == [2] and world.standing() == names("c3 p1 w2")


def test_a_lost_task_that_is_not_replaced_abandons_the_generation_after_a_timeout(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1"))
    world.stand(decided(2, "c0 p1 w2"))
    world.change("net-worker-2", phase="Failed", exit_code=1, ended_s=world.now)
    world.settle()
    assert world.abandoned() == {}
    world.wait()
    assert (
        world.now == 1000.0 + world.rules.overtake_s
        and "net-worker-2 ended" in world.abandoned()[2]
    )


def test_the_reason_of_an_ended_task_has_a_headline_and_the_log_below(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.stand(decided(2, "c0 p1 w2"))
    world.change(
        "net-worker-2",
        phase="Failed",
        exit_code=1,
        ended_s=world.now,
        message="one\ntwo\n",
        reason="Error",
    )
    world.settle()
    world.wait()
    assert world.abandoned()[2] == "net-worker-2 ended: Error (exit code 1)\none\ntwo"


def test_a_final_checkpoint_for_an_abandoned_generation_stops_nothing(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2"))
    world.fail(2, "net-worker-2")
    world.drain(1, successor=2)
    world.settle()
    world.train(decided(3, "c0 p1 w3"))
    assert world.ordered()[-1] == (3, 1), "it went on, so it must be drained"


def test_an_abandoned_generation_that_resumes_is_the_running_one(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2"))
    world.wait()
    assert 2 in world.abandoned()
    world.resume(2)
    world.settle()
    world.train(decided(3, "c0 p1 w3"))
    assert world.ordered()[-1] == (3, 2)


def test_a_generation_prepared_to_follow_another_one_is_abandoned(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2"))
    world.wait()
    world.stand(decided(3, "c0 p1 w3"))
    assert world.spec(3).previous == 1
    world.resume(2)
    world.settle()
    assert (
        world.abandoned()[3] == "generation 2 resumed meanwhile; this one was prepared to follow 1"
    )
    world.train(decided(4, "c0 p1 w4"))
    assert world.ordered()[-1] == (4, 2)


def test_a_superseded_decision_takes_no_final_checkpoint_of_another_generation(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2"))
    world.drain(1, successor=2)
    world.decide(decided(3, "c0 p1 w3"))
    world.decide(decided(4, "c0 p1 w4"))
    assert world.abandoned() == {3: "superseded by generation 4"}, (
        "nothing runs that could go on in place of 2"
    )
    world.resume(2)
    world.settle()
    world.train(decided(4, "c0 p1 w4"))
    assert world.ordered()[-1] == (4, 2)


def test_a_generation_that_saves_after_its_final_checkpoint_continued(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.drain(1)
    world.save(1, step=9)
    assert predecessor(world.view.bus_state.jobs[UID]) is None, "the same update"
    world.save(1, step=10)
    assert predecessor(world.view.bus_state.jobs[UID]) == 1


def test_a_lost_worker_is_reported_and_not_recreated(world: World) -> None:
    world.train(decided(1, "c0 p1 w2"))
    world.change(
        "net-worker-2", phase="Failed", exit_code=137, reason="OOMKilled", message="too big"
    )
    world.settle()
    fact = world.last(TaskExited)
    assert (fact.pod, fact.exit_code, fact.reason, fact.message) == (
        "net-worker-2",
        137,
        "OOMKilled",
        "too big",
    )
    world.vanish(world.pod("net-worker-2"))
    world.settle()
    assert len(world.all(TaskExited)) == 1 and world.standing() == names("c0 p1")
    world.train(decided(2, "c0 p1 w3"))
    assert world.standing() == names("c0 p1 w3")


def test_a_pod_deleted_between_two_lists_is_reported(world: World) -> None:
    world.train(decided(1, "c0 p1 w2"))
    del world.pods[world.pod("net-worker-2").uid]
    world.restart()
    world.settle()
    assert (world.last(TaskExited).pod, world.last(TaskExited).reason) == (
        "net-worker-2",
        "Deleted",
    )


def test_a_lost_pod_abandons_the_generation_in_flight(world: World) -> None:
    world.train(decided(1, "c0 p1 w2"))
    world.stand(decided(2, "c0 p1 w2 w3"))
    world.vanish(world.pod("net-worker-3"))
    world.settle()
    assert world.last(TaskExited).pod == "net-worker-3"
    assert world.abandoned() == {2: "net-worker-3 is gone"}


def test_a_pod_on_a_lost_node_is_lost_although_its_phase_says_running(world: World) -> None:
    world.train(decided(1, "c0 p1 w2"))
    world.node("node-2", ready=False)
    world.settle()
    assert world.all(TaskExited) == []
    world.wait()
    assert (world.last(TaskExited).pod, world.last(TaskExited).reason) == (
        "net-worker-2",
        "NodeLost",
    )
    world.node("node-2", ready=True)
    world.settle()
    assert len(world.all(TaskExited)) == 1


def test_a_node_that_is_back_before_the_timeout_costs_nothing(world: World) -> None:
    world.train(decided(1, "c0 p1 w2"))
    world.node("node-2", ready=False)
    world.now += world.rules.node_lost_s / 2
    world.node("node-2", ready=True)
    world.now += world.rules.node_lost_s
    world.settle()
    assert world.all(TaskExited) == []


def test_a_terminating_pod_on_a_node_that_is_not_ready_is_lost_at_once(world: World) -> None:
    world.train(decided(1, "c0 p1 w2"))
    world.node("node-2", ready=False)
    world.change("net-worker-2", terminating=True)
    world.settle()
    assert world.last(TaskExited).reason == "NodeLost"


def test_a_pause_removes_all_pods_and_the_next_generation_has_no_previous_one(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1"))
    world.decide(decided(2, ""))
    assert world.standing() == []
    world.reap()
    world.settle()
    assert world.all(TaskExited) == [] and world.abandoned() == {}
    world.train(decided(3, "c2 p3"))
    assert world.ordered() == [(1, None), (3, None)]
    assert world.standing() == names("c2 p3")


def test_a_waiting_job_creates_nothing(world: World) -> None:
    world.decide(decided(1, ""))
    assert world.done == []


def test_a_finished_job_leaves_nothing_even_after_a_late_decision(
    world: World,
) -> None:
    world.train(decided(1, "c0 p1 w2"))
    world.stand(decided(2, "c0 p1 w2 w3"))
    world.finish()
    world.settle()
    assert world.services == {} and world.standing() == []
    world.reap()
    world.decide(decided(3, "c0 p1"))
    assert world.pods == {} and world.services == {}
    assert world.view.pods == {} and world.view.bus_state.jobs == {}


def test_a_new_job_of_the_same_name_waits_until_the_names_are_free(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.finish()
    world.settle()
    world.decide(decided(1, "c0 p1", uid=9))
    assert {p.job_uid for p in world.pods.values()} == {UID}
    world.reap()
    world.settle()
    assert {p.job_uid for p in world.pods.values()} == {9}


def test_objects_of_unknown_jobs_are_deleted_after_a_timeout(world: World) -> None:
    world.show(
        PodFact(
            namespace="default", job="old", job_uid=3, role="ps", serial=0, name="old-ps-0", uid="x"
        )
    )
    world.services[3] = ServiceFact(namespace="default", name="old", uid="y", job_uid=3)
    world.view = with_service(world.view, world.services[3], deleted=False)
    world.settle()
    assert world.standing() == ["old-ps-0"]
    world.now += world.rules.orphan_s
    world.settle()
    assert world.standing() == [] and world.services == {}


def test_a_refused_pod_abandons_its_generation(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.hear(decided(2, "c0 p1 w2"))
    world.view = with_refusal(world.view, UID, 2, "403 Forbidden: exceeded quota")
    world.settle()
    assert world.abandoned() == {2: "403 Forbidden: exceeded quota"}


def test_a_deleted_pending_pod_is_created_again(world: World) -> None:
    world.decide(decided(1, "c0 p1"))
    world.vanish(world.pod("net-ps-1"))
    world.settle()
    assert world.standing() == names("c0 p1")


def test_the_restart_of_the_launcher_does_not_count_against_a_generation() -> None:
    world = World()
    world.decide(decided(1, "c0 p1"))
    world.now += 10 * world.rules.start_timeout_s
    world.view = replace(world.view, watching_since_s=world.now)
    world.settle()
    assert world.abandoned() == {}


def test_actions_under_way_are_not_repeated() -> None:
    world = World()
    world.hear(decided(1, "c0 p1"))
    first = reconcile(world.view, world.now, world.rules)
    for action in first:
        world.view = replace(
            world.view, pending_actions=world.view.pending_actions | {action.key()}
        )
    assert first and reconcile(world.view, world.now, world.rules) == []


def test_a_deletion_has_the_uid_of_the_pod() -> None:
    world = World()
    world.train(decided(1, "c0 p1 w2"))
    victim = world.pod("net-worker-2").uid
    world.train(decided(2, "c0 p1"))
    assert [a.uid for a in world.done if isinstance(a, DeletePod)] == [victim]


@pytest.mark.parametrize("restarts", [False, True])
def test_the_grace_period_covers_the_jobs_last_changes(restarts: bool) -> None:
    world = World(restarts=restarts, grace_most_s=200.0)
    for generation, (words, change_s) in enumerate(
        [("c0 p1", 60.0), ("c0 p1 w2", 5.0), ("c0 p1 w3", 900.0)], 1
    ):
        world.train(decided(generation, words), change_s=change_s)
    world.train(decided(4, "c0 p1 w4"))

    given = {action.name: action.grace_s for action in world.done if isinstance(action, CreatePod)}
    assert given == {
        "net-chief-0": 200.0,  # nothing was measured yet
        "net-ps-1": 200.0,
        "net-worker-2": 90.0,
        "net-worker-3": 90.0,  # the longest of those that count
        "net-worker-4": 200.0,  # at most the limit
    }


def test_a_deletion_has_the_requested_grace_period() -> None:
    pod = PodFact(
        namespace="d", job="o", job_uid=3, role="ps", serial=0, name="o-ps-0", uid="x", grace_s=45
    )
    assert delete_pod(pod).grace_s == 45


def test_a_spec_has_the_time_of_its_decision() -> None:
    world = World()
    world.train(decided(1, "c0 p1"))
    (spec,) = [message for message in world.said if isinstance(message, ClusterSpecPublished)]
    assert spec.decided_s == world.view.bus_state.jobs[UID].generations[1].decided_s > 0


def test_an_empty_view_has_no_actions() -> None:
    assert reconcile(View(), 0.0, World().rules) == []
    orphan = PodFact(
        namespace="d", job="o", job_uid=3, role="ps", serial=0, name="o-ps-0", uid="x", deleted=True
    )
    assert reconcile(with_pod(View(), orphan), 1e9, World().rules) == []
