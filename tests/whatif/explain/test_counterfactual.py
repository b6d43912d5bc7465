"""Tests of the counterfactual: decisions are carried out on a copy of the state.

Wanted pods exist, and unwanted ones have freed their capacity.
"""

from __future__ import annotations

from copy import deepcopy

from msgspec.structs import replace

from services.allocator.placement.free_capacity import free_nodes
from services.whatif.explain.counterfactual import find_outcome, with_generations_landed
from tests.allocator.builders import AT_ONCE, Story, abandoned, exited, node, tasks
from tests.allocator.test_decide import running
from tests.whatif.explain.asking import KEY


def test_a_generation_in_flight_runs_in_the_counterfactual() -> None:
    story = running(Story())
    grown = story.hear(node("n2", cpu=3)).decided()
    there = with_generations_landed(story.state, story.now)
    assert there.jobs[KEY].active_decision == grown and there.jobs[KEY].pending_generation is None
    assert {n.node: (n.free.cpu, len(n.own)) for n in there.nodes.values()} == {
        "n1": (0, 3),
        "n2": (0, 3),
    }
    assert [n.free for n in free_nodes(there)] == [n.free for n in there.nodes.values()]


def test_an_ended_job_frees_its_capacity_in_the_counterfactual() -> None:
    story = running(Story())
    worker = tasks(story.state.jobs[KEY].active_decision, "worker")[0]
    there = with_generations_landed(story.hear(exited(worker)).state, story.now)
    assert there.nodes["n1"].free.cpu == 1 and len(there.nodes["n1"].own) == 2


def test_unchanged_nodes_keep_their_objects() -> None:
    story = running(Story()).hear(node("n2"))
    there = with_generations_landed(story.state, story.now)
    assert all(there.nodes[name] is story.state.nodes[name] for name in ("n1", "n2"))


def test_a_counterfactual_ignores_timers_and_leaves_the_state_unchanged() -> None:
    story = running(Story())
    story.hear(node("n2", cpu=2)).decided()
    story.hear(abandoned(2))
    before = deepcopy(story.state)
    assert find_outcome(story.state, KEY, story.now, AT_ONCE).given is not None
    assert story.state == before and before.jobs[KEY].abandonments == 1


def test_a_job_that_ends_meanwhile_gets_no_decision() -> None:
    story = running(Story(replace(AT_ONCE, max_failures=1)), cpu=12)
    worker = tasks(story.state.jobs[KEY].active_decision, "worker")[0]
    story.hear(exited(worker, 1, "Error"))
    found = find_outcome(story.state, KEY, story.now, story.rules)
    assert found.given is None and KEY not in found.state.jobs
