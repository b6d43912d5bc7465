"""What is kept of a message that nobody can use. Pure.

Law: a dead letter can always be stored, however large or odd the message is. It says where the
message lies, so that all of it can be read there; of subject, error and body it keeps as much as is
sure to fit.
"""

from __future__ import annotations

from shared.messages import DeadLetter

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


def letter(
    stream: str, sequence: int, subject: str, body: bytes, said_by: str, error: str
) -> DeadLetter:
    return DeadLetter(
        stream=stream,
        sequence=sequence,
        subject=shortened(subject, TEXT_KEPT),
        error=shortened(error, TEXT_KEPT),
        body=readable(body),
        said_by=shortened(said_by, TEXT_KEPT),
    )


def subject_of(subject: str) -> str:
    """Where the letter goes: behind our prefix the message's own subject, or as many tokens of it
    as there is room.
    """
    while len(subject.encode()) > SUBJECT_KEPT:
        subject = subject.rpartition(".")[0] or subject[: SUBJECT_KEPT // 4]
    return f"{DeadLetter.PREFIX}.{subject}"


def readable(body: bytes) -> str:
    """As text; what is no text is escaped, what is too much is counted."""
    text = body[:BODY_KEPT].decode("utf-8", "backslashreplace")
    return text if len(body) <= BODY_KEPT else f"{text}... ({len(body)} bytes in all)"


def shortened(text: str, most: int) -> str:
    """Headers may hold halves of characters, which no JSON can."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole if len(whole) <= most else f"{whole[:most]}... ({len(whole)} characters in all)"


def headers_back(letter: DeadLetter, number: int, said_by: str) -> dict[str, str]:
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
