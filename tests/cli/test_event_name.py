"""A stored message has a short name, by which one asks for it."""

from __future__ import annotations

import pytest

from services.cli.entry import Entry
from services.cli.event_name import name_of, place_of
from shared.bus.subjects import DEAD, FACTS, ORDERS
from tests.shared.sample_messages import abandoned


@pytest.mark.parametrize(("stream", "name"), [(ORDERS, "o7"), (FACTS, "f7"), (DEAD, "d7")])
def test_a_name_is_the_streams_letter_and_the_number_and_leads_back_to_both(
    stream: str, name: str
) -> None:
    assert name_of(Entry(abandoned(), "s", stream, 7, 0.0)) == name
    assert place_of(name) == (stream, 7)


@pytest.mark.parametrize(
    "text", ["", "o", "7", "x7", "o7x", "o-7", "o0", "7.training.resumed.2.-.11", "o" + "9" * 30]
)
def test_anything_else_is_no_name(text: str) -> None:
    assert place_of(text) is None
