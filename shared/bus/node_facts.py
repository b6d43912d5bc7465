"""The last capacity facts of each node and namespace, which the server keeps beside the history.

The oldest facts are discarded. So the history may not have the last fact of a node or a quota that
has not changed for a long time. The stream `weir-nodes` has it.
"""

from __future__ import annotations

from collections.abc import Iterable

from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage, stored_time
from shared.bus.log_reader import LogReader, StreamQuery
from shared.bus.subjects import FACTS, NODES
from shared.messages import CapacityFact, Message

SOURCE = "Nats-Stream-Source"
"""The header in which the server notes where a message was copied from."""


class LastNodeFacts:
    """The last facts after a position in the history, without those that the history has replaced
    since.
    """

    def __init__(self, facts: Iterable[StoredMessage] = (), after: int = 0) -> None:
        self._missing: dict[str, StoredMessage] = {}
        for fact in facts:
            if fact.sequence > after:
                self._missing[subjects.subject_of(fact.message)] = fact

    def note_fact(self, message: Message) -> None:
        """Note that the history has a fact about this node or namespace."""
        if isinstance(message, CapacityFact):
            self._missing.pop(subjects.subject_of(message), None)

    def take_missing(self) -> list[StoredMessage]:
        """Return the facts that the history did not have, the oldest first; each is returned
        once.
        """
        missing, self._missing = self._missing, {}
        return sorted(missing.values(), key=lambda fact: fact.sequence)


async def read_last_node_facts(bus: Bus) -> list[StoredMessage]:
    """Return the last facts, with their sequences in the history. Return none if an older version
    created the streams.
    """
    try:
        return await bus.retry_until_answered(lambda: _read_facts(bus))
    except NotFoundError:
        return []


async def _read_facts(bus: Bus) -> list[StoredMessage]:
    query = StreamQuery(NODES, (subjects.CAPACITY,), filter_in_subject=True)
    reader = LogReader(bus, [query], _fact_in_history)
    try:
        return [fact async for fact in reader.read_stored()]
    finally:
        await reader.close()


def _fact_in_history(raw: Msg) -> StoredMessage | None:
    """Return a fact with its sequence among all facts, which the server has noted beside it."""
    noted = (raw.headers or {}).get(SOURCE, "").split()
    sequence = int(noted[1]) if len(noted) > 1 and noted[1].isdecimal() else 0
    try:
        message = subjects.decode_message(raw.subject, raw.data)
    except subjects.UnreadableMessage:
        return None
    return StoredMessage(message, raw.subject, FACTS, sequence, stored_time(raw))
