"""A chain as people see it."""

from __future__ import annotations

from datetime import UTC

import pytest

from services.cli.entry import Entry
from services.console.why.chain import chain
from services.console.why.lines import table
from tests.console.why.story import Growth


def drawn(
    event: Entry, grown: Growth, width: int | None = None, most: int | None = None
) -> list[str]:
    return [line.plain for line in table(chain(event, grown.log.known()), UTC, width, most)]


def test_it_reads_from_the_root_to_the_end() -> None:
    grown = Growth()
    lines = drawn(grown.trains2, grown)

    assert lines[0].split() == ["WHEN", "EVENT", "BECAUSE", "OF", "FACT"]
    assert [line.strip() for line in lines if line.startswith("\n")] == [
        "what led to it",
        "the event, 2023-11-14 22:13:23",
        "what came of it",
    ]
    assert lines[2].split()[:5] == ["-1.10", "s", "f17", "the", "world"]
    assert lines[3].split()[2:5] == ["o6", "f17", "allocation.decided"]
    assert lines[10].split()[:4] == ["0", "f25", "o8", "f24"]


def test_each_cause_that_is_named_stands_above_what_it_led_to() -> None:
    grown = Growth()
    seen: set[str] = set()
    for line in drawn(grown.end, grown)[1:]:
        if line.startswith("\n"):
            continue
        name, because = line[13:20].strip(), line[20:32].split()
        assert {b for b in because if b[0] in "of" and b[1:].isdecimal()} <= seen
        seen.add(name)


def test_what_comes_often_is_told_once_and_counted() -> None:
    grown = Growth()
    lines = drawn(grown.trains1, grown)

    reports = [line for line in lines if "training.progress" in line]
    assert len(reports) == 2
    assert reports[1].strip() == "and 4 more of training.progress, the last f16 at +0.50 s"


def test_of_a_long_chain_the_rows_nearest_to_the_event_are_shown() -> None:
    grown = Growth()
    lines = drawn(grown.trains2, grown, most=2)

    assert [line.split()[2] for line in lines[2:4]] == ["o8", "f24"]
    assert lines[4].strip() == "and 5 more: --all shows them"


@pytest.mark.parametrize("width", [80, 120])
def test_at_a_terminal_it_keeps_within_it(width: int) -> None:
    grown = Growth()

    for event in grown.log.entries:
        assert (
            max(len(part) for line in drawn(event, grown, width) for part in line.splitlines())
            <= width
        )
