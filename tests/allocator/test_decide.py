"""Tests of the decisions about one job, from the facts about it."""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.settings import Rules
from shared.messages import CancelRequested, JobFinished, Resources, RoleResources, Taint
from tests.allocator.builders import (
    AT_ONCE,
    EVEN,
    Story,
    abandoned,
    accepted,
    exited,
    node,
    own,
    progress,
    request,
    resumed,
    size,
    span,
    tasks,
)


def running(story: Story, cpu: float = 3) -> Story:
    """Return a job of one ps and one worker that fills its node and trains as generation 1."""
    first = story.hear(node(cpu=cpu), accepted()).decided()
    listed = own("mnist", *first.tasks)
    return story.hear(node(cpu=cpu, free=cpu - len(first.tasks), own=listed), resumed(1))


def test_a_job_starts_at_its_size_on_a_node_with_room():
    first = Story().hear(node(), accepted()).decided()
    assert size(first) == (1, 1) and first.generation == first.revision == 1
    assert [(t.role, t.index, t.serial, t.node) for t in first.tasks] == [
        ("chief", 0, 0, "n1"),
        ("ps", 0, 1, "n1"),
        ("worker", 0, 2, "n1"),
    ]


def test_a_job_waits_until_its_gang_floor_fits():
    story = Story().hear(node(cpu=2), accepted())
    assert story.decide() == ()
    assert story.why() == "waits for room (too little cpu) for a chief, 1 ps and 1 worker"
    assert size(story.hear(node("n2", cpu=1)).decided()) == (1, 1)


def test_a_job_starts_smaller_if_its_start_size_does_not_fit():
    big = request(ps=request().ps, workers=replace(request().workers, start=4, max=4))
    first = Story().hear(node(cpu=5), accepted(big)).decided()
    assert size(first) == (1, 3) and "as far as there is room" in first.reason


def test_nothing_is_put_on_a_node_that_is_cordoned_tainted_or_not_ready():
    shut = (
        node("a", schedulable=False),
        node("b", ready=False),
        node("c", taints=(Taint(key="gpu", effect="NoSchedule"),)),
    )
    assert Story().hear(*shut, accepted()).decide() == ()


def test_a_job_grows_when_a_foreign_pod_leaves():
    story = running(Story())
    assert story.decide() == ()
    assert story.why() == "no node has room for another ps"
    grown = story.hear(node("n2", cpu=2)).decided()
    assert size(grown) == (2, 2) and (grown.generation, grown.revision) == (2, 2)
    assert set(grown.tasks) > set(story.state.jobs["default.mnist"].active_decision.tasks)
    assert grown.reason == "free resources exist" and grown.alternatives


def test_nothing_is_decided_while_a_generation_is_in_flight():
    story = running(Story())
    story.hear(node("n2", cpu=2)).decided()
    assert story.hear(node("n3")).decide() == ()
    assert story.why() == "generation 2 is in flight: free resources exist"


def test_a_job_waiting_for_fragmented_capacity_grows_partially_after_a_while():
    """Three cores on one node and one on another are two workers of two cores in sum.

    There is room for only one of them.
    """
    wide = RoleResources(chief=Resources(cpu=1), ps=Resources(cpu=1), worker=Resources(cpu=2))
    asked = request(resources=wide, ps=span(1), workers=span(2, most=4))
    story = Story(replace(AT_ONCE, policy="weir", max_delay_s=30.0)).hear(
        node(cpu=6), accepted(asked)
    )
    listed = own("mnist", *story.decided().tasks)
    story.hear(node(cpu=6, free=0, own=listed), node("n2", cpu=3), node("n3", cpu=1))
    story.hear(resumed(1), progress(1, done=100, total=1_000_000, speed=20.0))
    assert story.decide() == () and story.why().startswith("waits for room (too little cpu)")
    grown = story.decided(after_s=30.0)
    assert size(grown) == (1, 3) and "as far as there is room (too little cpu)" in grown.reason
    assert "(wanted: 1 ps and 4 workers)" in grown.reason and grown.gain_s > grown.cost_s


def test_a_job_does_not_grow_for_less_than_its_pause():
    story = running(Story()).hear(progress(1, done=900, total=1000, speed=10))
    assert story.hear(node("n2", cpu=2)).decide() == ()
    assert "is not worth the pause: saves 5.00 s for a pause of 5.00 s" in story.why()
    story.hear(progress(1, done=901, total=2000, speed=10, step=2))
    assert size(story.decided()) == (2, 2)


def test_an_implausible_speed_blocks_nothing_and_promises_no_gain():
    story = running(Story()).hear(progress(1, done=0, total=1000, speed=1e-310), node("n2", cpu=2))
    grown = story.decided()
    assert size(grown) == (2, 2) and grown.gain_s == 0.0


def test_a_resized_job_must_report_before_the_next_resize():
    story = running(Story()).hear(progress(1, done=100, total=100_000, speed=10))
    grown = story.hear(node("n2", cpu=2)).decided()
    assert size(grown) == (2, 2)
    new = own("mnist", *(task for task in grown.tasks if task.node == "n2"))
    story.hear(node("n2", cpu=2, free=0, own=new), resumed(2), node("n3", cpu=1))
    assert story.decide() == () and story.why() == "waits for a speed report at its present size"
    assert size(story.hear(progress(2, done=200, total=100_000, speed=20)).decided()) == (2, 3)


def test_a_change_needs_stabilisation_and_cooldown():
    story = running(Story(replace(AT_ONCE, window_s=2.0, max_delay_s=5.0, cooldown_s=10.0)))
    resumed_s = story.now
    assert story.hear(node("n2", cpu=2)).decide() == ()
    assert story.decisions.wake_s == resumed_s + 10
    assert story.decide(after_s=8.9) == ()
    assert size(story.decided(after_s=0.2)) == (2, 2)


def test_a_moving_target_is_granted_after_the_maximum_delay():
    story = running(Story(replace(AT_ONCE, window_s=3.0, max_delay_s=5.0)))
    for cpu in (2, 3, 4):
        assert story.hear(node("n2", cpu=cpu), after_s=2.0).decide() == ()
    assert story.decisions.wake_s == story.now + 1.0
    assert size(story.hear(node("n2", cpu=1), node("n3", cpu=1)).decided()) == (2, 2)


def test_a_lost_worker_is_replaced_by_a_new_serial_with_its_index():
    story = running(Story(), cpu=4)
    worker = tasks(story.state.jobs["default.mnist"].active_decision, "worker")[0]
    survivors = [t for t in story.state.jobs["default.mnist"].active_decision.tasks if t != worker]
    fixed = story.hear(
        node(cpu=4, free=2, own=own("mnist", *survivors)), exited(worker, 137)
    ).decided()
    (new,) = tasks(fixed, "worker")
    assert new.serial == 3 and new.index == worker.index and fixed.generation == 2
    assert set(survivors) < set(fixed.tasks) and fixed.cause == "mnist-worker-2"


def test_a_lost_task_supersedes_the_generation_in_flight():
    story = running(Story(), cpu=4)
    runs = story.state.jobs["default.mnist"].active_decision
    story.hear(node("n2", cpu=3)).decided()
    fixed = story.hear(node("n3", cpu=1), exited(tasks(runs, "ps")[0], None, "NodeLost")).decided()
    assert fixed.generation == 3 and size(fixed) == (2, 4)


def test_a_job_stopped_with_its_cluster_continues_without_losses():
    story = running(Story())
    runs = story.state.jobs["default.mnist"].active_decision
    story.hear(*(exited(task, 143, "Terminated") for task in runs.tasks))
    again = story.hear(node(cpu=3)).decided()
    stopped = (
        "was stopped with its cluster or its nodes (3 pods: mnist-chief-0, mnist-ps-1 and 1 more);"
        " replaced"
    )
    assert size(again) == (1, 1) and again.reason == stopped, (
        "of no loss, and so of no budget against which it counts"
    )


def test_a_job_stopped_with_its_cluster_waits_for_returning_nodes():
    story = Story(replace(AT_ONCE, settle_s=1.0)).hear(
        node("n1", cpu=2), node("n2", cpu=2), accepted()
    )
    first = story.decided()
    assert {task.node for task in first.tasks} == {"n1", "n2"}
    story.hear(resumed(1), node("n1", cpu=2, ready=False), node("n2", cpu=2, ready=False))
    story.hear(*(exited(task, 143, "Terminated") for task in first.tasks))

    assert story.decide(after_s=3600.0) == (), "the nodes may be others by now"
    assert "waits for room" in story.why()
    assert (
        story.hear(node("n1", cpu=2)).decide() == () and story.decisions.wake_s == story.now + 1.0
    )
    again = story.hear(node("n2", cpu=2), after_s=0.02).decided()
    assert size(again) == size(first)


def test_a_job_stopped_with_its_cluster_starts_on_the_returned_nodes():
    story = Story(replace(AT_ONCE, settle_s=1.0))
    asked = request(workers=replace(request().workers, start=3))
    first = story.hear(node("n1", cpu=3), node("n2", cpu=2), accepted(asked)).decided()
    story.hear(resumed(1), node("n1", cpu=3, ready=False), node("n2", cpu=2, ready=False))
    story.hear(*(exited(task, 143, "Terminated") for task in first.tasks))

    assert story.hear(node("n1", cpu=3)).decide() == ()
    again = story.decided(after_s=1.0)
    assert {task.node for task in again.tasks} == {"n1"}


def test_a_job_of_a_killed_cluster_waits_for_returning_nodes():
    story = Story(replace(AT_ONCE, settle_s=1.0))
    asked = request(workers=replace(request().workers, start=3))
    first = story.hear(node("n1", cpu=3), node("n2", cpu=2), accepted(asked)).decided()
    story.hear(resumed(1), node("n1", cpu=3, ready=False), node("n2", cpu=2, ready=False))
    story.hear(*(exited(task, None, "Deleted") for task in first.tasks))

    assert story.decide(after_s=10.0) == (), "nothing is known of nodes yet"
    assert story.hear(node("n1", cpu=3)).decide() == (), "it would be smaller"
    assert size(story.hear(node("n2", cpu=2), after_s=0.02).decided()) == size(first)


def test_a_job_does_not_shrink_while_a_lost_pods_capacity_may_come_free():
    story = running(Story(replace(AT_ONCE, settle_s=1.0)))
    runs = story.state.jobs["default.mnist"].active_decision
    assert story.hear(exited(tasks(runs, "worker")[0])).decide() == ()
    assert story.decisions.wake_s == story.now + 1.0
    fixed = story.hear(
        node(cpu=3, free=1, own=own("mnist", *runs.tasks[:2])), after_s=0.02
    ).decided()
    assert size(fixed) == (1, 1)


def test_a_job_that_cannot_replace_a_task_shrinks_or_waits():
    story = Story().hear(
        node("n1", cpu=3),
        node("n2", cpu=1),
        accepted(request(workers=replace(request().workers, start=2))),
    )
    first = story.decided()
    listed = {n: own("mnist", *(t for t in first.tasks if t.node == n)) for n in ("n1", "n2")}
    story.hear(
        *(node(n, cpu=c, free=0, own=listed[n]) for n, c in (("n1", 3), ("n2", 1))), resumed(1)
    )
    workers = tasks(first, "worker")
    shrunk = story.hear(exited(workers[1], None, "NodeLost")).decided()
    assert size(shrunk) == (1, 1)
    assert story.hear(resumed(2), exited(workers[0], 143)).decide() == ()
    assert story.why().endswith(
        "waits for room (too little cpu: no node has any cpu free) to replace it"
    )


def test_three_task_failures_fail_the_job():
    story = running(Story(), cpu=12)
    for generation in (1, 2):
        worker = tasks(story.state.jobs["default.mnist"].active_decision, "worker")[0]
        story.hear(exited(worker, 1, "Error", generation)).decided()
        story.hear(resumed(generation + 1))
    worker = tasks(story.state.jobs["default.mnist"].active_decision, "worker")[0]
    (finished,) = story.hear(exited(worker, 1, "Error", 3)).decide()
    assert isinstance(finished, JobFinished) and finished.outcome == "failed"
    assert (
        finished.cause
        == f"3 generations failed within 1 h; the last: mnist-worker-{worker.serial}: Error, exit"
        " code 1"
    )
    assert story.state.jobs == {}


def test_a_task_that_ran_out_of_memory_gets_more():
    story = running(Story(), cpu=12)
    worker = tasks(story.state.jobs["default.mnist"].active_decision, "worker")[0]
    fixed = story.hear(exited(worker, 137, "OOMKilled")).decided()
    assert tasks(fixed, "worker")[0].resources.memory_gib == 1.5


def test_a_chief_that_exits_with_zero_is_replaced_only_if_the_job_does_not_end():
    story = running(Story(), cpu=12)
    chief = tasks(story.state.jobs["default.mnist"].active_decision, "chief")[0]
    assert story.hear(exited(chief, 0, "Completed")).decide() == ()
    assert story.decisions.wake_s == story.now + story.rules.finish_s
    fixed = story.decided(after_s=story.rules.finish_s)
    assert [t.serial for t in tasks(fixed, "chief")] != [chief.serial]


def test_a_worker_that_exits_with_zero_early_is_replaced():
    story = running(Story(), cpu=12)
    worker = tasks(story.state.jobs["default.mnist"].active_decision, "worker")[0]
    fixed = story.hear(exited(worker, 0, "Completed")).decided()
    assert worker.serial not in {t.serial for t in fixed.tasks}


def test_after_an_abandonment_growth_backs_off():
    story = running(Story(replace(AT_ONCE, backoff_s=4.0)))
    story.hear(node("n2", cpu=2)).decided()
    assert story.hear(abandoned(2)).decide() == ()
    assert story.state.jobs["default.mnist"].newest_decision.generation == 1
    assert story.decide(after_s=3.9) == ()
    again = story.decided(after_s=0.2)
    assert (again.generation, again.revision) == (3, 3)
    assert {t.serial for t in again.tasks} == {0, 1, 2, 5, 6}
    assert story.hear(abandoned(3)).decide() == () and story.decisions.wake_s == story.now + 8.0


def test_a_job_without_room_for_two_generations_uses_restart_hand_overs():
    story = running(Story(AT_ONCE))
    story.hear(node("n2", cpu=2)).decided()
    short = replace(abandoned(2), reason="mnist-worker-2: NotEnoughMemory: 0.9 GiB are in use")
    again = story.hear(short).decided(after_s=1000)
    assert (again.generation, again.request.handover) == (3, "restart")


def test_a_job_that_never_starts_fails_after_its_retries():
    story = Story(replace(AT_ONCE, max_start_failures=2)).hear(node(), accepted())
    for generation in (1, 2):
        assert story.decided().generation == generation
        story.hear(abandoned(generation))
    (finished,) = story.decide()
    assert (
        isinstance(finished, JobFinished)
        and "not started in 2 tries; Unschedulable" in finished.cause
    )


def test_a_cancelled_job_is_finished_and_its_promises_are_released():
    story = Story().hear(node(cpu=3), accepted())
    story.decided()
    (finished,) = story.hear(CancelRequested(job="mnist")).decide()
    assert isinstance(finished, JobFinished) and finished.outcome == "cancelled"
    assert size(story.hear(accepted(request("next"), uid=9)).decided()) == (1, 1)


def test_promised_capacity_is_not_given_to_another_job():
    story = Story().hear(node(cpu=5), accepted(), accepted(request("second"), uid=2))
    (first,) = story.decide()
    assert first.job == "mnist"
    assert story.why("second").startswith("waits for room")


def test_the_job_of_higher_priority_starts_first():
    story = Story().hear(node(cpu=3), accepted(), accepted(request("urgent", priority=5), uid=2))
    (first,) = story.decide()
    assert first.job == "urgent"


def test_a_static_job_never_changes():
    story = Story(Rules(policy="static", cooldown_s=0, window_s=0)).hear(node(cpu=30), accepted())
    story.decided()
    assert story.hear(resumed(1)).decide() == ()
    assert story.why() == "keeps its size: its policy gives no target"


def test_ps_and_workers_grow_in_their_starting_ratio():
    two_each = request(
        workers=replace(request().workers, start=2, max=6), ps=replace(request().ps, max=3)
    )
    story = Story().hear(node(cpu=4), accepted(two_each))
    assert size(story.decided()) == (1, 2)
    assert size(story.hear(resumed(1), node("n2", cpu=4)).decided()) == (2, 4)


def test_a_gpu_task_goes_only_to_a_gpu_node():
    wants = RoleResources(
        chief=EVEN.chief, ps=EVEN.ps, worker=Resources(cpu=1, memory_gib=1, gpu=1)
    )
    story = Story().hear(node("plain"), accepted(request(resources=wants)))
    assert story.decide() == ()
    with_gpu = replace(node("rich"), free=Resources(cpu=4, memory_gib=8, gpu=1))
    assert tasks(story.hear(with_gpu).decided(), "worker")[0].node == "rich"
