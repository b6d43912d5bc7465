"""Check that a service works: cause an event to which it must react, and wait for its message.

allocator   an invalid request: JobRejected
submitters  the same with the credentials of the submitters of each namespace
monitor     a new pod of another user: CapacityChanged of its node
launcher    a new generation; therefore every fault of the launcher is injected in a hand-over
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import aiohttp
import msgspec
from nats.errors import Error as NatsError

from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import CapacityChanged, JobFinished, JobRejected, JobRequested
from tests.bench.chaos import standing
from tests.bench.chaos.watch import LOOK_S, Late
from tests.bench.chaos.world import REQUEST, World

NODE, A_LITTLE = "node-1", 0.01
Look = Callable[[Sequence[StoredMessage], float], float | None]
DIGEST = "sha256-" + "0" * 64


async def allocator(world: World, within_s: float) -> float:
    """Return when it answered; raise `Late`, or `TimeoutError` if not even the bus answered."""
    return await _rejected(world, world.watch.bus, invalid_request(world), within_s)


async def submitters(world: World, within_s: float) -> float:
    """Return when the last of them was answered."""
    answers = [
        await _rejected(world, submitter, invalid_request(world, namespace), within_s)
        for namespace, submitter in world.submitters.items()
    ]
    return max(answers)


def invalid_request(world: World, namespace: str = "default") -> JobRequested:
    """Return a request with a new job name that the allocator has to reject."""
    world.made += 1
    ask = {
        "job": f"probe-{world.made}",
        "namespace": namespace,
        "request_id": str(world.made),
        "epochs": 1,
    }
    wrong = {
        **REQUEST,
        "ps": {"start": 2, "min": 2, "max": 1},
        "program": {"name": "-", "digest": DIGEST},
    }
    return msgspec.convert({**wrong, **ask}, JobRequested)


async def _rejected(world: World, client: Bus, request: JobRequested, within_s: float) -> float:
    since = len(world.watch.heard)
    uid = await _asked(client, request, within_s)
    await world.watch.until(
        lambda: any(m.uid == uid for m in world.watch.of(JobRejected, since)),
        within_s,
        "the allocator's answer",
    )
    return time.time()


async def _asked(client: Bus, request: JobRequested, within_s: float) -> int:
    async with asyncio.timeout(within_s):
        while True:
            try:
                return await client.request(request)
            except NatsError:
                await asyncio.sleep(LOOK_S)


async def monitor(world: World, within_s: float) -> float:
    """Return when the monitor reported the node of a new pod. The pod is then deleted."""
    since, name = len(world.watch.heard), ""
    async with asyncio.timeout(within_s):
        while not name:
            try:
                name = await world.stranger(NODE, A_LITTLE)
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(LOOK_S)
    try:
        await world.watch.until(
            lambda: any(m.node == NODE for m in world.watch.of(CapacityChanged, since)),
            within_s,
            "the monitor's word",
        )
        return time.time()
    finally:
        await world.stranger_leaves(name)


async def training(world: World, since_s: float, within_s: float) -> float:
    """Return when further updates were found to be applied."""
    return await _found(world, standing.applies_again_s, since_s, within_s, "a further update")


async def saving(world: World, since_s: float, within_s: float) -> float:
    return await _found(world, standing.saved_s, since_s, within_s, "a checkpoint")


async def _found(world: World, look: Look, since_s: float, within_s: float, what: str) -> float:
    """Wait until `look` finds a time; raise `Late`, immediately if the job has finished."""
    over: JobFinished | float = await world.watch.until(
        lambda: look(world.heard, since_s) or standing.finished(world.heard), within_s, what
    )
    if isinstance(over, JobFinished):
        raise Late(f"the job {over.outcome} before {what}: {over.cause[-1000:]}")
    return over
