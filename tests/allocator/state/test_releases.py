"""Tests of releases: a job waits for capacity that is being released, once and only briefly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from msgspec.structs import replace

from services.allocator.placement.room import Room
from services.allocator.policies.contract import Node, Quota, Size, start_target
from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from services.allocator.state.releases import (
    NOTHING_RELEASING,
    SHORTEST_S,
    ReleasingCapacity,
    bounded_wait,
    expected_room,
    usual_release_s,
)
from services.allocator.steps.resize_conditions import PendingChange
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    GenerationAbandoned,
    JobFinished,
    JobRequested,
    OwnPod,
    Resources,
)
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    node,
    own,
    request,
    resumed,
    size,
    span,
)

LIVE = Rules(policy="config-manager", window_s=1, cooldown_s=0, max_delay_s=30)
NODES = ("n1", "n2", "n3")
CORES = 4


class Pair:
    """Two jobs that fill three nodes; their pods are listed and removed node by node."""

    def __init__(self, rules: Rules = LIVE) -> None:
        self.story = Story(rules)
        self.on: dict[str, list[OwnPod]] = {name: [] for name in NODES}
        self.told(*NODES)
        self.first = self.start(
            "first", 1, request("first", ps=span(1, most=3), workers=span(5, most=5))
        )
        self.second = self.start(
            "second", 2, request("second", ps=span(1, most=3), workers=span(2, most=8))
        )

    def told(self, *names: str) -> None:
        for name in names:
            free = CORES - len(self.on[name])
            self.story.hear(node(name, cpu=CORES, free=free, own=tuple(self.on[name])), after_s=0.1)

    def start(self, job: str, uid: int, asked: JobRequested) -> AllocationDecided:
        self.story.hear(accepted(asked, uid))
        decided = next(
            a for a in self.story.decide() if isinstance(a, AllocationDecided) and a.job == job
        )
        for task in decided.tasks:
            self.on[task.node] += own(job, task)
        self.told(*NODES)
        self.story.hear(resumed(1, job, uid=uid))
        return decided

    def first_ends(self) -> None:
        self.story.hear(
            JobFinished(job="first", uid=1, generation=1, outcome="succeeded"), after_s=0.1
        )

    def release(self, name: str) -> None:
        self.on[name] = [pod for pod in self.on[name] if pod.job != "first"]
        self.told(name)


GAP_S = 1.6
"""The time between the removals on two nodes, in seconds.

The stabilisation window ends during the release.
"""


def sizes_while_released(pair: Pair, order: Sequence[str]) -> list[tuple[int, int]]:
    """Return the second job's decided sizes until 1 min after the first job's pods are gone."""
    pair.first_ends()
    said = list(pair.story.decide())
    for name in order:
        said += pair.story.decide(after_s=GAP_S)
        pair.release(name)
        said += pair.story.decide()
    for _ in range(30):
        said += pair.story.decide(after_s=2.0)
    decided = [
        each for each in said if isinstance(each, AllocationDecided) and each.job == "second"
    ]
    return list(
        {each.generation: size(each) for each in decided}.values()
    )  # the launcher does not act, so decisions are repeated


@pytest.mark.parametrize("order", list(permutations(NODES)))
def test_a_job_grows_once_while_another_jobs_pods_are_released(
    order: tuple[str, ...],
) -> None:
    assert sizes_while_released(Pair(), order) == [(3, 8)]


def test_without_the_setting_a_job_grows_during_a_release() -> None:
    sizes = sizes_while_released(Pair(replace(LIVE, release_s=0)), NODES)

    assert sizes[0] < (3, 8)


def test_the_wait_for_released_pods_is_bounded() -> None:
    pair = Pair()
    pair.first_ends()
    pair.release("n1")  # the pods on the other nodes stay
    ended_s = pair.story.now
    assert pair.story.decide() == ()
    assert pair.story.decide(after_s=LIVE.window_s) == () and "being released" in pair.story.why(
        "second"
    )
    assert pair.story.decisions.wake_s is not None
    pair.story.now = pair.story.decisions.wake_s

    said = [*pair.story.decide(), *pair.story.decide(after_s=LIVE.window_s)]

    assert [each.job for each in said if isinstance(each, AllocationDecided)] == ["second"]
    assert pair.story.now - ended_s <= LIVE.release_s + LIVE.window_s


def test_a_starting_job_waits_for_a_release_to_start_larger() -> None:
    story = Story(replace(LIVE, policy="static"))
    pod = OwnPod(
        namespace="default", job="old", pod="old-worker-1", resources=Resources(cpu=3, memory_gib=1)
    )
    story.hear(node("n1", cpu=7, free=7))
    story.hear(accepted(request("old", workers=span(1), ps=span(1), resources=None), 1))
    old = story.decided()
    listed = own("old", *old.tasks)
    story.hear(node("n1", cpu=7, free=3, own=(*listed, pod)), resumed(1, "old"))
    story.hear(accepted(request("new", workers=span(3, least=1), ps=span(1)), 2))
    story.hear(JobFinished(job="old", uid=1, generation=1, outcome="succeeded"), after_s=0.1)

    assert story.decide() == () and "being released" in story.why("new")

    story.hear(node("n1", cpu=7, free=7), after_s=0.5)
    assert size(story.decided()) == (1, 3)


def test_the_release_time_is_learned_from_earlier_releases() -> None:
    pair = Pair()
    pair.first_ends()
    for name in NODES:
        pair.release(name)

    (took_s,) = pair.story.state.releases.took_s

    assert pair.story.state.releases.open == {} and 0 < took_s < 1.0
    assert usual_release_s((), LIVE) == LIVE.release_s
    assert usual_release_s((0.1,), LIVE) == SHORTEST_S
    assert usual_release_s((4.0, 3.0), LIVE) == 8.0
    assert usual_release_s((20.0,), LIVE) == LIVE.release_max_s
    assert (
        usual_release_s((100.0, 0.1), LIVE) == SHORTEST_S
    )  # the long release of a lost node does not count
    assert usual_release_s((100.0,), LIVE) == LIVE.release_s
    assert usual_release_s((20.0,), replace(LIVE, release_s=0)) == 0.0


def test_removed_pods_are_being_released_until_their_node_drops_them() -> None:
    story = Story()
    story.hear(node("n1", cpu=8))
    story.hear(accepted(request(workers=span(4, most=4))))
    first = story.decided()
    stood: tuple[OwnPod, ...] = own("mnist", *first.tasks)
    story.hear(node("n1", cpu=8, free=8 - len(first.tasks), own=stood), resumed(1))
    kept = first.tasks[:3]
    smaller = replace(first, generation=2, revision=2, tasks=kept)
    story.hear(smaller, resumed(2, pause_s=1.0))

    (release,) = story.state.releases.open.values()
    assert set(release.pods) == {task.pod("mnist") for task in first.tasks[3:]}

    left: CapacityChanged = node("n1", cpu=8, free=5, own=own("mnist", *kept))
    assert story.hear(left).state.releases.open == {}
    assert story.replayed().releases == story.state.releases


def test_pods_of_a_superseded_generation_are_being_released() -> None:
    story = Story()
    story.hear(node("n1", cpu=8))
    story.hear(accepted(request(workers=span(4, most=4))))
    first = story.decided()
    second = replace(
        first,
        generation=2,
        revision=2,
        tasks=(*first.tasks, replace(first.tasks[-1], index=4, serial=9)),
    )
    third = replace(first, generation=3, revision=3)
    listed: tuple[OwnPod, ...] = own("mnist", *second.tasks)
    story.hear(
        resumed(1),
        second,
        third,
        node("n1", cpu=8, free=8 - len(listed), own=listed),
        resumed(3, pause_s=1.0),
    )

    (release,) = story.state.releases.open.values()
    assert set(release.pods) == {second.tasks[-1].pod("mnist")}


def test_pods_of_an_abandoned_generation_are_being_released() -> None:
    story = Story()
    story.hear(node("n1", cpu=8))
    story.hear(accepted(request(workers=span(4, most=4))))
    first = story.decided()
    second = replace(
        first,
        generation=2,
        revision=2,
        tasks=(*first.tasks, replace(first.tasks[-1], index=4, serial=9)),
    )
    listed: tuple[OwnPod, ...] = own("mnist", *second.tasks)
    story.hear(resumed(1), second, node("n1", cpu=8, free=8 - len(listed), own=listed))
    assert story.state.releases.open == {}

    story.hear(GenerationAbandoned(job="mnist", uid=1, generation=2, reason="not prepared in time"))

    (release,) = story.state.releases.open.values()
    assert set(release.pods) == {second.tasks[-1].pod("mnist")}


def test_a_change_that_waited_for_one_release_waits_for_a_later_one_too() -> None:
    wish, coming = (
        PendingChange(Size(3, 8), 64, 10.0, 10.0, awaits_s=10.0),
        ReleasingCapacity({"n1": Resources(cpu=1)}, {}, 11.0),
    )
    end_s = 10.0 + LIVE.release_max_s

    assert bounded_wait(wish, coming, end_s - 1, LIVE) == (wish, coming)
    assert bounded_wait(wish, coming, end_s, LIVE) == (wish, NOTHING_RELEASING)

    idle, _ = bounded_wait(wish, NOTHING_RELEASING, end_s, LIVE)
    assert bounded_wait(idle, coming, end_s + 1, LIVE) == (replace(wish, awaits_s=None), coming)


@pytest.mark.parametrize("order", list(permutations(NODES)))
def test_quota_of_released_pods_is_awaited(order: tuple[str, ...]) -> None:
    rules = replace(LIVE, quotas={"default": Quota(cpu=CORES * len(NODES))})

    assert sizes_while_released(Pair(rules), order) == [(3, 8)]


def test_a_trial_restores_the_room() -> None:
    room = Room([Node("n1", free=Resources(cpu=1))], {"default": Resources(cpu=2)})
    coming = ReleasingCapacity(
        {"n1": Resources(cpu=3), "lost": Resources(cpu=1)},
        {"default": Resources(cpu=3), "b": Resources()},
    )

    with expected_room(room, coming):
        assert (room.nodes["n1"].free.cpu, room.remaining_quotas["default"].cpu) == (4, 5)

    assert (room.nodes["n1"].free.cpu, room.remaining_quotas["default"].cpu) == (1, 2)
    assert room.nodes.keys() == {"n1"} and room.remaining_quotas.keys() == {"default"}


FIXED = {"ps": span(1), "workers": span(1)}
PLAIN = replace(AT_ONCE, policy="static")


def listed(decision: AllocationDecided, cpu: float, gone: bool = False) -> CapacityChanged:
    """Return the fact of the node of a job's tasks. `gone`: they have been removed."""
    name, pods = decision.tasks[0].node, () if gone else own(decision.job, *decision.tasks)
    return node(name, cpu=cpu, free=cpu - len(pods), own=pods)


def start_all(story: Story, cpu: float, **requests: JobRequested) -> dict[str, AllocationDecided]:
    """Start each job on a node of its own, which it fills, in this order; return the decisions."""
    decided: dict[str, AllocationDecided] = {}
    for number, (job, asked) in enumerate(requests.items(), 1):
        story.hear(node(f"n{number}", cpu=cpu), accepted(asked, number))
        decided[job] = next(
            a for a in story.decide() if isinstance(a, AllocationDecided) and a.job == job
        )
        story.hear(listed(decided[job], cpu), resumed(1, job, uid=number))
    return decided


def test_a_job_waiting_to_start_keeps_its_capacity_from_younger_jobs() -> None:
    story = Story(PLAIN)
    decided = start_all(story, 3, x=request("x", **FIXED), y=request("y", **FIXED))
    story.hear(accepted(request("older", ps=span(1), workers=span(4, least=1)), 3))
    story.hear(accepted(request("younger", **FIXED), 4))
    story.hear(JobFinished(job="x", uid=1, outcome="succeeded"), listed(decided["x"], 3, gone=True))
    story.hear(JobFinished(job="y", uid=2, outcome="succeeded"), after_s=0.1)

    assert story.decide() == () and "being released" in story.why("older")

    story.hear(listed(decided["y"], 3, gone=True), after_s=0.5)
    (start,) = story.decide()
    assert (start.job, size(start)) == ("older", (1, 4))


def test_a_job_waiting_to_grow_keeps_its_capacity_from_younger_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        POLICIES,
        "whole",
        lambda cluster, jobs, now: [start_target(job, "all of it") for job in jobs],
    )
    story = Story(replace(AT_ONCE, policy="whole"))
    older, younger = (
        request(name, ps=span(1), workers=span(n, least=1))
        for name, n in (("older", 6), ("younger", 3))
    )
    decided = start_all(
        story, 3, older=older, younger=younger, x=request("x", **FIXED), y=request("y", **FIXED)
    )
    assert size(decided["older"]) == size(decided["younger"]) == (1, 1)
    story.hear(JobFinished(job="x", uid=3, outcome="succeeded"), listed(decided["x"], 3, gone=True))
    story.hear(JobFinished(job="y", uid=4, outcome="succeeded"), after_s=0.1)

    assert story.decide() == () and "being released" in story.why("older")

    story.hear(listed(decided["y"], 3, gone=True), after_s=0.5)
    grown = {each.job: size(each) for each in story.decide() if isinstance(each, AllocationDecided)}
    assert grown == {"older": (1, 6), "younger": (1, 2)}
