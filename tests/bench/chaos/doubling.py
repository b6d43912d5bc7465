"""Publish stored messages again, like a publisher that lost the acknowledgement, but much later.

Each message is published with its own body and headers, the credentials of its publisher, and a new
`Nats-Msg-Id`, so that the server cannot recognise it. An order still has the
`Nats-Expected-Last-Subject-Sequence` of its first publication, so the server may refuse it: this is
its protection. `late` selects from the older half of the messages about the job, `reordered` the
last ones. Both are published in random order.
"""

from __future__ import annotations

import base64
import contextlib
import random
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError

from shared.auth import permissions
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import CapacityChanged, JobFinished, JobRequested, Message

if TYPE_CHECKING:
    from tests.bench.chaos.schedule import Fault
    from tests.bench.chaos.world import World

MOST = 60
SERVER_S = (
    "Nats-Msg-Id",
    "Nats-Time-Stamp",
    "Nats-Sequence",
    "Nats-Stream",
    "Nats-Subject",
    "Nats-Last-Sequence",
)
Again = tuple[str, str, int]
"""The user that published the message, its stream, and its sequence there."""


async def double(world: World, fault: Fault) -> str:
    again = chosen(world.watch.heard, world.uid, fault.who)
    random.Random(fault.choice).shuffle(again)
    said = 0
    for user in sorted({user for user, _, _ in again}):
        text = await _of_job(world) if user == permissions.JOB else world.stack.credentials_of(user)
        name = f"job.default.{world.job}" if user == permissions.JOB else user
        voice = await wire.connect(world.stack.nats_url, name, text)
        try:
            said += sum(
                [await _said(world.watch.bus, voice, each) for each in again if each[0] == user]
            )
        finally:
            await voice.close()
    return f"{said} of {len(again)} messages, {fault.who}"


def chosen(heard: Sequence[StoredMessage], uid: int, how: str) -> list[Again]:
    """Return messages about one job and about nodes, without those that a person published."""
    here = [h for h in heard if _is_of(h.message, uid) and _sayer(h.message)]
    kept = here[: len(here) // 2][-MOST:] if how == "late" else here[-MOST:]
    return [(_sayer(h.message), h.stream, h.sequence) for h in kept]


def _is_of(message: Message, uid: int) -> bool:
    over = isinstance(message, JobFinished | JobRequested)
    return not over and (
        getattr(message, "uid", None) == uid or isinstance(message, CapacityChanged)
    )


def _sayer(message: Message) -> str:
    users = permissions.PUBLISHED_BY[type(message)]
    return next((u for u in users if u in (*permissions.SERVICES, permissions.JOB)), "")


async def _of_job(world: World) -> str:
    """Return the credentials of the job, from its Secret."""
    kept = await world.listed("namespaces/default/secrets")
    mine = next(s for s in kept if s["metadata"]["name"].startswith(f"{world.job}-nats-"))
    return base64.b64decode(mine["data"]["nats.creds"]).decode()


async def _said(reader: Bus, voice: Bus, again: Again) -> bool:
    """Publish a stored message again; return False if the server refuses it."""
    _, stream, sequence = again
    with contextlib.suppress(NatsError):
        raw: Any = await reader.js.get_msg(stream, sequence)
        headers = {k: v for k, v in (raw.headers or {}).items() if k not in SERVER_S}
        await voice.js.publish(
            raw.subject, raw.data, headers={**headers, "Nats-Msg-Id": secrets.token_hex(8)}
        )
        return True
    return False
