"""Tests of evacuation: tasks that have to leave a node move while they still work.

Evicted tasks move at once; those of a cordoned node move if all of them fit elsewhere.
"""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.settings import Rules
from shared.messages import AllocationDecided, Taint, TaskLeaving, TaskPlan
from tests.allocator.builders import (
    AT_ONCE,
    UID,
    Story,
    abandoned,
    accepted,
    exited,
    node,
    own,
    request,
    resumed,
    size,
    span,
    tasks,
)

SLOW = replace(
    AT_ONCE, policy="static", window_s=60, cooldown_s=600, max_delay_s=600, backoff_s=5, settle_s=0
)


def leaving(
    task: TaskPlan, why: str = "SIGTERM", leaves_s: float = 0.0, generation: int = 1
) -> TaskLeaving:
    return TaskLeaving(
        job="mnist",
        uid=UID,
        generation=generation,
        pod=task.pod("mnist"),
        pod_uid=f"pod-{task.serial}",
        role=task.role,
        serial=task.serial,
        node=task.node,
        why=why,
        leaves_s=leaves_s,
    )


def training(
    rules: Rules = SLOW, spare: float = 8, workers: int = 1, least: int = 1
) -> tuple[Story, AllocationDecided]:
    """Return a job whose generation 1 fills n1; n2 has `spare` free cores."""
    asked = request(ps=span(1), workers=span(workers, least))
    cores = 2 + workers
    story = Story(rules).hear(node("n1", cpu=cores), accepted(asked))
    first = story.decided()
    return story.hear(
        node("n1", cpu=cores, free=0, own=own("mnist", *first.tasks)),
        node("n2", cpu=spare),
        resumed(1),
    ), first


def closed(first: AllocationDecided, name: str = "n1", **fields: object) -> object:
    return node(
        name, cpu=3, free=0, own=own("mnist", *first.tasks), **{"schedulable": False, **fields}
    )


def test_an_evicted_task_moves_at_once_and_others_stay():
    story, first = training()
    (ps,) = tasks(first, "ps")
    moved = story.hear(leaving(ps, leaves_s=2000.0)).decided()
    assert moved.reason == "mnist-ps-1 has to leave n1 (SIGTERM); moved"
    assert [(t.node, t.index) for t in tasks(moved, "ps")] == [("n2", 0)]
    assert [t for t in moved.tasks if t.role != "ps"] == [t for t in first.tasks if t.role != "ps"]
    assert story.decide() == () and "in flight" in story.why()


def test_a_repeated_notice_moves_a_task_once():
    story, first = training()
    notice = leaving(tasks(first, "worker")[0])
    story.hear(notice).decided()
    assert story.hear(notice, resumed(2), notice).decide() == ()


def test_an_evicted_task_does_not_move_to_its_own_node():
    story, first = training(spare=0)
    story.hear(node("n1", cpu=9, free=6, own=own("mnist", *first.tasks)))
    assert story.hear(leaving(tasks(first, "ps")[0], leaves_s=2000.0)).decide() == ()
    assert story.why() == "mnist-ps-1 has to leave n1 (SIGTERM); there is no room for it elsewhere"
    again = story.hear(exited(tasks(first, "ps")[0], 143)).decided()
    assert again.reason.startswith("lost mnist-ps-1 (exit code 143); replaced (not the job's fault")
    assert tasks(again, "ps")[0].node == "n1"


def test_an_eviction_supersedes_the_generation_in_flight():
    story, first = training()
    worker, ps = tasks(first, "worker")[0], tasks(first, "ps")[0]
    story.hear(leaving(worker)).decided()
    again = story.hear(leaving(ps)).decided()
    assert (
        again.generation == 3
        and tasks(again, "ps")[0].node == "n2"
        and tasks(again, "worker")[0].serial == 3
    )


def test_an_evacuated_job_may_shrink_to_its_minimum():
    story, first = training(spare=1, workers=3)
    doomed = tasks(first, "worker")[:2]
    moved = story.hear(closed(first), *map(leaving, doomed)).decided()
    assert size(moved) == (1, 2) and moved.reason.endswith("moved, as far as there is room")
    assert not {t.serial for t in doomed} & {t.serial for t in moved.tasks}


def test_an_evicted_job_waits_for_its_own_capacity_on_the_same_node():
    story, first = training(spare=1, workers=3)
    doomed = tasks(first, "worker")[:2]
    story.hear(*(leaving(t, "Deleted", leaves_s=2000.0) for t in doomed))
    assert story.decide() == () and story.why().endswith("there is no room for it elsewhere")
    left = own("mnist", *(t for t in first.tasks if t not in doomed))
    whole = story.hear(
        *(exited(t, 143, "Deleted") for t in doomed), node("n1", cpu=5, free=2, own=left)
    ).decided()
    assert size(whole) == (1, 3) and "as far as" not in whole.reason


def test_evicted_tasks_move_before_cordoned_ones():
    story, first = training(spare=1)
    (ps,) = tasks(first, "ps")
    story.hear(
        *(leaving(t, "NodeCordoned") for t in first.tasks),
        closed(first),
        leaving(ps, "Deleted", 2000.0),
    )
    assert [t.role for t in story.decided().tasks if t.node == "n2"] == ["ps"]


def test_a_cordoned_task_without_room_blocks_no_other_change():
    grows = replace(SLOW, policy="config-manager", window_s=0, cooldown_s=0, max_delay_s=0)
    story, first = training(grows, spare=0)
    tainted = closed(first, schedulable=True, taints=(DISRUPTED,))
    story.hear(tainted, *(leaving(t, "NodeTainted") for t in first.tasks)).decide()
    assert (
        not story.why().startswith("mnist-")
        and "mnist-ps-1 has to leave n1 (NodeTainted) when" in story.why()
    )
    story.hear(*(leaving(t, "NodeTainted", 2000.0) for t in first.tasks)).decide()
    assert story.why().endswith("there is no room for it elsewhere"), "by then it is over"


def test_tasks_of_a_cordoned_node_move_only_if_all_fit_elsewhere():
    story, first = training(spare=2)
    story.hear(closed(first), *(leaving(t, "NodeCordoned") for t in first.tasks))
    assert story.decide() == ()
    assert story.why().endswith(
        "mnist-worker-2 will move from a cordoned node when all of that fits elsewhere"
    )
    moved = story.hear(node("n2", cpu=3)).decided()
    assert {t.node for t in moved.tasks} == {"n2"} and size(moved) == (1, 1)


def test_a_node_notice_moves_exactly_its_tasks():
    story, first = training()
    ps, worker = tasks(first, "ps")[0], tasks(first, "worker")[0]
    away = story.hear(leaving(ps)).decided()
    story.hear(resumed(2), closed(first), leaving(worker, "NodeCordoned", generation=2))
    moved = story.decided()
    assert [t for t in moved.tasks if t.role == "ps"] == tasks(away, "ps") and {
        t.node for t in moved.tasks
    } == {"n2"}


def test_a_cordon_waits_for_the_generation_in_flight():
    story, first = training()
    (worker,) = tasks(first, "worker")
    story.hear(exited(worker)).decided()
    story.hear(closed(first), *(leaving(t, "NodeCordoned") for t in first.tasks))
    assert story.decide() == () and "in flight" in story.why()
    moved = story.hear(resumed(2)).decided()
    assert {t.node for t in moved.tasks} == {"n2"}


NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")
DISRUPTED = Taint(key="karpenter.sh/disrupted", effect="NoSchedule")


def test_an_uncordon_withdraws_the_notice():
    story, first = training(spare=0)
    story.hear(closed(first), *(leaving(t, "NodeCordoned") for t in first.tasks))
    assert story.decide() == () and "cordoned" in story.why()
    story.hear(closed(first, schedulable=True), node("n2", cpu=8))
    assert story.decide() == () and "cordoned" not in story.why()
    story.hear(closed(first, schedulable=True, ready=False, taints=(NOT_READY,)))
    assert story.decide() == (), "a node that is not ready sends nobody away"
    assert {t.node for t in story.hear(closed(first)).decided().tasks} == {"n2"}, (
        "it is told of once"
    )
    assert story.replayed() == story.facts


def test_a_removed_taint_does_not_affect_a_later_cordon():
    story, first = training(spare=2)
    tainted = closed(first, schedulable=True, taints=(DISRUPTED,))
    story.hear(
        closed(first, schedulable=True),
        closed(first),
        *(leaving(t, "NodeTainted") for t in first.tasks),
    )
    assert story.decide() == () and "from a cordoned node" in story.why(), (
        "the job never shrinks for it"
    )
    moved = story.hear(tainted, node("n2", cpu=3)).decided()
    assert moved.reason.startswith("mnist-chief-0 has to leave n1 (NodeTainted)")


def test_the_eviction_of_another_jobs_pod_is_no_cordon():
    story, first = training(spare=0)
    story.hear(closed(first), *(leaving(t, "NodeCordoned") for t in first.tasks))
    story.hear(
        node("n1", cpu=8, free=5, own=own("mnist", *first.tasks)), accepted(request("other"), uid=2)
    )
    (other,) = story.decide()
    story.hear(resumed(other.generation, job="other", uid=2), node("n2", cpu=8))
    sent_away = replace(
        leaving(other.tasks[1]), job="other", uid=2, pod=f"other-ps-{other.tasks[1].serial}"
    )
    assert [decision.job for decision in story.hear(sent_away).decide()] == ["other"]


def test_lost_and_evicted_tasks_are_replaced_together():
    story, first = training()
    (worker,), (ps,) = tasks(first, "worker"), tasks(first, "ps")
    both = story.hear(leaving(ps), exited(worker)).decided()
    assert {t.serial for t in both.tasks} & {worker.serial, ps.serial} == set()


def test_an_abandoned_evacuation_is_retried_after_a_backoff():
    story, first = training()
    story.hear(leaving(tasks(first, "ps")[0])).decided()
    assert story.hear(abandoned(2)).decide() == ()
    assert story.decisions.wake_s == story.now + 5.0
    assert story.decided(after_s=5.0).generation == 3


def test_the_most_severe_and_earliest_notice_counts():
    story, first = training(spare=0)
    ps = tasks(first, "ps")[0]
    story.hear(
        leaving(ps, "NodeTainted", 3000.0),
        leaving(ps, "NodeCordoned"),
        leaving(ps, "SIGTERM", 2000.0),
    )
    story.hear(leaving(ps, "Evicted", 2500.0))
    known = story.state.jobs["default.mnist"].leaving["mnist-ps-1"]
    assert (known.why, known.leaves_s) == ("SIGTERM", 2000.0)
    assert story.replayed() == story.facts


def test_an_eviction_uses_no_failure_budget():
    story, first = training()
    (ps,) = tasks(first, "ps")
    story.hear(leaving(ps)).decided()
    story.hear(exited(ps, 143, "Deleted"))
    job = story.state.jobs["default.mnist"]
    assert (job.failed_generations, job.killed_generations) == ((), ()) and list(job.exits) == [
        "mnist-ps-1"
    ]
    job = story.hear(resumed(2)).state.jobs["default.mnist"]
    assert (job.failed_generations, job.killed_generations, job.abandonments, job.leaving) == (
        (),
        (),
        0,
        {},
    )
