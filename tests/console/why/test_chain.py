"""Back to the roots, and on to the next decision."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.cli.entry import Entry
from services.console.why.chain import Chain, chain
from services.console.why.known import Known
from shared.bus.subjects import stream_holding, subject_of
from tests.console.why.story import SMALL, Growth
from tests.shared.malformed import odd_messages


@pytest.fixture(scope="module")
def grown() -> Growth:
    return Growth()


def entries(steps: object) -> list[Entry]:
    return [step.entry for step in steps]  # type: ignore[attr-defined]


def test_training_on_leads_back_to_the_freed_node_and_no_further(grown: Growth) -> None:
    found = chain(grown.trains2, grown.log.known())

    assert entries(found.before) == [
        *(grown.freed, grown.second, grown.newcomer[1], grown.spec2, grown.prepared2[-1]),
        *(grown.ordered, grown.drained),
    ]
    assert entries(found.after) == [*grown.reports2, grown.end]


def test_the_freed_node_leads_on_to_all_that_came_of_it(grown: Growth) -> None:
    found = chain(grown.freed, grown.log.known())

    assert found.before == ()
    assert entries(found.after) == [e for e in grown.log.entries if e.order > grown.freed.order]


def test_a_request_leads_on_to_its_first_generation_and_names_no_later_decision(
    grown: Growth,
) -> None:
    after = entries(chain(grown.job.requested, grown.log.known()).after)

    assert after[:2] == [grown.job.accepted, grown.first] and grown.reports1[-1] in after
    assert grown.second not in after and grown.trains2 not in after


def test_a_second_decision_is_named_and_not_followed() -> None:
    grown = Growth()
    third = grown.job.decided(3, SMALL, grown.reports2[0].said.id())  # type: ignore[union-attr]
    spec3 = grown.job.published(3, SMALL)

    after = entries(chain(grown.freed, grown.log.known()).after)

    assert third in after and spec3 not in after
    assert spec3 in entries(chain(third, grown.log.known()).after)


def test_every_cause_was_stored_before_what_it_led_to(grown: Growth) -> None:
    for event in grown.log.entries:
        found = chain(event, grown.log.known())
        assert all(e.order < event.order for e in entries(found.before))
        assert all(e.order > event.order for e in entries(found.after))


def test_back_and_forth_agree(grown: Growth) -> None:
    known = grown.log.known()
    whole = {(e.stream, e.sequence): chain(e, known) for e in grown.log.entries}

    for event in grown.log.entries:
        for effect in entries(whole[event.stream, event.sequence].after):
            assert event in entries(whole[effect.stream, effect.sequence].before)


@settings(max_examples=60, deadline=None)
@given(st.lists(odd_messages(), min_size=1, max_size=8))
def test_whatever_was_said_a_chain_ends(said: list[object]) -> None:
    told = [
        Entry(m, subject_of(m), stream_holding(subject_of(m)), n, float(n))
        for n, m in enumerate(said, 1)
    ]  # type: ignore[arg-type]
    known = Known(told)

    assert all(isinstance(chain(each, known), Chain) for each in told)
