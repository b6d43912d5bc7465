"""Random tests of the laws: no world and no order of facts makes any policy break one.

There are 20,000 decisions; `make fuzz` takes 300,000.
"""

from __future__ import annotations

import os
import pickle

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from services.allocator.decide import decide
from services.allocator.policies.contract import Quota, Quotas
from services.allocator.policies.registry import POLICIES
from services.allocator.policies.weir import policy as policy_module
from services.allocator.settings import Rules
from services.allocator.state.state import without_tables
from tests.allocator.builders import AT_ONCE
from tests.allocator.fuzz.laws import check, settles
from tests.allocator.fuzz.world import SPACES, World

DECISIONS = int(os.environ.get("FUZZ_DECISIONS", "20000"))
STEPS = 40
EACH, MIXED, EAGER = sorted(POLICIES), "each job its own", "weir, which tries whatever may gain"
EXAMPLES = -(-DECISIONS // (STEPS * (len(EACH) + 2)))
PATIENT = Rules()
SHAPE, STORY = (st.binary(min_size=size, max_size=size) for size in (12, 2 * STEPS))

LIMIT = st.builds(
    Quota,
    cpu=st.sampled_from([None, 0.0, 1.5, 3.0, 6.0]),
    memory_gib=st.sampled_from([None, None, 4.5, 9.0]),
    gpu=st.sampled_from([None, None, 1]),
)
QUOTAS = st.just({}) | st.dictionaries(st.sampled_from(SPACES), LIMIT)
"""About half of the worlds have no quota."""
LOST_WORKER = (
    False,
    bytes([0, 0, 3, 3, 4, *7 * [0]]),
    bytes([*26 * [0], 238, 234, *44 * [0], 1, 0, 41, 188, *4 * [0]]),
    {},
)
"""An example for `optimus`: a job of lower priority gives way to one that lost its only worker."""


@pytest.mark.parametrize("policy", [*EACH, MIXED, EAGER])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.tuples(st.booleans(), SHAPE, STORY, QUOTAS))
@example(LOST_WORKER)
def test_every_decision_keeps_the_laws_in_random_worlds(
    policy: str, drawn: tuple[bool, bytes, bytes, Quotas]
) -> None:
    at_once, shape, story, quotas = drawn
    named = {MIXED: EACH[0], EAGER: "weir"}.get(policy, policy)
    rules = msgspec.structs.replace(AT_ONCE if at_once else PATIENT, policy=named, quotas=quotas)
    with pytest.MonkeyPatch.context() as patch:
        if policy == EAGER:  # in worlds this small exploration hardly ever pays off
            patch.setattr(policy_module, "GAIN", 0.0)
            patch.setattr(policy_module, "least_repaying_speed", lambda *_: 0.0)
        _lives(World(rules, shape, EACH if policy == MIXED else ("",)), story)


@pytest.mark.parametrize("policy", EACH)
@settings(max_examples=-(-EXAMPLES // 2), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.tuples(st.booleans(), SHAPE, STORY))
def test_no_decision_names_a_node_that_the_pod_may_not_use(
    policy: str, drawn: tuple[bool, bytes, bytes]
) -> None:
    at_once, shape, story = drawn
    rules = msgspec.structs.replace(AT_ONCE if at_once else PATIENT, policy=policy)
    world = World(rules, shape, pools=True)
    for what, whom in zip(story[::2], story[1::2], strict=True):
        world.step(what, whom)
        check(world)
    remembers_nothing(world)


def _lives(world: World, story: bytes) -> None:
    for what, whom in zip(story[::2], story[1::2], strict=True):
        world.step(what, whom)
        check(world)
    remembers_nothing(world)
    settles(world)


def remembers_nothing(world: World) -> None:
    """Check that a copy of the state without its tables gives the same decisions."""
    copy = pickle.loads(pickle.dumps(without_tables(world.state)))
    wishes = world.decided.pending_changes
    assert decide(copy, world.now, world.rules, wishes) == decide(
        world.state, world.now, world.rules, wishes
    )
