"""Whatever has happened, under every policy: an explanation can be given, and what it says would help does help."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.allocator.decide import decide
from services.allocator.explaining.aftermath import amount, given_more, held, outcome, said
from services.allocator.explaining.change import Reports, Settles, Trains, Waits, changed
from services.allocator.explaining.explain import explained
from services.allocator.explaining.explanation import Explanation, Means
from services.allocator.explaining.history import Moment
from services.allocator.explaining.waiting import grounds
from services.allocator.policies import POLICIES
from services.allocator.rules import Rules
from tests.allocator.builders import AT_ONCE
from tests.allocator.fuzz.world import World

STEPS, EXAMPLES = 24, 12
BY_ITSELF = (Waits, Settles, Trains, Reports)
SHAPE, STORY = (st.binary(min_size=size, max_size=size) for size in (12, 2 * STEPS))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.tuples(st.booleans(), SHAPE, STORY))
def test_what_would_help_helps(policy: str, drawn: tuple[bool, bytes, bytes]) -> None:
    at_once, shape, story = drawn
    world = World(msgspec.structs.replace(AT_ONCE if at_once else Rules(), policy=policy), shape)
    for what, whom in zip(story[::2], story[1::2], strict=True):
        world.step(what, whom)
    there = Moment(world.state, world.now, world.decided.wishes, {}, None)
    for key in there.state.jobs:
        found = explained(there, key, world.rules)
        assert found is not None and bool(found.means) != bool(found.nothing)
        assert all(helps(there, key, world.rules, means) for means in found.means), found.means
        assert msgspec.json.decode(msgspec.json.encode(found), type=Explanation).means == found.means


def helps(there: Moment, key: str, rules: Rules, means: Means) -> bool:
    """By deciding once more, with what is said to be otherwise."""
    job, by_hand = there.state.jobs[key], [c for c in means.changes if not isinstance(c, BY_ITSELF)]
    assert (means.gives.gpu, means.gives.cpu) >= amount(held(job))[:2]
    flies = job.coming is not None and not isinstance(means.changes[0], Waits)  # a lost task is replaced at once
    assert not flies or Trains(job=key, generation=job.coming or 0) in means.changes
    if by_hand:
        states = [changed(state, key, by_hand) for _, state in grounds(there.state, key, there.at_s, rules)]
        return any(outcome(state, key, there.at_s, rules).given for state in states)
    only = means.changes[0] if len(means.changes) == 1 else None
    return grows_at(there, key, rules, only.until_s) if isinstance(only, Waits) else True


def grows_at(there: Moment, key: str, rules: Rules, until_s: float) -> bool:
    """As the allocator looks: now, when the wish has to begin at the latest, and then."""
    state, wishes, job = there.state, there.wishes, there.state.jobs[key]
    for now in (there.at_s, max(there.at_s, until_s - rules.window_s), until_s):
        found = decide(state, now, rules, wishes)
        if given_more(found, job):
            return True
        state, wishes = said(state, found.actions, now), found.wishes
    return False
