"""The log up to a moment, read for one job.

It is read from its beginning, so that every desired size and every cause is known. If the beginning
is no longer stored, or the log is very long, the allocator's own stored state replaces it, unless
the moment is before that state.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace
from nats.js.errors import NotFoundError

from services.allocator import snapshot
from services.allocator.settings import Rules
from services.allocator.state.state import State, with_last_fact
from services.console.bus_reader import CLUSTER_CLOCKS_S, read_entries
from services.console.log_entry import entry_filters
from services.whatif.event_log import History, LogEntry, Moment, is_cause
from services.whatif.explain.explanation import DecisionRecord
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery, read_last_node_facts
from shared.bus.subjects import FACTS, ORDERS
from shared.messages import CapacityFact

MANY_FACTS = 200_000
"""If a log has more facts than this and there is a stored state, only the recent facts are read.
There are far fewer orders.
"""
RECENT_S = 600.0
"""The time span of recent facts, in addition to the stabilisation window."""
STORED_STATE_NOTE = "earlier facts are known from the allocator's stored state only"


async def read_past(
    bus: Bus, key: str, at_s: float, rules: Rules
) -> tuple[Moment, tuple[str, ...]]:
    """Return the moment from the log, and notes on the parts that are no longer in the log."""
    history = History(key, rules)
    since_s: float | None = None
    notes = await beginning_notes(bus)
    many = (await bus.js.stream_info(FACTS)).state.messages > MANY_FACTS
    if notes or many:
        stored = await _stored_state(bus, at_s)
        if stored:
            history.before = stored
            since_s = at_s - RECENT_S - history.horizon_s if many else None
            notes.append(STORED_STATE_NOTE)
        history.before = await _with_unread_nodes(bus, history.before, since_s or 0.0, at_s)
    wanted = [
        StreamQuery(ORDERS, entry_filters(ORDERS)),
        StreamQuery(FACTS, entry_filters(FACTS), since_s=since_s),
    ]
    async with aclosing(_read_log(bus, wanted, at_s)) as messages:
        async for entry in messages:
            history.hear(entry)
    return history.moment(at_s), tuple(notes)


async def _with_unread_nodes(bus: Bus, state: State, since_s: float, until_s: float) -> State:
    """Return the state with the nodes and quotas of facts older than the part of the log that is
    read.
    """
    first = (await bus.js.stream_info(FACTS)).state.first_seq
    for fact in await read_last_node_facts(bus):
        unread = fact.sequence < first or fact.stored_s < since_s
        new = fact.sequence > state.sequences.get(FACTS, 0) and fact.stored_s <= until_s
        if unread and new and isinstance(fact.message, CapacityFact):
            state = with_last_fact(state, fact.message, fact.stored_s)
    return state


async def with_event(bus: Bus, ground: DecisionRecord | None) -> DecisionRecord | None:
    """Return the record with the fact that led to the decision; it is read from the log if it is
    not known.
    """
    if ground is None or ground.event is not None or ground.cause == "-":
        return ground
    wanted = [StreamQuery(FACTS, entry_filters(FACTS), since_s=ground.decided_s - RECENT_S)]
    async with aclosing(_read_log(bus, wanted, ground.decided_s + CLUSTER_CLOCKS_S)) as messages:
        async for entry in messages:
            if is_cause(entry.message, ground.cause):
                return replace(ground, event=entry)
    return ground


async def _read_log(
    bus: Bus, wanted: list[StreamQuery], until_s: float
) -> AsyncGenerator[LogEntry, None]:
    async with aclosing(read_entries(bus, wanted, follow=False)) as entries:
        async for entry in entries:
            if entry.stored_s > until_s:
                return
            readable = entry.as_log_entry
            if readable:
                yield readable


async def beginning_notes(bus: Bus) -> list[str]:
    """Return a note for each stream with a beginning that is no longer stored."""
    notes = []
    for stream in (ORDERS, FACTS):
        first = (await bus.js.stream_info(stream)).state.first_seq
        if first > 1:
            notes.append(f"{stream} begins with message {first}: earlier messages are unknown")
    return notes


async def _stored_state(bus: Bus, at_s: float) -> State | None:
    """Return the allocator's stored state; None if there is none, or if it is newer than the
    moment.
    """
    state = await snapshot.load_snapshot(bus)
    for stream, sequence in state.sequences.items():
        if await _stored_s(bus, stream, sequence) > at_s:
            return None
    return state if state.sequences else None


async def _stored_s(bus: Bus, stream: str, sequence: int) -> float:
    """Return the time at which a message was stored; 0.0 if it is gone."""
    try:
        raw = await bus.js.get_msg(stream, sequence)
    except NotFoundError:
        return 0.0
    return raw.time.timestamp() if raw.time else 0.0
