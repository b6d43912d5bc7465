"""What pods say of their use: anybody may speak there, so what is no use is not heard."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.usage import sample_of
from shared.messages import TaskUsage

GOOD = TaskUsage(task="ps-0", cpu=0.25, memory_gib=0.5)
BAD = [b"", b"\xff\xfe", b"null", b"[1]", b"{}", b'{"task": "ps-0"}', b'{"task": 1, "cpu": "a", "memory_gib": -1}']


def test_what_a_pod_says_is_heard() -> None:
    assert sample_of(msgspec.json.encode(GOOD)) == GOOD


@pytest.mark.parametrize("body", [*BAD, b'{"task": "ps-0", "cpu": 1e999, "memory_gib": 0}'])
def test_what_is_no_use_is_not_heard(body: bytes) -> None:
    assert sample_of(body) is None


VALUES: Any = st.none() | st.text() | st.integers() | st.floats(allow_nan=False) | st.lists(st.integers())


@given(st.binary() | st.dictionaries(st.sampled_from(["task", "cpu", "memory_gib"]), VALUES).map(msgspec.json.encode))
def test_nothing_that_is_heard_is_impossible(body: bytes) -> None:
    sample = sample_of(body)

    assert sample is None or (sample.cpu >= 0.0 and sample.memory_gib >= 0.0)
