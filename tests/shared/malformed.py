"""Strategies for bad input: bytes that are no message, wrong subjects, damaged objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
from hypothesis import strategies as st

from shared.bus import subjects
from shared.messages import Message
from tests.shared.sample_messages import one_of_each

Path = tuple[str | int, ...]
Poison = tuple[str, bytes]  # subject, body

DEEP = b'{"fact":"job.finished","x":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
LONG_NUMBER = "9" * 5_000
ABSURD = (
    None,
    True,
    -1,
    10**30,
    1e308,
    -0.5,
    "",
    " ",
    "*",
    "-1",
    "1e999",
    "1e-999",
    "9" * 400,
    "a" * 3_000,
    [],
    {},
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(ABSURD),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


# ---------------------------------------------------------------- documents


def places(document: Any, at: Path = ()) -> Iterator[Path]:
    """Yield every place in a document, the whole document first."""
    yield at
    listed = list(enumerate(document)) if isinstance(document, list) else []
    for key, value in document.items() if isinstance(document, dict) else listed:
        yield from places(value, (*at, key))


def spoilt(document: Any) -> st.SearchStrategy[Any]:
    """Draw the document with up to three of its places removed or replaced."""
    change = st.tuples(st.sampled_from(list(places(document))[1:]), st.none() | st.tuples(JSON))
    return st.lists(change, min_size=1, max_size=3).map(lambda changes: _changed(document, changes))


def _changed(document: Any, changes: list[tuple[Path, tuple[Any] | None]]) -> Any:
    made = deepcopy(document)
    for (*way, last), new in changes:
        try:
            parent = made
            for step in way:
                parent = parent[step]
            if new is None:
                del parent[last]
            else:
                parent[last] = deepcopy(new[0])  # later changes must not reach what examples share
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has removed the place
    return made


# ---------------------------------------------------------------- messages

GOOD = [(subjects.subject_of(m), subjects.encode_message(m)) for m in one_of_each()]
TAGS = [f"weir.{tag}" for tag in subjects.BY_TAG]
AREAS = ["job", "allocation", "cluster", "task", "training", "capacity"]
TOKEN = st.sampled_from(
    ["default", "digits", "n1", "-", "*", ">", "ünder", "\\", "A" * 300]
) | st.text(
    st.characters(codec="utf-8", exclude_categories=["Z", "C"], exclude_characters="."),
    min_size=1,
    max_size=8,
)
TAILS = st.lists(TOKEN, min_size=1, max_size=4).map(".".join)
SUBJECTS = (
    st.sampled_from([subject for subject, _ in GOOD] + [tag for tag in TAGS])
    | st.builds("{}.{}".format, st.sampled_from(TAGS), TAILS)
    | st.builds("weir.{}.{}".format, st.sampled_from(AREAS), TAILS)
)
"""Any subject that one of the streams of orders and facts stores."""

BODIES = (
    st.binary(max_size=64)
    | st.sampled_from(
        [
            b"",
            b"null",
            b"[]",
            b"{}",
            DEEP,
            b"\x00" * 1_000,
            b'{"job": ' + LONG_NUMBER.encode() + b"}",
        ]
    )
    | st.sampled_from([body for _, body in GOOD])
    | st.sampled_from(GOOD)
    .flatmap(lambda said: spoilt(json.loads(said[1])))
    .map(lambda doc: json.dumps(doc).encode())
    | st.tuples(st.sampled_from(GOOD), st.integers(0, 400)).map(lambda cut: cut[0][1][: cut[1]])
)


def poison() -> st.SearchStrategy[Poison]:
    """Draw a subject and a body that are rarely a good message."""
    return st.tuples(SUBJECTS, BODIES)


def readable(subject: str, body: bytes) -> bool:
    """Return whether the body can be decoded as a message of this subject."""
    try:
        subjects.decode_message(subject, body)
    except subjects.UnreadableMessage:
        return False
    return True


def odd_messages() -> st.SearchStrategy[Message]:
    """Draw messages that can be read, but have odd contents."""
    return st.sampled_from(GOOD).flatmap(_odd).filter(lambda message: message is not None)


def _odd(said: Poison) -> st.SearchStrategy[Message | None]:
    subject, body = said
    documents = st.just(json.loads(body)) | spoilt(json.loads(body))
    return documents.map(lambda document: _decoded(subject, json.dumps(document).encode()))


def _decoded(subject: str, body: bytes) -> Message | None:
    try:
        message = msgspec.json.decode(body, type=subjects.kind_of(subject))
        return subjects.decode_message(subjects.subject_of(message), body)
    except (msgspec.DecodeError, subjects.UnreadableMessage):
        return None
