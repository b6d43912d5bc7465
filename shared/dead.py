"""What is kept of a message that nobody can use. Pure.

Law: a dead letter can always be stored, however large or odd the message is. It says where the message lies, so that
all of it can be read there; of subject, error and body it keeps as much as is sure to fit.
"""

from __future__ import annotations

from shared.messages import DeadLetter

BODY_KEPT = 65_536
"""Bytes. JSON writes one byte in 6 characters at most: 0.4 of the 1 MiB that a server takes by default."""
TEXT_KEPT = 2_000
"""Characters of an error, or of a name."""
SUBJECT_KEPT = 512
"""Characters. A server takes 4096 bytes for a command, and our prefix and the address for its answer are in it too."""


def letter(stream: str, sequence: int, subject: str, body: bytes, said_by: str, error: str) -> DeadLetter:
    return DeadLetter(
        stream=stream,
        sequence=sequence,
        subject=shortened(subject, TEXT_KEPT),
        error=shortened(error, TEXT_KEPT),
        body=readable(body),
        said_by=shortened(said_by, TEXT_KEPT),
    )


def subject_of(subject: str) -> str:
    """Where the letter goes: behind our prefix the message's own subject, or as many tokens of it as there is room."""
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
    """Of the message when it is put back: another id than it had, for the server may know that one still."""
    return {"Nats-Msg-Id": f"back.{number}.{letter.stream}.{letter.sequence}", "ce-source": said_by}
