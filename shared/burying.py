"""Burying: what nobody can use is copied to the dead letters, with its error; once, however often
it is tried. Edge.

Each namespace has a budget of letters (`dead.LetterBudget`). Messages beyond it are counted and
still lie in their own stream, but they get no letter and no log line of their own.
"""

from __future__ import annotations

import time
import zlib

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.js.errors import APIError

from shared import dead
from shared.client import Refused
from shared.messages import DeadLetter
from shared.outbox import Outbox
from shared.patience import Plaint
from shared.permissions import entry, stream_of
from shared.traffic import Traffic

log = structlog.get_logger()


class Burial:
    def __init__(self, outbox: Outbox, traffic: Traffic) -> None:
        self._outbox, self._traffic = outbox, traffic
        self.budget, self._plaint = dead.LetterBudget(), Plaint()

    def may_write(self, subject: str) -> bool:
        """Whether the namespace's budget has a letter left; its use is counted, and a used-up
        budget is logged.
        """
        namespace = dead.namespace_of(subject)
        if self.budget.take(namespace, time.monotonic()):
            return True
        why = RuntimeError(f"too many unreadable messages in namespace {namespace}")
        self._plaint.tell(
            "DeadLettersRefused", why, subject=subject, refused=self.budget.refused[namespace]
        )
        return False

    async def message(self, raw: Msg, stream: str, error: str) -> None:
        said_by = (raw.headers or {}).get("ce-source", "unknown")
        letter = dead.letter(
            stream, raw.metadata.sequence.stream, raw.subject, raw.data, said_by, error
        )
        await self._bury(letter, raw.subject, raw.metadata.timestamp.isoformat())

    async def entry(self, bucket: str, key: str, revision: int, body: bytes, error: str) -> None:
        """Of a bucket."""
        subject = entry(bucket, key)
        letter = dead.letter(stream_of(bucket), revision, subject, body, "unknown", error)
        await self._bury(letter, subject, str(zlib.crc32(body)))

    async def _bury(self, letter: DeadLetter, subject: str, stored: str) -> None:
        """`stored` tells it from another of its number: a stream that was made anew counts from 1
        again.
        """
        self._traffic.buried.count(letter.stream)
        if not self.may_write(subject):
            return
        log.warning(
            "DeadLetter", subject=letter.subject, sequence=letter.sequence, error=letter.error
        )
        headers = {"Nats-Msg-Id": f"dead.{letter.stream}.{letter.sequence}.{stored}"}
        try:
            await self._outbox.store(
                dead.subject_of(subject), msgspec.json.encode(letter), headers, False
            )
        except (
            APIError,
            Refused,
        ) as refusal:  # no room for it, say: the message itself still lies where the log says
            log.error(
                "DeadLetterLost",
                subject=letter.subject,
                sequence=letter.sequence,
                error=repr(refusal),
            )
