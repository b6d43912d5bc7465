"""Tests of the selectors of lists: labels, fields and affinity terms."""

from __future__ import annotations

import pytest

from services.local.objects.bodies import ApiError
from services.local.objects.label_selectors import field_selector, label_selector, term_matches
from tests.local.builders import pod

GREEN = pod("green", labels={"app": "web", "tier": "1", "example.com/colour": "green"})
BARE = pod("bare")


@pytest.mark.parametrize(
    ("text", "green", "bare"),
    [
        ("", True, True),
        ("app=web", True, False),
        ("app==web", True, False),
        ("app=web,tier=2", False, False),
        ("app!=web", False, True),
        ("app", True, False),
        ("!app", False, True),
        ("app in (web, db)", True, False),
        ("app in (db)", False, False),
        ("app notin (web,db)", False, True),
        ("example.com/colour=green, tier in (1,2),!x", True, False),
        ("app=", False, False),
    ],
)
def test_a_label_selector_matches(text, green, bare):
    match = label_selector(text)
    assert (match(GREEN), match(BARE)) == (green, bare)


@pytest.mark.parametrize("text", ["app in web", "a b", "=x", "app in (x", "!"])
def test_an_invalid_label_selector_is_refused(text):
    with pytest.raises(ApiError) as caught:
        label_selector(text)
    assert caught.value.code == 400


def test_a_field_selector_matches_its_fields():
    bound = pod("p", nodeName="n1")
    assert field_selector("spec.nodeName=n1,metadata.name=p", ["spec.nodeName"])(bound)
    assert not field_selector("spec.nodeName!=n1", ["spec.nodeName"])(bound)


def test_a_field_that_is_missing_counts_as_empty():
    assert field_selector("spec.nodeName=", ["spec.nodeName"])(pod("p"))
    assert field_selector("spec.unschedulable=true", ["spec.unschedulable"])(
        {"spec": {"unschedulable": True}}
    )


def test_an_unsupported_field_selector_is_refused():
    with pytest.raises(ApiError, match=r"field label not supported: spec.colour"):
        field_selector("spec.colour=red", ["spec.nodeName"])


def test_an_affinity_term_needs_every_expression_and_an_empty_one_matches_nothing():
    labels = {"zone": "a", "cores": "8"}
    many = {"key": "cores", "operator": "Gt", "values": ["4"]}
    here = {"key": "zone", "operator": "In", "values": ["a"]}
    named = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert term_matches({"matchExpressions": [many, here], "matchFields": [named]}, labels, "n1")
    assert not term_matches(
        {"matchExpressions": [many, here], "matchFields": [named]}, labels, "n2"
    )
    assert not term_matches({}, labels, "n1")
