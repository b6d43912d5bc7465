"""Remove programs that no job uses. Edge.

A program goes in two passes, with a pause between them. The first removes the description of one
that no job uses and that nobody stored again for long; the second removes contents that no
description leads to. Storing a program that is there already writes its description again
(`programs.keep`): so contents that are found whole stay.
"""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict

import msgspec
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from services.allocator.state import State
from shared.auth.permissions import API, chunk_subject, description_subject
from shared.bus.bus import Bus
from shared.bus.programs import ProgramInfo
from shared.bus.subjects import PROGRAMS

Use = tuple[str, str]
"""A namespace, and the digest of a program."""


class Streams(msgspec.Struct):
    streams: list[str] | None = None


def programs_in_use(state: State, since_s: float) -> set[Use]:
    """Return the programs of jobs that are asked for, run, or have ended since then."""
    requests = []
    for asked in state.asked.values():
        requests.append(asked.request)
    for job in state.jobs.values():
        requests.append(job.request)
    for end in state.closed.values():
        if not end.removed and end.finished.finished_s > since_s:
            requests.append(end.job.request)
    return {(request.namespace, request.program.digest) for request in requests}


async def remove_unused_programs(bus: Bus, state: State, until_s: float) -> None:
    """Take one pass over the programs of all namespaces. `until_s`: later ones stay."""
    used: defaultdict[str, set[str]] = defaultdict(set)
    for namespace, digest in programs_in_use(state, until_s):
        used[namespace].add(digest)
    for namespace in await _namespaces(bus):
        bucket = _Bucket(bus, f"{PROGRAMS}-{namespace}", until_s)
        await bucket.remove_unused(used[namespace])


async def remove_program(bus: Bus, state: State, program: Use, until_s: float) -> None:
    """Remove a program at once if no job uses it, and nobody stored it again after `until_s`."""
    if program in programs_in_use(state, 0.0):
        return
    namespace, digest = program
    bucket = _Bucket(bus, f"{PROGRAMS}-{namespace}", until_s)
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


class _Bucket:
    """The programs of one namespace. `until_s`: later ones stay."""

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
        """Remove descriptions of unused programs. Return the places of the contents to which any
        description led.
        """
        described = set[str]()
        for subject in await self._subjects(description_subject(self.bucket)):
            raw = await self._last(subject)
            if raw is None:
                continue
            described.add(_nuid(raw))
            if _digest(subject) not in used and self._is_old(raw):
                await self._purge(subject, raw)
        return described

    async def _purge_if_old(self, subject: str) -> None:
        """Remove a subject, unless its last message is so recent that a store may go on."""
        raw = await self._last(subject)
        if raw is not None and self._is_old(raw):
            await self._purge(subject, raw)

    async def remove(self, digest: str) -> None:
        """Remove one program: its description, and the contents that it leads to."""
        for subject in await self._subjects(description_subject(self.bucket)):
            if _digest(subject) != digest:
                continue
            raw = await self._last(subject)
            if raw is None or not self._is_old(raw):
                continue
            await self._purge(subject, raw)
            contents = f"{chunk_subject(self.bucket)}.{_nuid(raw)}"
            part = await self._last(contents)
            if part is not None:
                await self._purge(contents, part)

    async def _subjects(self, prefix: str) -> list[str]:
        """Return the subjects below a prefix that have messages in the bucket's stream."""
        info = await self.bus.retry_until_answered(
            lambda: self.bus.js.stream_info(self.stream, subjects_filter=f"{prefix}.>")
        )
        return list(info.state.subjects or {})

    async def _last(self, subject: str) -> RawStreamMsg | None:
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
        """Remove a subject up to this message: one that was stored since stays."""
        self.bus.must_lead()
        next_sequence = int(raw.seq or 0) + 1
        await self.bus.js.purge_stream(self.stream, seq=next_sequence, subject=subject)


def _nuid(raw: RawStreamMsg) -> str:
    """Return the place of the contents, as a description names it; nothing if it cannot be read."""
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
