"""Facts are named by both words, by the area, or by the last word alone."""

from __future__ import annotations

import argparse

import pytest

from services.cli.kinds import NAMED, kinds
from shared.bus.subjects import BY_TAG


def test_a_fact_is_named_in_three_ways() -> None:
    assert kinds("training.resumed") == kinds("resumed") == ("training.resumed",)
    assert kinds("capacity") == ("capacity.changed", "capacity.quota", "capacity.claims")
    assert set(kinds("job, allocation")) == {
        t for t in BY_TAG if t.startswith(("job.", "allocation."))
    }


def test_what_is_named_twice_is_meant_once() -> None:
    assert kinds("resumed,training.resumed") == ("training.resumed",)


def test_a_last_word_that_two_kinds_share_means_both() -> None:
    assert kinds("changed") == ("job.changed", "capacity.changed")


def test_a_name_is_an_area_or_a_last_word_and_never_both() -> None:
    lasts = {tag.partition(".")[2] for tag in BY_TAG}
    areas = {tag.partition(".")[0] for tag in BY_TAG}

    assert not areas & lasts
    assert set(NAMED) == {*lasts, *areas, *BY_TAG}


@pytest.mark.parametrize("text", ["", ",", "resum", "training.", "decided,nothing"])
def test_who_names_none_is_told_which_there_are(text: str) -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"there are job\.requested, .*job\.finished"
    ):
        kinds(text)
