"""What if a job were asked for: the same words as `weir submit --dry-run`, of the board's own state."""

from __future__ import annotations

import pytest

from services.page.whatif import EXAMPLE, answer
from tests.allocator.builders import AT_ONCE
from tests.board.builders import holding
from tests.board.test_board import running

NOW_S = 100.0


def test_a_job_that_would_start_is_told_its_size_its_reason_and_its_places() -> None:
    log = running()
    log.say(holding("n2", cpu=8), holding("n1", pods=3))

    found = answer(log.board.state, EXAMPLE, NOW_S, AT_ONCE)
    assert found.refused == [] and found.says[0].startswith("job default/proposal would start now with 1 ps, ")
    assert any(line.startswith("why: ") for line in found.says) and any(
        line.startswith("where: ") for line in found.says
    )


def test_a_job_that_finds_no_room_would_wait() -> None:
    log = running()
    log.say(holding("n1", pods=3, others=5))

    found = answer(log.board.state, EXAMPLE, NOW_S, AT_ONCE)
    assert found.says[0].startswith("job default/proposal would wait: ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("job: [", "is not YAML"),
        ("42", "is not a job request"),
        (EXAMPLE.replace("epochs: 3", "epochs: 0"), "epochs"),
        (EXAMPLE.replace("job: proposal", "job: mnist"), "mnist"),
    ],
)
def test_what_would_be_refused_is_told_with_every_reason(text: str, reason: str) -> None:
    found = answer(running().board.state, text, NOW_S, AT_ONCE)

    assert found.says == [] and any(reason in line for line in found.refused)
