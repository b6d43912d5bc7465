"""Fill the intake of a namespace with the credentials of its submitters, until the server refuses.

Cancellations of unknown jobs fill it: large ones first, then smaller ones, until not even the
smallest has room. The rate limit is so low that the intake stays full. At the end the owner of the
cluster raises the rate, like `weir streams create`, and the intake drains.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from services.local.stack import Stack
from shared.auth import authority, keyring
from shared.auth.authority import Keys
from shared.auth.permissions import SETUP, SUBMITTER
from shared.bus import bus, streams, subjects
from shared.bus.bus import Bus
from shared.bus.intake import DEFAULT_RATES, KIB, LARGEST_MESSAGE, Rates, intake_stream
from shared.bus.subjects import DEFAULT_NAMESPACE
from shared.messages import CancelRequested
from tests.bench.chaos import probes
from tests.bench.chaos.schedule import Fault
from tests.bench.chaos.watch import Late
from tests.bench.chaos.world import World

OTHER_NAMESPACE = "team-b"
NAMESPACES = {"own": DEFAULT_NAMESPACE, "another": OTHER_NAMESPACE}
PADDINGS = (LARGEST_MESSAGE - 4 * KIB, 16 * KIB, KIB, 0)
"""Sizes in bytes of the padding of the messages that fill an intake, in this order."""
DRAIN = Rates(requests=8 * 1024, reports=DEFAULT_RATES.reports)
FILL_S, REFUSED_S, DRAINED_S, LOOK_S = 60.0, 30.0, 120.0, 0.25
FULL = "is full"


class NotRefused(Exception):
    """A message was stored although its stream was full."""


async def fill_intake(world: World, fault: Fault) -> str:
    namespace = NAMESPACES[fault.who]
    submitter = world.submitters[namespace]
    try:
        refusal = await _refused(world, submitter, namespace)
        end_s = time.monotonic() + fault.hold_s
        while time.monotonic() < end_s:
            await fill(submitter, namespace)
            await asyncio.sleep(LOOK_S)
    finally:
        await _drain(world, namespace)
    return f"the intake of {namespace}: {refusal}"


async def _refused(world: World, submitter: Bus, namespace: str) -> str:
    """Fill until a request is refused; return the error text. Some bytes may drain in between."""
    end_s = time.monotonic() + REFUSED_S
    while time.monotonic() < end_s:
        await fill(submitter, namespace)
        try:
            await submitter.request(probes.invalid_request(world, namespace))
        except NatsError as error:
            if FULL in str(error):
                return str(error)
    raise NotRefused(f"no request of {namespace} was refused within {REFUSED_S:g} s")


async def fill(submitter: Bus, namespace: str) -> None:
    """Publish cancellations of unknown jobs until the server has no room for the smallest."""
    async with asyncio.timeout(FILL_S):
        for padding in PADDINGS:
            while await _is_taken(submitter, namespace, padding):
                pass


async def _is_taken(submitter: Bus, namespace: str, padding: int) -> bool:
    name = f"unknown-{secrets.token_hex(4)}"
    cancel = CancelRequested(job=name, namespace=namespace, request_id=name)
    body = {**json.loads(subjects.encode_message(cancel)), "padding": "x" * padding}
    try:
        await submitter.js.publish(subjects.subject_of(cancel), json.dumps(body).encode())
    except APIError:
        return False
    return True


async def _drain(world: World, namespace: str) -> None:
    """Raise the rate, wait until the intake is empty, and reset the rate."""
    async with owner_of(world.stack) as owner:
        await _set_rates(owner, world.stack, namespace, DRAIN)
        try:
            end_s = time.monotonic() + DRAINED_S
            while (await owner.js.stream_info(intake_stream(namespace))).state.messages:
                if time.monotonic() > end_s:
                    raise Late(f"the intake of {namespace} did not drain within {DRAINED_S:g} s")
                await asyncio.sleep(LOOK_S)
        finally:
            await _set_rates(owner, world.stack, namespace, DEFAULT_RATES)


async def _set_rates(owner: Bus, stack: Stack, namespace: str, rates: Rates) -> None:
    await streams.create_namespace(owner.js, namespace, len(stack.nats_parts), rates=rates)


@asynccontextmanager
async def owner_of(stack: Stack) -> AsyncIterator[Bus]:
    connection = await bus.connect(stack.nats_url, SETUP, stack.credentials_of(SETUP))
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def submitters(stack: Stack) -> AsyncIterator[dict[str, Bus]]:
    """Create the other namespace, and yield a connection for the submitters of each namespace."""
    keys = msgspec.json.decode((stack.credentials / keyring.KEYS).read_bytes(), type=Keys)
    async with owner_of(stack) as owner:
        await _set_rates(owner, stack, OTHER_NAMESPACE, DEFAULT_RATES)
    made: dict[str, Bus] = {}
    for namespace in NAMESPACES.values():
        text = authority.submitter_credentials(
            keys, namespace, os.urandom(authority.SEED_BYTES), time.time()
        )
        made[namespace] = await bus.connect(stack.nats_url, f"{SUBMITTER}.{namespace}", text)
    try:
        yield made
    finally:
        for connection in made.values():
            await connection.close()
