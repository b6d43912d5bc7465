"""The last capacity facts of each node and namespace, which the server keeps beside the history.
Edge.

A node, or a quota, that has not changed for long is in no log any more: the oldest facts are
discarded. Whoever reads the log from where it begins takes what is known of such a node or
namespace from here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import PullConsumer, StoredMessage
from shared.bus.subjects import FACTS, NODES
from shared.bus.tail import add_consumer
from shared.messages import CapacityFact, Message

IDLE_S = 60.0
WAIT_S = 10.0
"""Nothing more comes after so long: what was there may have been replaced just now."""
SOURCE = "Nats-Stream-Source"


class LastNodeFacts:
    """The last facts that are behind `after` in the history, less those in whose place another was
    heard since.
    """

    def __init__(self, facts: Iterable[StoredMessage] = (), after: int = 0) -> None:
        self._missing = {
            subjects.subject_of(heard.message): heard for heard in facts if heard.sequence > after
        }

    def note_fact(self, message: Message) -> None:
        """Take a fact of the history as news of its node or namespace."""
        if isinstance(message, CapacityFact):
            self._missing.pop(subjects.subject_of(message), None)

    def take_missing(self) -> list[StoredMessage]:
        """Return the facts that the history did not tell, the oldest first; once."""
        unheard, self._missing = self._missing, {}
        return sorted(unheard.values(), key=lambda heard: heard.sequence)


async def read_last_node_facts(bus: Bus) -> list[StoredMessage]:
    """Return the last facts, as the history of facts had them; none where an older version set up
    the bus.
    """
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.NONE,
        filter_subject=subjects.CAPACITY,
        inactive_threshold=IDLE_S,
        mem_storage=True,
    )
    try:
        info = await bus.retry_until_answered(
            lambda: add_consumer(bus.client, bus.js, NODES, config)
        )
    except NotFoundError:
        return []
    puller = PullConsumer(bus.client, NODES, info.name)
    left = int(info.num_pending or 0)
    found = list[StoredMessage]()
    try:
        with contextlib.suppress(TimeoutError):
            while left > 0:
                raw = await asyncio.wait_for(puller.next(), WAIT_S)
                left = min(left - 1, raw.metadata.num_pending)
                with contextlib.suppress(subjects.UnreadableMessage):
                    found.append(_as_in_history(raw))
    finally:
        await puller.close()
    return found


def _as_in_history(raw: Msg) -> StoredMessage:
    """Return a fact with its sequence among all facts, which the server has noted beside it."""
    noted = (raw.headers or {}).get(SOURCE, "").split()
    sequence = int(noted[1]) if len(noted) > 1 and noted[1].isdecimal() else 0
    message = subjects.decode_message(raw.subject, raw.data)
    return StoredMessage(message, raw.subject, FACTS, sequence, raw.metadata.timestamp.timestamp())
