"""Tests of filters: one that covers several, and the subjects that a filter matches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus.subjects import covering_filter, matches_filter

TOKENS = st.sampled_from(["a", "b", "*"])
FILTERS = st.builds(
    lambda tokens, rest: ".".join([*tokens, *rest]),
    st.lists(TOKENS, min_size=1, max_size=4),
    st.sampled_from([[], [">"]]),
)
SUBJECTS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=6).map(".".join)


@pytest.mark.parametrize(
    ("filters", "one"),
    [
        (["weir.job.accepted.red.*", "weir.job.rejected.red.*"], "weir.job.*.red.*"),
        (["weir.cluster.published.red.net"], "weir.cluster.published.red.net"),
        (["weir.job.>", "weir.cluster.>"], "weir.*.>"),
        (["weir.job.requested.net", "weir.job.requested.red.net"], "weir.job.requested.>"),
    ],
)
def test_a_covering_filter_is_as_narrow_as_possible(filters: list[str], one: str) -> None:
    assert covering_filter(filters) == one


@given(st.lists(FILTERS, min_size=1, max_size=4), SUBJECTS)
def test_a_covering_filter_matches_everything_its_filters_match(
    filters: list[str], subject: str
) -> None:
    if any(matches_filter(each, subject) for each in filters):
        assert matches_filter(covering_filter(filters), subject)


@pytest.mark.parametrize(
    ("pattern", "subject", "does"),
    [
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.b", "a.c", False),
    ],
)
def test_filters_match_as_on_the_server(pattern: str, subject: str, does: bool) -> None:
    assert matches_filter(pattern, subject) == does
