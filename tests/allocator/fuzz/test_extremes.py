"""Tests of the bounds of numbers: beyond them messages are refused, at them policies decide."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from services.allocator.admission.validation import reasons_against
from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from shared.messages import Message, ModelProfile, Phases, RoleResources, TrainingResumed
from tests.allocator.builders import AT_ONCE
from tests.allocator.fuzz.extremes import Place, at_bounds, beyond_bounds, places, read, with_number
from tests.allocator.fuzz.laws import check
from tests.allocator.fuzz.world import World, name_of, report, request, usage
from tests.shared.sample_messages import one_of_each

SHAPE = bytes([0, 0, 1, 1, 18, 19, 61, 7, 18, 61, 40, 26])
UNBOUNDED = {"metrics"}
"""Fields with any JSON number: they are only shown."""


def running(policy: str) -> World:
    """Return a world with three jobs that run and have reported."""
    world = World(replace(AT_ONCE, policy=policy), SHAPE)
    for whom in (1, 2):
        world.accept(whom)
        world.step(1, 0)
    for whom in (10, 60, 200):
        for job in list(world.state.jobs.values()):
            if job.active_decision:
                world.hear(report(job, 50.0 + whom, 1.0, 1_000_000, usage(job, 0.8, 0.5)))
        world.decide()
        world.step(1, 0)
    return world


def facts(world: World) -> list[Message]:
    """Return node facts, and a report and a resumption of one job, with their optional fields."""
    found: list[Message] = [world.picture(name) for name in world.sizes]
    for job in [job for job in world.state.jobs.values() if job.active_decision][:1]:
        profile = ModelProfile(parameters=10, bytes=40, variables=2)
        said = report(job, 80.0, 1.0, 1_000_000, usage(job, 0.8, 0.5))
        found.append(replace(said, gradient_noise=1.0, profile=profile))
        about = {**name_of(job), "uid": job.uid, "generation": (job.running or 0) + 1}
        found.append(
            TrainingResumed(
                **about, step=1, samples=1, previous=job.running, pause_s=1.0, phases=Phases()
            )
        )
    return found


def extremes(message: Message) -> list[tuple[Place, float]]:
    return [(place, value) for place in places(message) for value in at_bounds(place[1])]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_decides_at_the_bounds_of_every_number_of_a_fact(policy: str) -> None:
    world = running(policy)
    before, now, decided = world.state, world.now, world.decided
    for fact in facts(world):
        for place, value in extremes(fact):
            world.state, world.now, world.decided = before, now, decided
            heard = read(fact, with_number(fact, place, value))
            assert heard is not None, ("refused at its bound", place, value)
            if isinstance(heard, TrainingResumed):  # its generation has to be in flight
                job = world.state.jobs[heard.key()]
                flies = replace(
                    job.decided[job.running or 0],
                    generation=heard.generation,
                    revision=job.revision + 1,
                )
                world.hear(flies)
            world.hear(heard)
            for _ in range(2):
                world.now += 100.0
                world.decide()
                check(world)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_requests_at_the_bounds_of_every_number_are_refused_or_decided(policy: str) -> None:
    asked = replace(request("extreme", 18, 1), resources=RoleResources())
    refused = 0
    for place, value in extremes(asked):
        heard = read(asked, with_number(asked, place, value))
        assert heard is not None, ("refused at its bound", place, value)
        if reasons_against(heard):
            refused += 1
            continue
        world = running(policy)
        world.accept_request(heard)
        for _ in range(3):
            world.now += 100.0
            world.decide()
            check(world)
            world.settle(0)
            world.first_reports()
    assert refused < len(extremes(asked)) // 2, "most of them are decided"


@pytest.mark.parametrize("message", one_of_each(), ids=lambda message: type(message).__name__)
def test_messages_beyond_any_bound_are_refused(message: Message) -> None:
    for place in places(message):
        if place[0][0] not in UNBOUNDED:
            for value in beyond_bounds(place[1]):
                assert read(message, with_number(message, place, value)) is None, (place, value)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (
            ("resources", "worker", "cpu"),
            5e-324,
            "resources.worker.cpu: 4.94066e-324 is less than 0.001",
        ),
        (("resources", "ps", "cpu"), 1e300, "resources.ps.cpu: Expected `float` <= 1000000.0"),
        (("workers", "max"), 2**62, "workers.max: Expected `int` <= 1000000"),
        (("batch", "max"), 2**62, "batch.max: Expected `int` <= 1000000"),
        (("epochs",), 2**62, "epochs: Expected `int` <= 1000000000"),
        (("grace_s",), 1.7e308, "grace_s: Expected `float` <= 31622400.0"),
        (("priority",), 2**31, "priority: Expected `int` <= 2147483647"),
        (
            ("priority",),
            1024,
            "priority: 1024 is more than 1000, the highest in namespace 'default'",
        ),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_name_and_bound(
    place: tuple[str, ...], value: float, reason: str
) -> None:
    from services.allocator.admission.validation import InvalidRequest
    from services.allocator.admission.validation import check_request as answer

    asked = replace(request("extreme", 18, 1), resources=RoleResources())
    kinds: dict[Any, Any] = dict(places(asked))
    found = answer(with_number(asked, (place, kinds[place]), value), Rules(max_priority=1000))

    assert isinstance(found, InvalidRequest) and any(
        each.startswith(reason) for each in found.reasons
    ), found
