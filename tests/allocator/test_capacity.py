"""Every task is counted once, whatever the order of decided, created, listed and deleted."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.capacity import free_nodes, purses
from services.allocator.policies.contract import Quota
from shared.messages import CapacityChanged, GenerationAbandoned, OwnPod, Resources, TaskPlan
from tests.allocator.builders import Story, accepted, exited, node, request, resumed, span

NODES = {"n1": 6, "n2": 4, "n3": 3}
STEPS = st.sampled_from(
    ["decide", "create", "list", "delete", "exit", "resume", "abandon", "foreign", "leave"]
)


@dataclass
class World:
    """A cluster that makes pods of decisions, late and in any order; the monitor sees it when it is
    told to look.
    """

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
        decisions = [d for d in (self.job.runs, self.job.flies) if d] if self.job else []
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
        elif step == "resume" and self.job and self.job.coming:
            self.story.hear(resumed(self.job.coming))
        elif step == "abandon" and self.job and self.job.coming:
            self.story.hear(
                GenerationAbandoned(job="mnist", uid=1, generation=self.job.coming, reason="x")
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
        """Free, as counted, is what the monitor last saw, less each promise that it had not seen,
        once.
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
        """Listed pods, wanted or not, and wanted ones that are not listed: each once, until it has
        ended.
        """
        ended = self.job.exits if self.job else {}
        owns = [own for told in self.story.state.nodes.values() for own in told.own]
        has = [own.resources.cpu for own in owns if own.pod not in ended]
        wanted = [
            t.resources.cpu
            for p, t in self.wanted().items()
            if p not in listed and p not in self.job.exits
        ]
        left = purses(self.story.state, {"default": Quota(cpu=100), "elsewhere": Quota(cpu=1)})
        assert (left["default"].cpu, left["elsewhere"].cpu) == (100 - sum(has) - sum(wanted), 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 9)), max_size=60))
def test_no_interleaving_counts_a_task_twice_or_forgets_one(steps):
    world = World()
    for step, pick in steps:
        world.do(step, pick)
        world.check()


def test_a_promise_becomes_a_listed_pod_without_a_gap():
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


def test_a_promise_of_an_abandoned_generation_is_released():
    story = Story().hear(node(cpu=8), accepted())
    story.decided()
    story.hear(GenerationAbandoned(job="mnist", uid=1, generation=1, reason="x"))
    assert free_nodes(story.state)[0].free.cpu == 8
