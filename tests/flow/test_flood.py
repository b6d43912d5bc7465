"""Tests of a message flood: another namespace's jobs are decided, and none is refused.

One credential publishes as fast as it can. This is the short form of `make bench-flood`, on the
same parts: a real server with accounts, the real allocator, a flooding process. The machine is
busy, so the test bounds only the order of magnitude of the latency.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.auth.permissions import JOB, READERS_BLOCK, SLOTS, SUBMITTER
from shared.bus.dead_letters import LETTER_BYTES, LETTERS_AT_ONCE
from shared.bus.subjects import DEAD
from tests.bench import flood
from tests.bench.flood_side import CONSUMERS


async def test_a_message_flood_does_not_affect_other_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"QUIET_S": 1.0, "FLOOD_S": 3.0, "CONSUMERS_TRIED": 40}.items():
        monkeypatch.setattr(flood, name, value)

    figures = await flood.main(tmp_path)

    for phase in ("quiet", SUBMITTER, JOB, CONSUMERS):
        assert figures[f"{phase}_refused"] == figures[f"{phase}_undecided"] == 0, figures
        assert figures[f"{phase}_jobs"] > 0
    for phase in (SUBMITTER, JOB, CONSUMERS):
        assert figures[f"{phase}_published"] > 10_000, "the flood was too weak to say anything"
        assert figures[f"{phase}_decided_p50_ms"] < 20_000, figures
    assert figures[f"{DEAD}_messages"] <= 2 * LETTERS_AT_ONCE
    assert figures[f"{DEAD}_bytes"] < LETTERS_AT_ONCE * LETTER_BYTES
    assert figures["submitter_consumers"] <= SLOTS and figures["job_consumers"] <= READERS_BLOCK
