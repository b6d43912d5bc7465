"""Dead letters: copies of messages that no service can read, with the error.

Law: a dead letter can always be stored, however large or odd the message is. It names the place of
the message in its stream, where the whole message can be read. It has as much of the subject, error
and body as is certain to fit. A message gets one letter, however often it is read.

Each namespace has a budget of letters (`LetterBudget`). Messages beyond it are counted and stay in
their own stream, but get no letter and no line in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Iterable

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from shared.auth.permissions import bucket_subject, stream_of
from shared.bus.client import Refused
from shared.bus.publisher import Publisher
from shared.bus.subjects import DEAD, MESSAGE_ID, SOURCE, UNKNOWN_SOURCE, source_of
from shared.messages import DeadLetter
from shared.runtime.log import RateLimitedWarning
from shared.runtime.metrics import BusTraffic, Family, Measure

log = structlog.get_logger()

BODY_KEPT = 4_096
"""Bytes of the message in a letter. JSON writes one byte in 6 characters at most, so a letter stays
below `LETTER_BYTES`.
"""
LETTER_BYTES = 64 * 1024
"""The largest size of a letter."""
TEXT_KEPT = 1_000
"""Characters of an error, or of a name."""
SUBJECT_KEPT = 512
"""Characters of a subject. A server takes 4096 bytes for a command, which also has the prefix of
dead letters and the inbox for the answer.
"""
LETTERS_AT_ONCE, LETTERS_A_DAY = 500, 150
"""Dead letters that one service writes for one namespace: in a burst, and in the long run."""
DAY_S = 86_400.0
NO_NAMESPACE = "-"
"""Budget of the messages that belong to no namespace: nodes, services, unknown subjects."""
COUNT_S = 15.0
"""The usual scrape interval of Prometheus."""
LETTERS = Family(
    name="weir_dead_letters_total",
    kind="counter",
    help="Messages and entries that could not be read or used, of all services and trainers.",
)


class DeadLetters:
    """Writes the dead letters of one service."""

    def __init__(self, publisher: Publisher, traffic: BusTraffic) -> None:
        self._publisher = publisher
        self._traffic = traffic
        self.budget = LetterBudget()
        self._warning = RateLimitedWarning()

    async def add_message(self, raw: Msg, stream: str, error: str) -> None:
        sequence = raw.metadata.sequence.stream
        source = source_of(raw.headers)
        letter = create_dead_letter(stream, sequence, raw.subject, raw.data, source, error)
        await self._store_letter(letter, raw.subject, raw.metadata.timestamp.isoformat())

    async def add_entry(
        self, bucket: str, key: str, revision: int, body: bytes, error: str
    ) -> None:
        """Write a letter about an entry of a bucket."""
        subject = bucket_subject(bucket, key)
        stream = stream_of(bucket)
        letter = create_dead_letter(stream, revision, subject, body, UNKNOWN_SOURCE, error)
        await self._store_letter(letter, subject, str(zlib.crc32(body)))

    def may_write(self, subject: str) -> bool:
        """Take one letter from the namespace's budget; log and return False if it is used up."""
        namespace = namespace_of(subject)
        if self.budget.take(namespace, time.monotonic()):
            return True
        error = RuntimeError(f"too many unreadable messages in namespace {namespace}")
        refused = self.budget.refused[namespace]
        self._warning.warn_error("DeadLettersRefused", error, subject=subject, refused=refused)
        return False

    async def _store_letter(self, letter: DeadLetter, subject: str, stored: str) -> None:
        """Store a letter once. `stored` distinguishes messages with the same sequence: a stream
        that was created anew counts from 1 again.
        """
        self._traffic.buried.count(letter.stream)
        if not self.may_write(subject):
            return
        about = {"subject": letter.subject, "sequence": letter.sequence}
        log.warning("DeadLetter", **about, error=letter.error)
        headers = {MESSAGE_ID: f"dead.{letter.stream}.{letter.sequence}.{stored}"}
        body = msgspec.json.encode(letter)
        try:
            await self._publisher.store_message(dead_letter_subject(subject), body, headers, False)
        except (APIError, Refused) as refusal:
            # For example, the stream is full. The message itself is still at the place that the log
            # names.
            log.error("DeadLetterLost", **about, error=repr(refusal))


class LetterBudget:
    """A token bucket for each namespace, so that unreadable messages of one namespace fill neither
    the stream nor the log.

    `refused`: the number of letters that were not written, by namespace.
    """

    def __init__(self, at_once: int = LETTERS_AT_ONCE, per_day: int = LETTERS_A_DAY) -> None:
        self.at_once, self.per_day = float(at_once), per_day
        self.refused: dict[str, int] = {}
        self._left: dict[str, tuple[float, float]] = {}  # namespace -> letters left, time of count

    def take(self, namespace: str, now_s: float) -> bool:
        """Take one letter from the namespace's budget; return False if the budget is used up."""
        left, counted_s = self._left.get(namespace, (self.at_once, now_s))
        left = min(self.at_once, left + max(0.0, now_s - counted_s) * self.per_day / DAY_S)
        may_write = left >= 1.0
        self._left[namespace] = (left - 1.0 if may_write else left, now_s)
        if not may_write:
            self.refused[namespace] = self.refused.get(namespace, 0) + 1
        return may_write


class DeadLetterCount:
    """The number of dead letters that were ever written, including those of trainers.

    Each letter has a sequence in its stream, and sequences are never used again: the last one
    counts them all. `number`: the last sequence; None: not known yet, then the metric is absent.
    """

    def __init__(self, number: int | None = None) -> None:
        self.number = number

    def measures(self) -> Iterable[Measure]:
        return [] if self.number is None else [Measure(LETTERS, {(): float(self.number)})]

    async def keep_counting(self, js: JetStreamContext, every_s: float = COUNT_S) -> None:
        """Read the number for ever. While the bus is away, the last number stays."""
        while True:
            with contextlib.suppress(NatsError, OSError):
                self.number = (await js.stream_info(DEAD)).state.last_seq
            await asyncio.sleep(every_s)


# ---------------------------------------------------------------- one letter


def create_dead_letter(
    stream: str, sequence: int, subject: str, body: bytes, source: str, error: str
) -> DeadLetter:
    return DeadLetter(
        stream=stream,
        sequence=sequence,
        subject=truncate(subject, TEXT_KEPT),
        error=truncate(error, TEXT_KEPT),
        body=body_text(body),
        said_by=truncate(source, TEXT_KEPT),
    )


def dead_letter_subject(subject: str) -> str:
    """Return the subject of a letter: the prefix, then as many words of the message's own subject
    as fit.
    """
    while len(subject.encode()) > SUBJECT_KEPT:
        subject = subject.rpartition(".")[0] or subject[: SUBJECT_KEPT // 4]
    return f"{DeadLetter.PREFIX}.{subject}"


def namespace_of(subject: str) -> str:
    """Return the namespace that a subject of a message or of a ledger entry names; `-` if it names
    none.
    """
    tokens = subject.split(".")
    if tokens[0] == "$KV" and len(tokens) == 4:
        return tokens[2]
    return tokens[3] if tokens[0] == "weir" and len(tokens) == 5 else NO_NAMESPACE


def body_text(body: bytes) -> str:
    """Return the beginning of a body as text; bytes that are no text are escaped."""
    text = body[:BODY_KEPT].decode("utf-8", "backslashreplace")
    return text if len(body) <= BODY_KEPT else f"{text}... ({len(body)} bytes in all)"


def truncate(text: str, most: int) -> str:
    """Return the beginning of a text. Headers may hold lone surrogates, which JSON cannot hold."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole if len(whole) <= most else f"{whole[:most]}... ({len(whole)} characters in all)"


def headers_to_put_back(letter: DeadLetter, number: int, source: str) -> dict[str, str]:
    """Return headers for the message of a letter that is published again.

    It gets a new id, because the server may still know the old one.
    """
    return {MESSAGE_ID: f"back.{number}.{letter.stream}.{letter.sequence}", SOURCE: source}
