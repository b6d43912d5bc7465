"""Tests of free capacity: each task counts once, in any order of its events.

The events are decision, creation, listing and deletion. Also tests namespaces with the
ResourceQuotas and LimitRanges that the monitor publishes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.placement.free_capacity import free_nodes, remaining_quotas
from services.allocator.policies.contract import Quota
from services.allocator.policies.registry import POLICIES
from services.allocator.service import changes_no_decision
from services.allocator.settings import Rules
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    GenerationAbandoned,
    JobRequested,
    MostResources,
    OwnPod,
    QuotaBound,
    QuotaChanged,
    Resources,
    RoleResources,
    TaskBounds,
    TaskPlan,
)
from tests.allocator.builders import (
    AT_ONCE,
    EVEN,
    Story,
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

NODES = {"n1": 6, "n2": 4, "n3": 3}
STEPS = st.sampled_from(
    ["decide", "create", "list", "delete", "exit", "resume", "abandon", "foreign", "leave"]
)


@dataclass
class World:
    """A cluster that creates pods late and in any order, and publishes nodes only on request."""

    story: Story = field(default_factory=Story)
    pods: dict[str, TaskPlan] = field(default_factory=dict)
    foreign: dict[str, int] = field(default_factory=dict)
    seen: dict[str, set[str]] = field(default_factory=lambda: {n: set() for n in NODES})

    def __post_init__(self) -> None:
        wide = request(ps=span(1, most=3), workers=span(2, most=6))
        self.story.hear(*(node(n, cpu=c) for n, c in NODES.items()), accepted(wide))

    @property
    def job(self):
        return self.story.state.jobs.get("default.mnist")

    def wanted(self) -> dict[str, TaskPlan]:
        decisions = (
            [d for d in (self.job.active_decision, self.job.pending_decision) if d]
            if self.job
            else []
        )
        return {self.job.pod(t): t for d in decisions for t in d.tasks}

    def look(self, name: str) -> CapacityChanged:
        here = {pod: task for pod, task in self.pods.items() if task.node == name}
        used = sum(t.resources.cpu for t in here.values()) + self.foreign.get(name, 0)
        mine = tuple(
            OwnPod(namespace="default", job="mnist", pod=pod, resources=t.resources)
            for pod, t in here.items()
        )
        return node(name, cpu=NODES[name], free=max(0, NODES[name] - used), own=mine)

    def show(self, name: str) -> None:
        self.seen[name] = {pod for pod, task in self.pods.items() if task.node == name}
        self.story.hear(self.look(name))

    def do(self, step: str, pick: int) -> None:
        name = sorted(NODES)[pick % len(NODES)]
        if step == "decide":
            self.story.decide()
        elif step == "create":
            missing = [
                (p, t)
                for p, t in self.wanted().items()
                if p not in self.pods and p not in self.job.exits
            ]
            self.pods.update(
                missing[pick % len(missing) : pick % len(missing) + 1] if missing else []
            )
        elif step == "list":
            self.show(name)
        elif step == "delete":
            unwanted = sorted(set(self.pods) - set(self.wanted()))
            self.pods = {p: t for p, t in self.pods.items() if p not in unwanted[:1]}
        elif step == "exit" and self.pods:
            pod = sorted(self.pods)[pick % len(self.pods)]
            self.story.hear(exited(self.pods.pop(pod), None, "Deleted"))
        elif step == "resume" and self.job and self.job.pending_generation:
            self.story.hear(resumed(self.job.pending_generation))
        elif step == "abandon" and self.job and self.job.pending_generation:
            self.story.hear(
                GenerationAbandoned(
                    job="mnist", uid=1, generation=self.job.pending_generation, reason="x"
                )
            )
        elif (
            step == "foreign"
            and self.look(name).free.cpu >= 1
            and not set(self.wanted()) - set(self.pods)
        ):
            self.foreign[name] = self.foreign.get(name, 0) + 1
            self.show(name)
        elif step == "leave" and self.foreign.get(name):
            self.foreign[name] -= 1

    def check(self) -> None:
        """Check the free capacity of each node.

        It is that of the last node fact, less each promise that the fact does not contain.
        """
        free = {n.name: n.free.cpu for n in free_nodes(self.story.state)}
        listed = {pod for pods in self.seen.values() for pod in pods}
        for name, told in self.story.state.nodes.items():
            promised = [
                t
                for p, t in self.wanted().items()
                if t.node == name and p not in listed and p not in self.job.exits
            ]
            assert free[name] == max(0.0, told.free.cpu - sum(t.resources.cpu for t in promised))
            wanted = [
                t for p, t in self.wanted().items() if t.node == name and p not in self.job.exits
            ]
            assert sum(t.resources.cpu for t in wanted) <= NODES[name]
        self.check_quota(listed)

    def check_quota(self, listed: set[str]) -> None:
        """Check that a quota counts each task once, until the task has ended.

        Tasks are the listed pods, wanted or not, and the wanted ones that are not listed.
        """
        ended = self.job.exits if self.job else {}
        owns = [own for told in self.story.state.nodes.values() for own in told.own]
        has = [own.resources.cpu for own in owns if own.pod not in ended]
        wanted = [
            t.resources.cpu
            for p, t in self.wanted().items()
            if p not in listed and p not in self.job.exits
        ]
        left = remaining_quotas(
            self.story.state, {"default": Quota(cpu=100), "elsewhere": Quota(cpu=1)}
        )
        assert (left["default"].cpu, left["elsewhere"].cpu) == (100 - sum(has) - sum(wanted), 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 9)), max_size=60))
def test_every_task_counts_once_for_any_interleaving(steps):
    world = World()
    for step, pick in steps:
        world.do(step, pick)
        world.check()


def test_a_promised_task_becomes_a_listed_pod_without_a_gap():
    story = Story().hear(node(cpu=8), accepted())
    first = story.decided()
    (promised,) = free_nodes(story.state)
    pods = tuple(
        OwnPod(namespace="default", job="mnist", pod=t.pod("mnist"), resources=t.resources)
        for t in first.tasks
    )
    (listed,) = free_nodes(story.hear(node(cpu=8, free=5, own=pods)).state)
    assert promised.free == listed.free == Resources(cpu=5, memory_gib=61) or listed.free.cpu == 5
    assert promised.hosts == listed.hosts == {"default.mnist"}


def test_promises_of_an_abandoned_generation_are_released():
    story = Story().hear(node(cpu=8), accepted())
    story.decided()
    story.hear(GenerationAbandoned(job="mnist", uid=1, generation=1, reason="x"))
    assert free_nodes(story.state)[0].free.cpu == 8


SEEN = count(1)
LARGE = request(ps=span(1), workers=span(4, most=6))


def quota(
    hard: float, used: float = 0.0, resource: str = "requests.cpu", **more: float
) -> QuotaChanged:
    """Return a quota of namespace `default`. `more`: hard limits of other resources."""
    bounds = [QuotaBound(quota="compute", resource=resource, hard=hard, used=used)]
    bounds += [
        QuotaBound(quota=f"of-{name}", resource=name, hard=most) for name, most in more.items()
    ]
    return QuotaChanged(namespace="default", seen=str(next(SEEN)), bounds=tuple(bounds))


def limits(most: MostResources | None = None, **least: float) -> QuotaChanged:
    bounds = TaskBounds(limit_range="sizes", least=Resources(**least), most=most or MostResources())
    return QuotaChanged(namespace="default", seen=str(next(SEEN)), task_bounds=(bounds,))


def running(asked: JobRequested | None = None, rules: Rules = AT_ONCE) -> Story:
    """Return a job that trains with one ps and one worker, or as requested.

    Its namespace has no quota yet.
    """
    story = Story(rules)
    first = story.hear(node(cpu=20), accepted(asked)).decided()
    return story.hear(
        node(cpu=20, free=20 - len(first.tasks), own=own("mnist", *first.tasks)), resumed(1)
    )


def test_a_job_starts_within_the_remaining_resource_quota():
    first = Story().hear(node(cpu=20), quota(7, used=3), accepted(LARGE)).decided()
    assert size(first) == (1, 2) and "as far as its quota allows" in first.reason
    because = (
        "quota of namespace default: needs at least 6 cpu, and the limit is 4 (ResourceQuota"
        " compute)"
    )
    assert first.alternatives[0].why == because


def test_a_job_grows_within_the_resource_quota_and_names_it():
    story = running().hear(quota(7, used=5))
    grown = story.decided()
    assert size(grown) in ((1, 3), (2, 2)) and "as far as its quota allows" in grown.reason
    listed = own("mnist", *grown.tasks)
    story.hear(quota(7, used=7), node(cpu=20, free=15, own=listed), resumed(2))
    assert story.decide() == ()
    assert (
        story.why()
        == "quota of namespace default: needs 2 cpu more, and 0 is left (ResourceQuota compute)"
    )


def test_a_refused_size_is_not_repeated_and_returned_quota_is_used():
    story = running().hear(quota(3, used=3))
    assert story.decide() == () and "ResourceQuota compute" in story.why()
    before = story.state
    story.hear(quota(9, used=3))
    assert not changes_no_decision(before, story.state), (
        "a quota that changes is a reason to look again"
    )
    assert size(story.decided()) == (2, 4)


def test_decided_capacity_is_not_granted_twice():
    story = Story().hear(node(cpu=20), quota(6), accepted(), accepted(request("other"), uid=2))
    one, other = story.decide()
    assert isinstance(one, AllocationDecided) and isinstance(other, AllocationDecided)
    assert (size(one), size(other)) == ((1, 1), (1, 1))
    for used in (0, 3, 6):
        story.hear(quota(6, used=used), accepted(request(f"third-{used}"), uid=10 + used))
        assert story.decide() == () and "is left (ResourceQuota compute)" in story.why(
            f"third-{used}"
        )


@pytest.mark.parametrize("resource", ["pods", "count/pods"])
def test_a_pod_count_quota_limits_the_number_of_tasks(resource: str):
    story = Story().hear(node(cpu=20), quota(5, used=1, resource=resource), accepted(LARGE))
    first = story.decided()
    assert size(first) == (1, 2)
    assert (
        "needs at least 6 pods, and the limit is 4 (ResourceQuota compute)"
        in first.alternatives[0].why
    )
    listed = own("mnist", *first.tasks)
    story.hear(quota(5, used=5, resource=resource), node(cpu=20, free=16, own=listed), resumed(1))
    assert story.decide() == ()
    assert "pods more, and 0 is left (ResourceQuota compute)" in story.why()


@pytest.mark.parametrize(
    "resource", ["cpu", "limits.cpu", "memory", "requests.memory", "limits.memory"]
)
def test_every_name_of_a_resource_in_a_quota_counts(resource: str):
    assert size(
        Story().hear(node(cpu=20), quota(4, resource=resource), accepted(LARGE)).decided()
    ) == (1, 2)


def test_an_unused_resource_in_a_quota_does_not_count():
    assert size(
        Story().hear(node(cpu=20), quota(0, resource="services"), accepted(LARGE)).decided()
    ) == (1, 4)


def test_the_narrowest_of_several_quotas_counts():
    both = quota(20, **{"requests.memory": 4})
    first = Story().hear(node(cpu=20), both, accepted(LARGE)).decided()
    assert (
        size(first) == (1, 2) and "(ResourceQuota of-requests.memory)" in first.alternatives[0].why
    )
    rules = replace(AT_ONCE, quotas={"default": Quota(cpu=4), "elsewhere": Quota(cpu=1)})
    assert size(Story(rules).hear(node(cpu=20), quota(20), accepted(LARGE)).decided()) == (1, 2)


def test_quotas_of_other_namespaces_and_deleted_ones_do_not_count():
    elsewhere = replace(quota(0), namespace="team-a")
    story = Story().hear(node(cpu=20), elsewhere, quota(1), accepted(LARGE))
    assert story.decide() == ()
    story.hear(QuotaChanged(namespace="default", seen="gone"))
    assert size(story.decided()) == (1, 4)
    assert story.state.quotas.keys() == {"team-a"} and story.replayed().quotas == story.state.quotas


def test_a_task_outside_a_limit_range_is_not_decided():
    story = Story().hear(node(cpu=20), limits(MostResources(cpu=0.5)), accepted())
    assert story.decide() == ()
    assert (
        story.why()
        == "limit range sizes of namespace default: a chief needs 1 cpu, and at most 0.5 is"
        " allowed; a ps needs 1 cpu, and at most 0.5 is allowed; a worker needs 1 cpu, and at"
        " most 0.5 is allowed"
    )
    assert size(story.hear(limits(MostResources(cpu=1))).decided()) == (1, 1)


def test_a_task_is_raised_to_the_minimum_of_a_limit_range():
    sizes = RoleResources(chief=Resources(cpu=0.25, memory_gib=1), ps=EVEN.ps, worker=EVEN.worker)
    first = (
        Story().hear(node(cpu=20), limits(cpu=0.5), accepted(request(resources=sizes))).decided()
    )
    assert tasks(first, "chief")[0].resources == Resources(cpu=0.5, memory_gib=1)
    assert tasks(first, "worker")[0].resources == Resources(cpu=1, memory_gib=1)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_under_every_policy_resource_quotas_hold(policy: str):
    story = Story(replace(AT_ONCE, policy=policy)).hear(node(cpu=20), quota(8, used=3, pods=20))
    sizes = RoleResources(chief=Resources(), ps=EVEN.ps, worker=EVEN.worker)
    for uid in (1, 2, 3):
        story.hear(
            accepted(request(f"job-{uid}", resources=sizes, workers=span(2, most=6)), uid=uid)
        )
    story.decide()
    held = [
        task.resources.cpu
        for job in story.state.jobs.values()
        if job.newest_decision
        for task in job.newest_decision.tasks
    ]
    assert 4 <= sum(held) <= 5
