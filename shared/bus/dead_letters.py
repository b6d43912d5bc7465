"""What is kept of a message that nobody can use. Pure.

Law: a dead letter can always be stored, however large or odd the message is. It says where the
message lies, so that all of it can be read there; of subject, error and body it keeps as much as is
sure to fit.

Burying: what nobody can use is copied to the dead letters, with its error; once, however often
it is tried. Edge.

Each namespace has a budget of letters (`dead.LetterBudget`). Messages beyond it are counted and
still lie in their own stream, but they get no letter and no log line of their own.

How many dead letters there ever were, whoever buried them. Edge.

Services count their own, but nobody asks a trainer. Each letter has a number in its stream, and
numbers are never used again: so the last one counts them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from shared.auth.permissions import entry, stream_of
from shared.bus.client import Refused
from shared.bus.publisher import Publisher
from shared.bus.subjects import DEAD
from shared.messages import DeadLetter
from shared.runtime.log import RateLimitedWarning
from shared.runtime.metrics import BusTraffic, Family, Measure

if TYPE_CHECKING:
    from shared.bus.bus import Bus

BODY_KEPT = 4_096
"""Bytes of the message. JSON writes one byte in 6 characters at most, so a letter stays below
`LETTER_BYTES`.
"""
LETTER_BYTES = 64 * 1024
"""No letter is larger."""
TEXT_KEPT = 1_000
"""Characters of an error, or of a name."""
SUBJECT_KEPT = 512
"""Characters. A server takes 4096 bytes for a command, and our prefix and the address for its
answer are in it too.
"""


def create_dead_letter(
    stream: str, sequence: int, subject: str, body: bytes, said_by: str, error: str
) -> DeadLetter:
    return DeadLetter(
        stream=stream,
        sequence=sequence,
        subject=truncate(subject, TEXT_KEPT),
        error=truncate(error, TEXT_KEPT),
        body=body_text(body),
        said_by=truncate(said_by, TEXT_KEPT),
    )


def dead_letter_subject(subject: str) -> str:
    """Where the letter goes: behind our prefix the message's own subject, or as many tokens of it
    as there is room.
    """
    while len(subject.encode()) > SUBJECT_KEPT:
        subject = subject.rpartition(".")[0] or subject[: SUBJECT_KEPT // 4]
    return f"{DeadLetter.PREFIX}.{subject}"


def body_text(body: bytes) -> str:
    """As text; what is no text is escaped, what is too much is counted."""
    text = body[:BODY_KEPT].decode("utf-8", "backslashreplace")
    return text if len(body) <= BODY_KEPT else f"{text}... ({len(body)} bytes in all)"


def truncate(text: str, most: int) -> str:
    """Headers may hold halves of characters, which no JSON can."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole if len(whole) <= most else f"{whole[:most]}... ({len(whole)} characters in all)"


def headers_to_put_back(letter: DeadLetter, number: int, said_by: str) -> dict[str, str]:
    """Of the message when it is put back: another id than it had, for the server may know that one
    still.
    """
    return {"Nats-Msg-Id": f"back.{number}.{letter.stream}.{letter.sequence}", "ce-source": said_by}


# ---------------------------------------------------------------- how many letters

LETTERS_AT_ONCE, LETTERS_A_DAY = 500, 150
"""Dead letters that one service writes for one namespace: at once after a quiet time, and in the
long run.
"""
DAY_S = 86_400.0
NO_NAMESPACE = "-"
"""Budget of the messages that belong to no namespace: nodes, services, unknown subjects."""


def namespace_of(subject: str) -> str:
    """Return the namespace that a subject of a message or of a ledger entry names; `-` if it names
    none.
    """
    tokens = subject.split(".")
    if tokens[0] == "$KV" and len(tokens) == 4:
        return tokens[2]
    return tokens[3] if tokens[0] == "weir" and len(tokens) == 5 else NO_NAMESPACE


class LetterBudget:
    """A token bucket for each namespace, so that unreadable messages of one fill neither the stream
    nor the log.

    `refused`: how many letters were not written, by namespace.
    """

    def __init__(self, at_once: int = LETTERS_AT_ONCE, per_day: int = LETTERS_A_DAY) -> None:
        self.at_once, self.per_day = float(at_once), per_day
        self.refused: dict[str, int] = {}
        self._left: dict[
            str, tuple[float, float]
        ] = {}  # by namespace: letters left, and when that was counted

    def take(self, namespace: str, now_s: float) -> bool:
        """Take one letter from the namespace's budget; return False if the budget is used up."""
        left, counted_s = self._left.get(namespace, (self.at_once, now_s))
        left = min(self.at_once, left + max(0.0, now_s - counted_s) * self.per_day / DAY_S)
        may_write = left >= 1.0
        self._left[namespace] = (left - 1.0 if may_write else left, now_s)
        if not may_write:
            self.refused[namespace] = self.refused.get(namespace, 0) + 1
        return may_write


log = structlog.get_logger()


class DeadLetters:
    def __init__(self, outbox: Publisher, traffic: BusTraffic) -> None:
        self._outbox, self._traffic = outbox, traffic
        self.budget, self._warning = LetterBudget(), RateLimitedWarning()

    def may_write(self, subject: str) -> bool:
        """Whether the namespace's budget has a letter left; its use is counted, and a used-up
        budget is logged.
        """
        namespace = namespace_of(subject)
        if self.budget.take(namespace, time.monotonic()):
            return True
        why = RuntimeError(f"too many unreadable messages in namespace {namespace}")
        self._warning.warn_error(
            "DeadLettersRefused", why, subject=subject, refused=self.budget.refused[namespace]
        )
        return False

    async def add_message(self, raw: Msg, stream: str, error: str) -> None:
        said_by = (raw.headers or {}).get("ce-source", "unknown")
        letter = create_dead_letter(
            stream, raw.metadata.sequence.stream, raw.subject, raw.data, said_by, error
        )
        await self._store_letter(letter, raw.subject, raw.metadata.timestamp.isoformat())

    async def add_entry(
        self, bucket: str, key: str, revision: int, body: bytes, error: str
    ) -> None:
        """Of a bucket."""
        subject = entry(bucket, key)
        letter = create_dead_letter(stream_of(bucket), revision, subject, body, "unknown", error)
        await self._store_letter(letter, subject, str(zlib.crc32(body)))

    async def _store_letter(self, letter: DeadLetter, subject: str, stored: str) -> None:
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
            await self._outbox.store_message(
                dead_letter_subject(subject), msgspec.json.encode(letter), headers, False
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


COUNT_S = 15.0
"""As often as Prometheus usually asks."""
LETTERS = Family(
    name="weir_dead_letters_total",
    kind="counter",
    help="Messages and entries that nobody could use, whoever buried them, trainers included.",
)


class DeadLetterCount:
    """`number`: of the last one; None: not known yet, and nothing is told, for a number that jumps
    counts as many.
    """

    def __init__(self, number: int | None = None) -> None:
        self.number = number

    def measures(self) -> Iterable[Measure]:
        return [] if self.number is None else [Measure(LETTERS, {(): float(self.number)})]

    async def keep_counting(self, bus: Bus, every_s: float = COUNT_S) -> None:
        """For ever."""
        while True:
            with contextlib.suppress(
                NatsError, OSError
            ):  # the bus is away, say: then it is asked again
                self.number = (await bus.js.stream_info(DEAD)).state.last_seq
            await asyncio.sleep(every_s)
