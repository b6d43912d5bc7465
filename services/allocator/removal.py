"""Remove the messages that jobs left on the bus, some days after their end, or when somebody asks
for it. Edge.

Promise: no message of a job that is not over is removed, even one that comes while we remove. A
purge covers only messages that the state knows; newer ones stay, and so do all of a name that
another job bears by then, except those from before that job was asked for.

    weir-orders, weir-facts     messages of the name
    weir-jobs, weir-ledger      the job's entry
    weir-programs-<namespace>   `unused_programs.py`
    weir-nodes                  nodes that are gone
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import structlog
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from services.allocator.state import State
from services.allocator.unused_programs import remove_program, remove_unused_programs
from shared.auth.permissions import bucket_subject, stream_of
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.subjects import DEFAULT_NAMESPACE, FACTS, JOBS, LEDGER, NODES, ORDERS
from shared.messages import (
    CancelRequested,
    CapacityChanged,
    ForgetRequested,
    JobFinished,
    JobRejected,
    Message,
)

log = structlog.get_logger()

ENDS: tuple[type[Message], ...] = (JobFinished, JobRejected, CancelRequested)
"""The last of these is the last message of a name, unless it is asked for again."""


class Removal:
    """One pass after another. `state`: gives the allocator's state of now; `removed`: is called
    with each name of which all messages went.
    """

    def __init__(
        self, bus: Bus, kept_s: float, state: Callable[[], State], removed: Callable[[str], None]
    ) -> None:
        self.bus = bus
        self.kept_s = kept_s
        self.state = state
        self.removed = removed

    async def remove_expired(self, now: float | None = None) -> None:
        """Remove all that is due. Raises `NatsError` while the bus is away; the next pass goes on
        from there.
        """
        if now is None:
            now = time.time()
        until_s = now - self.kept_s
        expired = await self._expired_names(until_s)
        for name, end in expired.items():
            await self._remove(name, end)
        await self._remove_gone_nodes(until_s)
        await remove_unused_programs(self.bus, self.state(), until_s)

    async def remove_forgotten(self) -> None:
        """Remove the jobs that are over and that somebody asked to forget, and the requests for it.

        A request that the state has not heard yet stays: the job may have been asked for again
        before it.
        """
        async for raw in self._stored(ORDERS, subjects.pattern(ForgetRequested)):
            asked = _sequence_of(raw)
            if asked > self.state().sequences.get(ORDERS, 0):
                return
            await self._forget(_name_in(raw), asked)
            await self._purge_subject(ORDERS, str(raw.subject), asked + 1)

    async def _forget(self, name: str, asked: int) -> None:
        """Remove the messages of a job, and its program unless another job uses it. Nothing is
        removed if a job of this name had not ended at the request, which has the sequence `asked`.
        """
        key = _key_of(name)
        end = self.state().closed.get(key)
        if not await self._was_over(key, asked):
            return
        await self._remove(name, asked)
        if end is None or end.removed:
            return
        request = end.job.request
        program = (request.namespace, request.program.digest)
        await remove_program(self.bus, self.state(), program, end.finished.finished_s)

    async def _was_over(self, key: str, asked: int) -> bool:
        """Return True if all jobs of a name had ended when it was asked to forget them."""
        for uid in uids_of(self.state(), key):
            if uid < asked:
                return False
        for kind in (JobFinished, JobRejected):
            for name in _names(key):
                if await self.bus.last_sequence(kind, name) >= asked:
                    return False
        return True

    # ------------------------------------------------------------ jobs

    async def _expired_names(self, until_s: float) -> dict[str, int]:
        """Return the last expired end under each name, as its subject has it: `<namespace>.<job>`,
        or `<job>` alone.
        """
        ends: dict[str, int] = {}
        for kind in ENDS:
            async for raw in self._stored(ORDERS, subjects.pattern(kind)):
                if not _is_expired(raw, until_s):
                    break
                name = _name_in(raw)
                ends[name] = max(ends.get(name, 0), _sequence_of(raw))
        return ends

    async def _stored(self, stream: str, filtered: str) -> AsyncIterator[RawStreamMsg]:
        """Yield the messages on some subjects, the oldest first."""
        raw = await self._next(stream, filtered, 0)
        while raw is not None:
            yield raw
            raw = await self._next(stream, filtered, _sequence_of(raw))

    async def _next(self, stream: str, filtered: str, after: int) -> RawStreamMsg | None:
        """Return the first message on some subjects after a sequence; None: there is none."""

        async def ask() -> RawStreamMsg:
            return await self.bus.js.get_msg(
                stream, seq=after + 1, subject=filtered, next=True, direct=True
            )

        try:
            return await self.bus.retry_until_answered(ask)
        except NotFoundError:
            return None

    async def _remove(self, name: str, end: int) -> None:
        """Remove the messages of a name up to its end; without a newer job of that name, all."""
        key = _key_of(name)
        newest = await self._last_order(key)
        state = self.state()
        begun = uids_of(state, key)

        # A newer job or request of this name keeps its messages.
        if begun or newest > end:
            last = min([end, *[uid - 1 for uid in begun]])
            await self._purge(ORDERS, key, last)
            return

        await self._purge(ORDERS, key, state.sequences.get(ORDERS, 0))
        await self._purge(FACTS, key, state.sequences.get(FACTS, 0))
        for bucket in (JOBS, LEDGER):
            await self._purge_subject(stream_of(bucket), bucket_subject(bucket, key), 0)
        self.removed(key)
        log.info("JobRemoved", job=key)

    async def _last_order(self, key: str) -> int:
        """Return the sequence of the last message about a job under any of its names."""
        last = 0
        for name in _names(key):
            last = max(last, await self.bus.last_sequence_matching(f"weir.job.*.{name}"))
        return last

    async def _purge(self, stream: str, key: str, last: int) -> None:
        """Remove the messages of a job up to a sequence. Only orders have names without a
        namespace.
        """
        if last <= 0:
            return
        names = _names(key) if stream == ORDERS else (key,)
        for name in names:
            await self._purge_subject(stream, f"weir.*.*.{name}", last + 1)

    async def _purge_subject(self, stream: str, filtered: str, before: int) -> None:
        """Purge a subject of a stream up to the sequence below `before`; 0: all of it. Raises if
        this process no longer leads.
        """
        self.bus.must_lead()
        await self.bus.js.purge_stream(stream, seq=before or None, subject=filtered)

    # ------------------------------------------------------------ nodes

    async def _remove_gone_nodes(self, until_s: float) -> None:
        """Remove the last fact of each node that was deleted before this time. Facts come oldest
        first, so the first recent one ends the search.
        """
        async for raw in self._stored(NODES, subjects.pattern(CapacityChanged)):
            if not _is_expired(raw, until_s):
                return
            if _is_gone(raw):
                await self._purge_subject(NODES, str(raw.subject), _sequence_of(raw) + 1)


def uids_of(state: State, key: str) -> list[int]:
    """Return the uids under a name that are not over: of the job, and of requests that are not
    answered.
    """
    uids = []
    job = state.jobs.get(key)
    if job is not None:
        uids.append(job.uid)
    for uid, asked in state.asked.items():
        if asked.request.key() == key:
            uids.append(uid)
    for uid, answer in state.refused.items():
        if answer.key() == key:
            uids.append(uid)
    return uids


def _sequence_of(raw: RawStreamMsg) -> int:
    return int(raw.seq or 0)


def _is_expired(raw: RawStreamMsg, until_s: float) -> bool:
    """Return whether a message is known to have been stored by then."""
    return raw.time is not None and raw.time.timestamp() <= until_s


def _name_in(raw: RawStreamMsg) -> str:
    """Return the name in a message's subject: `<namespace>.<job>`, or `<job>` alone."""
    return str(raw.subject).split(".", 3)[3]


def _key_of(name: str) -> str:
    """Return the key of the job with this name in a subject."""
    return name if "." in name else f"{DEFAULT_NAMESPACE}.{name}"


def _names(key: str) -> tuple[str, ...]:
    """Return a job's names in subjects; one in `default` may be called by its name alone."""
    namespace, _, job = key.partition(".")
    if namespace == DEFAULT_NAMESPACE:
        return (key, job)
    return (key,)


def _is_gone(raw: RawStreamMsg) -> bool:
    """Return True if a message is the fact that a node was deleted; False if it cannot be read."""
    try:
        fact = subjects.decode_message(str(raw.subject), raw.data or b"")
    except subjects.UnreadableMessage:
        return False
    return isinstance(fact, CapacityChanged) and fact.gone
