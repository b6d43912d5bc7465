"""What a chief hears of its pods' use: anybody may speak on that subject, so nothing on it may do
harm.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace
from structlog.testing import capture_logs

from services.trainer.meter import Meter
from services.trainer.settings import Settings
from shared.bus.bus import Bus
from shared.messages import TaskUsage
from tests.trainer.builders import spec
from tests.trainer.test_usage import BAD, GOOD


async def test_a_chief_goes_on_collecting_over_malformed_bodies_and_complains_once(
    bus: Bus,
) -> None:
    chief = Meter(
        bus, Settings(job="digits", uid=7, pod="chief-0", pod_uid="u", role="chief", serial=0)
    )
    await chief.collect()

    with capture_logs() as logs:
        for body in [*BAD, msgspec.json.encode(GOOD)]:
            await bus.client.publish("weir-usage.default.digits.7", body)
        async with asyncio.timeout(60):
            while not chief.usage:
                await asyncio.sleep(0.01)

    assert chief.usage == {"ps-0": GOOD} and [entry["event"] for entry in logs] == ["OddUsage"]


async def test_what_a_pod_measures_is_what_its_chief_collects(bus: Bus) -> None:
    about = {"job": "digits", "uid": 7, "pod_uid": "u", "usage_s": 0.05}
    chief = Meter(bus, Settings(**about, pod="chief-0", role="chief", serial=0))
    server = Meter(bus, Settings(**about, pod="digits-ps-3", role="ps", serial=3))
    await chief.collect()

    measuring = asyncio.create_task(server.measure())
    async with asyncio.timeout(60):
        while not chief.usage:
            await asyncio.sleep(0.01)
    measuring.cancel()

    assert list(chief.usage) == ["ps-3"] and chief.usage["ps-3"].memory_gib > 0.0


async def test_of_a_task_that_its_generation_has_no_more_nothing_is_reported(bus: Bus) -> None:
    chief = Meter(
        bus, Settings(job="digits", uid=7, pod="chief-0", pod_uid="u", role="chief", serial=0)
    )
    chief.usage = {
        name: TaskUsage(task=name, cpu=0.5, memory_gib=0.5) for name in ("ps-1", "ps-3", "worker-2")
    }

    told = chief.of(spec(2, previous=1, pods=["chief-0", "ps-3", "worker-2"]))
    named = chief.of(
        replace(spec(1), tasks=tuple(replace(t, pod=f"digits-{t.role}-3") for t in spec(1).tasks))
    )

    assert [use.task for use in told] == ["ps-3", "worker-2"] and [use.task for use in named] == [
        "ps-3"
    ]
