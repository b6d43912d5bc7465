"""Tests of the lines between a supervisor and its children.

Every event is decoded, and no other line is taken for an event.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer import protocol
from services.trainer.protocol import (
    Failed,
    Finished,
    Prepared,
    Progress,
    Resumed,
    Saved,
    Started,
    crash_failure,
    decode_event,
    encode_line,
)

WORDS: list[Any] = [
    Started(pid=7),
    Prepared(seconds=1.5),
    Saved(step=3, samples=48, path="/c/ckpt-3", seconds=0.2, final=True),
    Resumed(step=4, samples=64, pause_s=None, restore_s=0.1, first_step_s=0.2),
    Progress(step=4, epoch=0, samples=64, total_samples=128, samples_per_second=9.5, loss=None),
    Finished(step=8, samples=128, counted=128, metrics={"loss": 0.5}),
    Failed(cause="Traceback:\n  File…", peer=False),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
)
TAGS = st.sampled_from(
    ["born", "prepared", "saved", "resumed", "progress", "finished", "failed", "drain", "-"]
)
NAMES = st.sampled_from(
    ["pid", "seconds", "step", "samples", "path", "cause", "peer", "metrics", "loss", "profile"]
)


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_an_event_is_one_line(word: Any) -> None:
    assert decode_event(encode_line(word)) == word and encode_line(word).count(b"\n") == 1


def test_a_nan_loss_is_sent_as_none() -> None:
    word = msgspec.structs.replace(WORDS[4], loss=float("nan"))

    assert decode_event(encode_line(word)) == WORDS[4]


@given(st.binary())
def test_any_bytes_are_an_event_or_ignored(text: bytes) -> None:
    assert decode_event(text) is None or encode_line(decode_event(text)) is not None  # type: ignore[arg-type]


@given(TAGS, st.dictionaries(NAMES, JSON))
def test_any_document_is_an_event_or_ignored(tag: str, fields: dict[str, Any]) -> None:
    word = decode_event(msgspec.json.encode({"line": tag, **fields}))

    assert word is None or word.__struct_config__.tag == tag


@given(st.text(), st.text(min_size=1))
def test_any_last_output_gives_a_cause(text: str, program: str) -> None:
    failed = crash_failure(text, program)

    assert (
        len(failed.cause) <= protocol.CAUSE_LENGTH and decode_event(encode_line(failed)) is not None
    )
