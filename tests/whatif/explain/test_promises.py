"""Tests of remedies in random worlds, under every policy.

Every job can be explained, and every remedy works.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from services.allocator.decide import decide
from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from services.allocator.state.state import State
from services.whatif.event_log import Moment
from services.whatif.explain.counterfactual import (
    Reports,
    Settles,
    Trains,
    Waits,
    amount_of_tasks,
    apply_changes,
    find_outcome,
    fold_actions,
    held_tasks,
    larger_decision,
    with_generations_landed,
)
from services.whatif.explain.explain import explain_job
from services.whatif.explain.explanation import Explanation, Means
from services.whatif.explain.waiting import LONGEST_S, settled_states, with_report
from tests.allocator.builders import AT_ONCE
from tests.allocator.fuzz.world import World

STEPS, EXAMPLES = 24, 12
LOOKS = 64
BY_ITSELF = (Waits, Settles, Trains, Reports)
SHAPE, STORY = (st.binary(min_size=size, max_size=size) for size in (12, 2 * STEPS))

ROOM_TAKEN_FIRST = (
    bytes([0, 0, 0, 0, 0, 9, 88, 0, 0, 0, 0, 0]),
    bytes([*[0] * 20, 4, 0, 1, 0, 0, 0, 0, 0, 28, 0, 231, 208, *[0] * 14, 1, 0]),
)
"""One of three jobs has lost its chief, which is replaced on capacity that another job waits for.

This happens before the change of the other job is due.
"""


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.tuples(st.booleans(), SHAPE, STORY))
@example((False, *ROOM_TAKEN_FIRST))
def test_every_remedy_works_when_applied(policy: str, drawn: tuple[bool, bytes, bytes]) -> None:
    at_once, shape, story = drawn
    world = World(msgspec.structs.replace(AT_ONCE if at_once else Rules(), policy=policy), shape)
    for what, whom in zip(story[::2], story[1::2], strict=True):
        world.step(what, whom)
    there = Moment(world.state, world.now, world.decided.pending_changes, {}, None)
    for key in there.state.jobs:
        found = explain_job(there, key, world.rules)
        assert found is not None and bool(found.means) != bool(found.nothing)
        assert all(helps(there, key, world.rules, means) for means in found.means), found.means
        assert (
            msgspec.json.decode(msgspec.json.encode(found), type=Explanation).means == found.means
        )


def helps(there: Moment, key: str, rules: Rules, means: Means) -> bool:
    """Return True if the allocator decides more for the job after the changes of the means."""
    job, now, by_hand = (
        there.state.jobs[key],
        there.at_s,
        [c for c in means.changes if not isinstance(c, BY_ITSELF)],
    )
    assert (means.gives.gpu, means.gives.cpu) >= amount_of_tasks(held_tasks(job))[:2]
    flies = job.pending_generation is not None and not isinstance(
        means.changes[0], Waits
    )  # a lost task is replaced at once
    assert not flies or Trains(job=key, generation=job.pending_generation or 0) in means.changes
    if by_hand:
        states = [
            apply_changes(state, key, by_hand)
            for _, state in settled_states(there.state, key, now, rules)
        ]
        return any(find_outcome(state, key, now, rules).given for state in states)
    state, until_s = (
        come_true(there, key, means),
        next((c.until_s for c in means.changes if isinstance(c, Waits)), now),
    )
    if any(isinstance(change, Settles) for change in means.changes):
        return find_outcome(state, key, now, rules).given is not None
    return grows_by(msgspec.structs.replace(there, state=state), key, rules, until_s)


def come_true(there: Moment, key: str, means: Means) -> State:
    """Return the state after those changes that need no action, except waiting."""
    settles = any(isinstance(change, Settles) for change in means.changes)
    flights = [change.job for change in means.changes if isinstance(change, Trains)]
    state = (
        with_generations_landed(there.state, there.at_s, None if settles else flights)
        if settles or flights
        else there.state
    )
    return with_report(
        state, key, there.at_s, *(change for change in means.changes if isinstance(change, Reports))
    )


def grows_by(there: Moment, key: str, rules: Rules, until_s: float) -> bool:
    """Return True if the job grows by `until_s`.

    The allocator decides at its timers. A policy's own time has no timer, so it also decides once
    more: at the latest time at which the change has to be pending, or at any other second. More is
    not promised: a policy may change its target and back between two decisions, and then only the
    time of a decision counts.
    """
    seconds = min(LONGEST_S, max(0, int(until_s - there.at_s)))
    looks = (until_s, until_s - rules.window_s, *(there.at_s + n for n in range(seconds + 1)))
    return any(grows(there, key, rules, look_s, until_s) for look_s in looks)


def grows(there: Moment, key: str, rules: Rules, look_s: float, until_s: float) -> bool:
    """Return True if the job grows when the allocator decides at these times.

    It decides now, when it wakes, at `look_s` and `until_s`, and again after each action.
    """
    state, wishes, now, job = there.state, there.wishes, there.at_s, there.state.jobs[key]
    for _ in range(LOOKS):
        found = decide(state, now, rules, wishes)
        if larger_decision(found, job):
            return True
        state, wishes = fold_actions(state, found.actions, now), found.pending_changes
        later = [s for s in (found.wake_s, look_s, until_s) if s is not None and now < s <= until_s]
        if not found.actions and not later:
            return False
        now = now if found.actions else min(later)
    return False
