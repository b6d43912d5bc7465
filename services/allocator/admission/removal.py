"""Remove the messages and programs of jobs, some days after their end or on request.

Promise: no message of a job that is not over is removed, even one that arrives meanwhile. A purge
covers only messages that the state knows. Newer ones stay, and so do all of a name that a newer job
has, except those from before that job was requested.

    weir-orders, weir-facts     messages of the name
    weir-jobs, weir-ledger      the job's entry
    weir-programs-<namespace>   programs that no job uses
    weir-nodes                  nodes that are gone

A program is removed in two passes, with a pause between them. The first pass removes the
description of a program that no job uses, and that was not stored again recently. The second one
removes contents without a description. Storing a program again writes its description again
(`programs.store_program`), so complete contents stay.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

import msgspec
import structlog
from nats.errors import Error as NatsError
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from services.allocator.state.state import State
from shared.auth.permissions import (
    API,
    bucket_subject,
    chunk_subject,
    description_subject,
    stream_of,
)
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.client import RETRY_S
from shared.bus.programs import ProgramInfo
from shared.bus.subjects import DEFAULT_NAMESPACE, FACTS, JOBS, LEDGER, NODES, ORDERS, PROGRAMS
from shared.messages import (
    CancelRequested,
    CapacityChanged,
    ForgetRequested,
    JobFinished,
    JobRejected,
    Message,
)
from shared.runtime.log import RateLimitedWarning

log = structlog.get_logger()

ENDS: tuple[type[Message], ...] = (JobFinished, JobRejected, CancelRequested)
"""The last message of a name is of one of these types, unless the name is requested again."""


class Removal:
    """Remove expired jobs, and jobs that users asked to forget. `state`: returns the present state
    of the allocator; `removed`: is called with each name that has no message left.
    """

    def __init__(
        self, bus: Bus, kept_s: float, state: Callable[[], State], removed: Callable[[str], None]
    ) -> None:
        self.bus = bus
        self.kept_s = kept_s
        self.state = state
        self.removed = removed

    async def run_expired(self, pause_s: float) -> None:
        """Remove expired jobs again and again, after a pause (s) each. An error of the bus is
        logged, and the next pass tries again.
        """
        warning = RateLimitedWarning()
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.remove_expired()
            except NatsError as error:
                warning.warn_error("RemovalWaits", error)

    async def run_forgotten(self, requested: asyncio.Event) -> None:
        """Remove the jobs that a user asks to forget, as soon as there is a request. An error of
        the bus is logged, and tried again after `RETRY_S`.
        """
        warning = RateLimitedWarning()
        while True:
            await requested.wait()
            requested.clear()
            try:
                await self.remove_forgotten()
            except NatsError as error:
                warning.warn_error("ForgettingWaits", error)
                requested.set()
                await asyncio.sleep(RETRY_S)

    async def remove_expired(self, now: float | None = None) -> None:
        """Remove everything that has expired. Raises `NatsError` while the bus is unreachable; the
        next pass continues from there.
        """
        if now is None:
            now = time.time()
        until_s = now - self.kept_s
        expired = await self._expired_names(until_s)
        for name, end in expired.items():
            await self._remove_messages(name, end)
        await self._remove_gone_nodes(until_s)
        await remove_unused_programs(self.bus, self.state(), until_s)

    async def remove_forgotten(self) -> None:
        """Remove the ended jobs that a user asked to forget, and the requests for that. A request
        that the state has not read yet stays, because the job may have been submitted again before
        it.
        """
        async for raw in self._stored_messages(ORDERS, subjects.pattern(ForgetRequested)):
            requested_seq = _sequence_of(raw)
            if requested_seq > self.state().sequences.get(ORDERS, 0):
                return
            await self._forget_job(_name_in(raw), requested_seq)
            await self._purge_subject(ORDERS, str(raw.subject), requested_seq + 1)

    async def _forget_job(self, name: str, requested_seq: int) -> None:
        """Remove the messages of a job, and its program unless another job uses it. Nothing is
        removed if a job of this name had not ended at the request. `requested_seq`: the sequence of
        the request.
        """
        key = _key_of(name)
        end = self.state().closed.get(key)
        if not await self._was_over(key, requested_seq):
            return
        await self._remove_messages(name, requested_seq)
        if end is None or end.removed:
            return
        request = end.job.request
        program = (request.namespace, request.program.digest)
        await remove_program(self.bus, self.state(), program, end.finished.finished_s)

    async def _was_over(self, key: str, requested_seq: int) -> bool:
        """Return True if all jobs of a name had ended when it was asked to forget them."""
        for uid in uids_of(self.state(), key):
            if uid < requested_seq:
                return False
        for kind in (JobFinished, JobRejected):
            for name in _names(key):
                if await self.bus.last_sequence(kind, name) >= requested_seq:
                    return False
        return True

    # ------------------------------------------------------------ jobs

    async def _expired_names(self, until_s: float) -> dict[str, int]:
        """Return the last expired end under each name, as its subject has it: `<namespace>.<job>`,
        or `<job>` alone.
        """
        ends: dict[str, int] = {}
        for kind in ENDS:
            async for raw in self._stored_messages(ORDERS, subjects.pattern(kind)):
                if not _is_expired(raw, until_s):
                    break
                name = _name_in(raw)
                ends[name] = max(ends.get(name, 0), _sequence_of(raw))
        return ends

    async def _stored_messages(self, stream: str, filtered: str) -> AsyncIterator[RawStreamMsg]:
        """Yield the messages on some subjects, the oldest first."""
        raw = await self._next_message(stream, filtered, 0)
        while raw is not None:
            yield raw
            raw = await self._next_message(stream, filtered, _sequence_of(raw))

    async def _next_message(self, stream: str, filtered: str, after: int) -> RawStreamMsg | None:
        """Return the first message on some subjects after a sequence; None: there is none."""

        async def ask() -> RawStreamMsg:
            return await self.bus.js.get_msg(
                stream, seq=after + 1, subject=filtered, next=True, direct=True
            )

        try:
            return await self.bus.retry_until_answered(ask)
        except NotFoundError:
            return None

    async def _remove_messages(self, name: str, end: int) -> None:
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
        async for raw in self._stored_messages(NODES, subjects.pattern(CapacityChanged)):
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
    for uid, open_request in state.asked.items():
        if open_request.request.key() == key:
            uids.append(uid)
    for uid, answer in state.unreadable_requests.items():
        if answer.key() == key:
            uids.append(uid)
    return uids


def _sequence_of(raw: RawStreamMsg) -> int:
    return int(raw.seq or 0)


def _is_expired(raw: RawStreamMsg, until_s: float) -> bool:
    """Return True if a message is known to have been stored by then."""
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


ProgramKey = tuple[str, str]
"""A namespace, and the digest of a program."""


class Streams(msgspec.Struct):
    streams: list[str] | None = None


def programs_in_use(state: State, since_s: float) -> set[ProgramKey]:
    """Return the programs of jobs that are requested, that run, or that have ended since then."""
    requests = []
    for open_request in state.asked.values():
        requests.append(open_request.request)
    for job in state.jobs.values():
        requests.append(job.request)
    for end in state.closed.values():
        if not end.removed and end.finished.finished_s > since_s:
            requests.append(end.job.request)
    return {(request.namespace, request.program.digest) for request in requests}


async def remove_unused_programs(bus: Bus, state: State, until_s: float) -> None:
    """Remove the unused programs of all namespaces. Programs stored after `until_s` stay."""
    used: defaultdict[str, set[str]] = defaultdict(set)
    for namespace, digest in programs_in_use(state, until_s):
        used[namespace].add(digest)
    for namespace in await _namespaces(bus):
        bucket = _ProgramBucket(bus, f"{PROGRAMS}-{namespace}", until_s)
        await bucket.remove_unused(used[namespace])


async def remove_program(bus: Bus, state: State, program: ProgramKey, until_s: float) -> None:
    """Remove a program at once, unless a job uses it or it was stored again after `until_s`."""
    if program in programs_in_use(state, 0.0):
        return
    namespace, digest = program
    bucket = _ProgramBucket(bus, f"{PROGRAMS}-{namespace}", until_s)
    await bucket.remove(digest)


async def _namespaces(bus: Bus) -> list[str]:
    """Return the namespaces that have a bucket for programs."""
    prefix = f"OBJ_{PROGRAMS}-"
    query = msgspec.json.encode({"subject": f"{description_subject('*')}.*"})
    answer = await bus.retry_until_answered(
        lambda: bus.client.request(f"{API}.STREAM.NAMES", query, timeout=5.0)
    )
    listed = msgspec.json.decode(answer.data, type=Streams)
    namespaces = []
    for stream in listed.streams or []:
        if stream.startswith(prefix):
            namespaces.append(stream.removeprefix(prefix))
    return namespaces


class _ProgramBucket:
    """The programs of one namespace. Those stored after `until_s` stay."""

    def __init__(self, bus: Bus, bucket: str, until_s: float) -> None:
        self.bus = bus
        self.bucket = bucket
        self.until_s = until_s
        self.stream = f"OBJ_{bucket}"

    async def remove_unused(self, used: set[str]) -> None:
        """Remove descriptions of unused programs, and contents without a description. `used`:
        digests.
        """
        described = await self._remove_unused_descriptions(used)
        for subject in await self._subjects(chunk_subject(self.bucket)):
            if _last_token(subject) not in described:
                await self._purge_if_old(subject)

    async def _remove_unused_descriptions(self, used: set[str]) -> set[str]:
        """Remove descriptions of unused programs. Return the ids of all described contents."""
        described = set[str]()
        for subject in await self._subjects(description_subject(self.bucket)):
            raw = await self._last_message(subject)
            if raw is None:
                continue
            described.add(_nuid(raw))
            if _digest(subject) not in used and self._is_old(raw):
                await self._purge(subject, raw)
        return described

    async def _purge_if_old(self, subject: str) -> None:
        """Purge a subject, unless its last message is so recent that storing may not be
        complete.
        """
        raw = await self._last_message(subject)
        if raw is not None and self._is_old(raw):
            await self._purge(subject, raw)

    async def remove(self, digest: str) -> None:
        """Remove one program: its description, and the contents to which it refers."""
        for subject in await self._subjects(description_subject(self.bucket)):
            if _digest(subject) != digest:
                continue
            raw = await self._last_message(subject)
            if raw is None or not self._is_old(raw):
                continue
            await self._purge(subject, raw)
            contents = f"{chunk_subject(self.bucket)}.{_nuid(raw)}"
            part = await self._last_message(contents)
            if part is not None:
                await self._purge(contents, part)

    async def _subjects(self, prefix: str) -> list[str]:
        """Return the subjects below a prefix that have messages in the bucket's stream."""
        info = await self.bus.retry_until_answered(
            lambda: self.bus.js.stream_info(self.stream, subjects_filter=f"{prefix}.>")
        )
        return list(info.state.subjects or {})

    async def _last_message(self, subject: str) -> RawStreamMsg | None:
        """Return the last message of a subject; None: there is none."""
        try:
            return await self.bus.retry_until_answered(
                lambda: self.bus.js.get_msg(self.stream, subject=subject, direct=True)
            )
        except NotFoundError:
            return None

    def _is_old(self, raw: RawStreamMsg) -> bool:
        if raw.time is None:
            return False
        return raw.time.timestamp() <= self.until_s

    async def _purge(self, subject: str, raw: RawStreamMsg) -> None:
        """Purge a subject up to this message. Messages that were stored later stay."""
        self.bus.must_lead()
        next_sequence = int(raw.seq or 0) + 1
        await self.bus.js.purge_stream(self.stream, seq=next_sequence, subject=subject)


def _nuid(raw: RawStreamMsg) -> str:
    """Return the id of the contents that a description names; empty if it cannot be read."""
    try:
        return msgspec.json.decode(raw.data or b"", type=ProgramInfo).nuid
    except msgspec.DecodeError:
        return ""


def _digest(subject: str) -> str:
    """Return the digest of the program that a description is about."""
    try:
        return base64.urlsafe_b64decode(_last_token(subject)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _last_token(subject: str) -> str:
    return subject.rpartition(".")[2]
