"""Tests of resizing in place: the generation stays the same and training does not pause.

No task grows beyond the free capacity of its node.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.placement.free_capacity import free_nodes
from services.allocator.policies.contract import Target
from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from shared.messages import AllocationDecided, Resources, RoleResources
from tests.allocator.builders import (
    AT_ONCE,
    EVEN,
    ONE_CORE,
    Story,
    abandoned,
    accepted,
    exited,
    node,
    own,
    progress,
    resumed,
    size,
    tasks,
)
from tests.allocator.fuzz.laws import check
from tests.allocator.fuzz.world import STEPS, World


def cores(ps: float, worker: float, worker_gib: float = 1.0) -> RoleResources:
    return RoleResources(
        chief=ONE_CORE,
        ps=Resources(cpu=ps, memory_gib=1.0),
        worker=Resources(cpu=worker, memory_gib=worker_gib),
    )


class Told:
    """A policy with the targets that a test sets."""

    def __init__(self) -> None:
        self.ps, self.workers, self.sizes = 1, 1, dict[str, RoleResources | None]()

    def __call__(self, nodes: Any, jobs: Any, now: float) -> list[Target]:
        return [
            Target(
                job=job.key,
                ps=self.ps,
                workers=self.workers,
                batch=32,
                reason="told so",
                sizes=self.sizes.get(job.request.job),
            )
            for job in jobs
        ]


@pytest.fixture
def told() -> Iterator[Told]:
    POLICIES["told"] = policy = Told()
    yield policy
    del POLICIES["told"]


RULES = replace(AT_ONCE, policy="told")


def running(cpu: float = 6, rules: Rules = RULES) -> Story:
    """Return a job that trains with a chief, a ps and a worker of one core each."""
    story = Story(rules)
    first = story.hear(node(cpu=cpu), accepted()).decided()
    return story.hear(node(cpu=cpu, free=cpu - 3, own=own("mnist", *first.tasks)), resumed(1))


def has(decision: AllocationDecided) -> list[float]:
    """Return the cores of chief, ps and worker."""
    return [task.resources.cpu for task in decision.tasks]


def free(story: Story) -> float:
    return free_nodes(story.state)[0].free.cpu


def test_new_task_resources_are_a_new_revision(told: Told) -> None:
    story = running()
    told.sizes["mnist"] = cores(0.5, 2.5)
    now = story.decided()
    assert (now.generation, now.revision) == (1, 2) and has(now) == [1, 0.5, 2.5]
    assert [(t.serial, t.node) for t in now.tasks] == [(t.serial, "n1") for t in now.tasks]
    assert now.reason == "told so" and story.decide() == ()


def test_a_job_without_a_target_keeps_its_resources(told: Told) -> None:
    story = running()
    told.sizes["mnist"] = cores(0.5, 2.5)
    story.decided()
    told.sizes.clear()
    assert story.decide() == () and story.why() == "told so"


def test_a_grow_in_place_is_reserved_at_once_and_a_shrink_is_free_when_observed(
    told: Told,
) -> None:
    story = running(cpu=6)
    told.sizes["mnist"] = cores(0.5, 2.5)
    now = story.decided()
    (seen,) = free_nodes(story.state)
    assert (seen.free.cpu, seen.returning.cpu) == (1.5, 0.5)
    (seen,) = free_nodes(story.hear(node(cpu=6, free=2.0, own=own("mnist", *now.tasks))).state)
    assert (seen.free.cpu, seen.returning.cpu) == (2.0, 0.0)


def test_a_task_without_room_keeps_its_resources_and_others_change(told: Told) -> None:
    story = running(cpu=4)
    told.sizes["mnist"] = cores(0.5, 2.5)
    now = story.decided()
    assert has(now) == [1, 0.5, 1] and now.reason == "told so, as far as there is room"
    assert (
        story.decide() == () and story.why() == "waits for room for more cores or memory: told so"
    )
    story.hear(node(cpu=4, free=1.5, own=own("mnist", *now.tasks)))
    assert has(story.decided()) == [1, 0.5, 2.5]


def test_nothing_grows_in_place_on_a_cordoned_node(told: Told) -> None:
    story = running()
    told.sizes["mnist"] = cores(0.5, 2.5)
    listed = own("mnist", *story.state.jobs["default.mnist"].active_decision.tasks)
    assert has(story.hear(node(cpu=6, free=3, own=listed, schedulable=False)).decided()) == [
        1,
        0.5,
        1,
    ]


def test_a_grow_in_place_waits_for_a_shrink(told: Told) -> None:
    story = Story(RULES).hear(
        node(cpu=6), accepted(), accepted(replace(accepted().request, job="other"), uid=2)
    )
    first = {a.job: a for a in story.decide()}
    pods = [pod for job, action in first.items() for pod in own(job, *action.tasks)]
    story.hear(node(cpu=6, free=0, own=tuple(pods)), resumed(1), resumed(1, job="other", uid=2))
    told.sizes |= {"mnist": cores(1.0, 1.5), "other": cores(0.5, 1.0)}
    (shrunk,) = story.decide()
    assert isinstance(shrunk, AllocationDecided) and shrunk.job == "other"
    assert story.decide() == ()
    pods = [*own("mnist", *first["mnist"].tasks), *own("other", *shrunk.tasks)]
    assert has(story.hear(node(cpu=6, free=0.5, own=tuple(pods))).decided()) == [1, 1, 1.5]


def test_in_place_changes_need_stabilisation_but_no_cooldown(told: Told) -> None:
    story = running(rules=replace(RULES, window_s=2.0, max_delay_s=5.0, cooldown_s=100.0))
    told.sizes["mnist"] = cores(0.5, 2.5)
    assert story.decide() == () and story.decisions.wake_s == story.now + 2.0
    assert story.decide(after_s=1.0) == ()
    told.sizes["mnist"] = cores(0.5, 2.0)
    assert story.decide(after_s=0.5) == (), "another wish"
    assert has(story.decided(after_s=2.0)) == [1, 0.5, 2.0]


def test_after_an_abandoned_generation_nothing_changes_in_place(told: Told) -> None:
    story = running()
    told.workers = 2
    assert size(story.decided()) == (1, 2)
    told.workers, told.sizes["mnist"] = 1, cores(0.5, 2.5)
    assert story.hear(abandoned(2)).decide() == ()
    assert story.why() == "keeps its cores until a generation after 2 runs: told so"


def test_an_ended_task_is_replaced_before_in_place_changes(told: Told) -> None:
    story = running(cpu=6)
    (worker,) = tasks(story.state.jobs["default.mnist"].active_decision, "worker")
    told.sizes["mnist"] = cores(0.5, 2.5)
    before = {task.serial: task for task in story.state.jobs["default.mnist"].active_decision.tasks}
    fixed = story.hear(exited(worker, 0)).decided()
    assert fixed.generation == 2 and worker.serial not in {task.serial for task in fixed.tasks}
    assert all(task == before[task.serial] for task in fixed.tasks if task.serial in before)


def test_new_and_existing_tasks_get_their_resources_together(told: Told) -> None:
    roomy, tight = running(cpu=6), running(cpu=5.5)
    told.workers, told.sizes["mnist"] = 2, cores(0.5, 2.0)
    grown = roomy.decided()
    assert (grown.generation, has(grown)) == (2, [1, 0.5, 2.0, 2.0]) and free(roomy) == 0.0
    assert (
        tight.decide() == ()
        and tight.why() == "waits for room (too little cpu) for 1 ps and 2 workers"
    )
    assert free(tight) == 2.5


def test_a_job_starts_with_the_target_resources(told: Told) -> None:
    told.sizes["mnist"] = cores(0.25, 0.5)
    assert has(Story(RULES).hear(node(cpu=2), accepted()).decided()) == [1, 0.25, 0.5]


def test_a_lost_task_is_replaced_with_its_resources(told: Told) -> None:
    story = running(cpu=6)
    told.sizes["mnist"] = cores(0.5, 2.5)
    now = story.decided()
    left = own("mnist", *now.tasks[:2])
    fixed = story.hear(node(cpu=6, free=4.5, own=left), exited(tasks(now, "worker")[0])).decided()
    assert fixed.generation == 2 and has(fixed) == [1, 0.5, 2.5]


def test_a_role_that_ran_out_of_memory_keeps_its_increase(told: Told) -> None:
    story = running(cpu=6)
    told.sizes["mnist"] = cores(1.0, 1.0, worker_gib=2.0)
    now = story.decided()
    fixed = story.hear(exited(tasks(now, "worker")[0], 137, "OOMKilled")).decided()
    assert tasks(fixed, "worker")[0].resources.memory_gib == 3.0
    told.sizes["mnist"] = cores(1.0, 1.0, worker_gib=0.5)
    story.hear(resumed(2))
    assert tasks(story.decided(), "worker")[0].resources.memory_gib == 1.5, (
        "half as much again as was asked for"
    )


# ---------------------------------------------------------------- random targets


def whims(seed: int) -> Any:
    """Return a policy with random targets within the bounds; it skips every third job."""
    chance, turn = random.Random(seed), itertools.count()

    def policy(nodes: Any, jobs: Any, now: float) -> list[Target]:
        return [_whim(job, chance) for job in jobs if next(turn) % 3]

    return policy


def _whim(job: Any, chance: random.Random) -> Target:
    stays = job.size is not None and chance.random() < 0.7
    counts = (
        (job.size.ps, job.size.workers)
        if stays
        else (chance.randint(1, job.most.ps), job.most.workers)
    )
    ps, workers = max(job.least.ps, counts[0]), max(job.least.workers, counts[1])
    drawn = [
        Resources(cpu=chance.choice((0.1, 0.5, 1.0, 3.0)), memory_gib=chance.choice((0.5, 2.0)))
        for _ in "123"
    ]
    sizes = (
        RoleResources(chief=drawn[0], ps=drawn[1], worker=drawn[2])
        if chance.random() < 0.8
        else None
    )
    return Target(
        job=job.key,
        ps=ps,
        workers=workers,
        batch=job.request.batch.start,
        reason="a whim",
        sizes=sizes,
    )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 10**6), st.binary(min_size=12, max_size=12), st.binary(min_size=80, max_size=80)
)
def test_no_node_is_overcommitted_for_any_target_resources(
    seed: int, shape: bytes, story: bytes
) -> None:
    POLICIES["whims"] = whims(seed)
    try:
        world = World(replace(AT_ONCE, policy="whims"), shape)
        for what, whom in zip(story[::2], story[1::2], strict=True):
            world.step(what, whom)
            check(world)
    finally:
        del POLICIES["whims"]


def test_the_random_policy_does_change_resources_in_place() -> None:
    POLICIES["whims"] = whims(1)
    try:
        world, revised = World(replace(AT_ONCE, policy="whims"), bytes(12)), 0
        for step in itertools.islice(itertools.cycle(b"\x01\x02\x03"), 60):
            generations = {key: job.running for key, job in world.state.jobs.items()}
            world.step(step % len(STEPS), 0)
            revised += sum(
                action.generation == generations.get(action.key())
                for action in world.decided.actions
                if isinstance(action, AllocationDecided)
            )
    finally:
        del POLICIES["whims"]
    assert revised >= 5 and EVEN.worker.cpu == 1


def test_a_job_that_ends_before_a_change_is_not_changed(told: Told) -> None:
    """A pause is assumed to take 5 s.

    A shrink need not pay off, because others get the capacity; here the end of the job frees it
    sooner.
    """
    told.workers = 2
    story = Story(RULES).hear(node(cpu=8), accepted())
    first = story.decided()
    story.hear(node(cpu=8, free=8 - len(first.tasks), own=own("mnist", *first.tasks)), resumed(1))
    told.workers = 1
    assert story.hear(progress(1, done=51, total=100, speed=10)).decide() == ()
    assert story.why() == "1 ps and 1 worker would come too late: the job ends in 4.9 s without it"
    assert size(story.hear(progress(1, done=49, total=100, speed=10, step=2)).decided()) == (1, 1)
