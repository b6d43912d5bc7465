"""Tests of chains: causes back to the roots, and effects up to the next decision.

They also cover which messages still have to be read, and how a chain is printed.
"""

from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.console.log_entry import Entry
from services.console.why.chain import Chain, Lack, build_chain, chain_table, lacks
from services.console.why.rules import Known
from shared.bus.subjects import stream_holding, subject_of
from tests.console.why.story import SMALL, Growth, Job
from tests.shared.malformed import odd_messages


@pytest.fixture(scope="module")
def grown() -> Growth:
    return Growth()


def entries(steps: object) -> list[Entry]:
    return [step.entry for step in steps]  # type: ignore[attr-defined]


def test_the_causes_of_a_growth_end_at_the_freed_node(grown: Growth) -> None:
    found = build_chain(grown.trains2, grown.log.known())

    assert entries(found.before) == [
        *(grown.freed, grown.second, grown.newcomer[1], grown.spec2, grown.prepared2[-1]),
        *(grown.ordered, grown.drained),
    ]
    assert entries(found.after) == [*grown.reports2, grown.end]


def test_a_freed_node_has_all_its_effects(grown: Growth) -> None:
    found = build_chain(grown.freed, grown.log.known())

    assert found.before == ()
    assert entries(found.after) == [e for e in grown.log.entries if e.order > grown.freed.order]


def test_a_request_has_its_first_generation_as_an_effect_and_no_later_decision(
    grown: Growth,
) -> None:
    after = entries(build_chain(grown.job.requested, grown.log.known()).after)

    assert after[:2] == [grown.job.accepted, grown.first] and grown.reports1[-1] in after
    assert grown.second not in after and grown.trains2 not in after


def test_a_second_decision_is_named_and_not_followed() -> None:
    grown = Growth()
    third = grown.job.decided(3, SMALL, grown.reports2[0].message.id())  # type: ignore[union-attr]
    spec3 = grown.job.published(3, SMALL)

    after = entries(build_chain(grown.freed, grown.log.known()).after)

    assert third in after and spec3 not in after
    assert spec3 in entries(build_chain(third, grown.log.known()).after)


def test_every_cause_was_stored_before_its_effect(grown: Growth) -> None:
    for event in grown.log.entries:
        found = build_chain(event, grown.log.known())
        assert all(e.order < event.order for e in entries(found.before))
        assert all(e.order > event.order for e in entries(found.after))


def test_causes_and_effects_agree(grown: Growth) -> None:
    known = grown.log.known()
    whole = {(e.stream, e.sequence): build_chain(e, known) for e in grown.log.entries}

    for event in grown.log.entries:
        for effect in entries(whole[event.stream, event.sequence].after):
            assert event in entries(whole[effect.stream, effect.sequence].before)


@settings(max_examples=60, deadline=None)
@given(st.lists(odd_messages(), min_size=1, max_size=8))
def test_every_chain_ends(said: list[object]) -> None:
    told = [
        Entry(m, subject_of(m), stream_holding(subject_of(m)), n, float(n))
        for n, m in enumerate(said, 1)
    ]  # type: ignore[arg-type]
    known = Known(told)

    assert all(isinstance(build_chain(each, known), Chain) for each in told)


def test_a_job_needs_its_facts_and_a_node_its_earlier_fact() -> None:
    grown = Growth()

    assert lacks([grown.spec1], grown.log.known()) == {Lack("job", "default.digits")}
    assert lacks([grown.freed], grown.log.known()) == {Lack("node", "n1", grown.freed.stored_s)}


def test_a_known_cause_needs_nothing_more() -> None:
    grown = Growth()
    orders = Known([e for e in grown.log.entries if e is not grown.freed])

    assert lacks([grown.second], grown.log.known()) == {Lack("job", "default.digits")}
    assert lacks([grown.second], orders) == {
        Lack("job", "default.digits"),
        Lack("nodes", at_s=grown.second.stored_s),
    }


def test_a_cause_in_another_job_is_searched_in_its_facts() -> None:
    grown = Growth()
    other = Job(grown.log, "clicks")
    decided = other.decided(1, SMALL, "1.training.progress.2.-.80")
    known = Known([e for e in grown.log.entries if e not in grown.reports2])

    assert lacks([decided], known) == {Lack("job", "default.clicks"), Lack("job", "default.digits")}


def drawn(
    event: Entry, grown: Growth, width: int | None = None, most: int | None = None
) -> list[str]:
    return [
        line.plain for line in chain_table(build_chain(event, grown.log.known()), UTC, width, most)
    ]


def test_a_chain_is_printed_from_root_to_end() -> None:
    grown = Growth()
    lines = drawn(grown.trains2, grown)

    assert lines[0].split() == ["WHEN", "EVENT", "BECAUSE", "OF", "FACT"]
    assert [line.strip() for line in lines if line.startswith("\n")] == [
        "causes",
        "the event, 2023-11-14 22:13:23",
        "effects",
    ]
    assert lines[2].split()[:5] == ["-1.10", "s", "f17", "the", "cluster"]
    assert lines[3].split()[2:5] == ["o6", "f17", "allocation.decided"]
    assert lines[10].split()[:4] == ["0", "f25", "o8", "f24"]


def test_each_cause_is_above_its_effects() -> None:
    grown = Growth()
    seen: set[str] = set()
    for line in drawn(grown.end, grown)[1:]:
        if line.startswith("\n"):
            continue
        name, because = line[13:20].strip(), line[20:32].split()
        assert {b for b in because if b[0] in "of" and b[1:].isdecimal()} <= seen
        seen.add(name)


def test_frequent_events_are_shown_once_with_their_count() -> None:
    grown = Growth()
    lines = drawn(grown.trains1, grown)

    reports = [line for line in lines if "training.progress" in line]
    assert len(reports) == 2
    assert reports[1].strip() == "and 4 more of training.progress, the last f16 at +0.50 s"


def test_a_long_chain_shows_the_rows_nearest_to_the_event() -> None:
    grown = Growth()
    lines = drawn(grown.trains2, grown, most=2)

    assert [line.split()[2] for line in lines[2:4]] == ["o8", "f24"]
    assert lines[4].strip() == "and 5 more: --all shows them"


@pytest.mark.parametrize("width", [80, 120])
def test_a_chain_fits_the_terminal(width: int) -> None:
    grown = Growth()

    for event in grown.log.entries:
        assert (
            max(len(part) for line in drawn(event, grown, width) for part in line.splitlines())
            <= width
        )
