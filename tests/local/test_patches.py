"""Tests of patches: merge patch, strategic merge patch and JSON patch."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.local.objects.bodies import ApiError
from services.local.objects.patches import json_patch, merge_patch, strategic_merge

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
    ),
)


def test_a_merge_patch_merges_removes_and_replaces_lists():
    old = {"a": {"x": 1, "y": 2}, "l": [1, 2], "gone": 1}
    assert merge_patch(old, {"a": {"y": 3}, "l": [9], "gone": None}) == {
        "a": {"x": 1, "y": 3},
        "l": [9],
    }


@given(DOCUMENTS, DOCUMENTS)
def test_a_merge_patch_is_idempotent_and_keeps_the_old_document(old, patch):
    before = copy.deepcopy(old)
    once = merge_patch(old, patch)
    assert old == before and merge_patch(once, patch) == once


def test_a_strategic_merge_merges_keyed_lists():
    old = {
        "conditions": [{"type": "A", "status": "True"}],
        "containers": [{"name": "c", "env": [{"name": "X", "value": "1"}]}],
    }
    patch = {
        "conditions": [{"type": "B", "status": "False"}],
        "containers": [{"name": "c", "env": [{"name": "Y", "value": "2"}]}],
    }
    new = strategic_merge(old, patch)
    assert [c["type"] for c in new["conditions"]] == ["A", "B"]
    assert [e["name"] for e in new["containers"][0]["env"]] == ["X", "Y"]


def test_a_strategic_merge_replaces_atomic_lists():
    old = {"tolerations": [{"key": "a"}], "taints": [{"key": "a"}], "args": ["x", "y"]}
    assert strategic_merge(old, {"tolerations": [{"key": "b"}], "taints": [], "args": ["z"]}) == {
        "tolerations": [{"key": "b"}],
        "taints": [],
        "args": ["z"],
    }


def test_a_strategic_merge_obeys_its_directives():
    old = {"env": [{"name": "X"}, {"name": "Y"}], "finalizers": ["a", "b"], "data": {"k": "v"}}
    assert strategic_merge(old, {"env": [{"name": "X", "$patch": "delete"}]})["env"] == [
        {"name": "Y"}
    ]
    assert strategic_merge(old, {"env": [{"$patch": "replace"}, {"name": "Z"}]})["env"] == [
        {"name": "Z"}
    ]
    assert strategic_merge(old, {"$deleteFromPrimitiveList/finalizers": ["a"]})["finalizers"] == [
        "b"
    ]
    assert strategic_merge(old, {"finalizers": ["c"]})["finalizers"] == ["a", "b", "c"]
    assert strategic_merge(old, {"data": {"$patch": "replace", "n": "m"}})["data"] == {"n": "m"}


def test_ports_are_keyed_by_container_port_or_by_port():
    assert (
        len(
            strategic_merge({"ports": [{"containerPort": 1}]}, {"ports": [{"containerPort": 2}]})[
                "ports"
            ]
        )
        == 2
    )
    assert strategic_merge({"ports": [{"port": 1}]}, {"ports": [{"port": 1, "name": "x"}]})[
        "ports"
    ] == [{"port": 1, "name": "x"}]


def test_a_json_patch_applies_each_operation_in_order():
    old = {"a": {"b/c": [1, 2]}, "x": 1}
    operations = [
        {"op": "test", "path": "/x", "value": 1},
        {"op": "add", "path": "/a/b~1c/-", "value": 3},
        {"op": "add", "path": "/a/b~1c/0", "value": 0},
        {"op": "replace", "path": "/x", "value": 2},
        {"op": "copy", "from": "/x", "path": "/y"},
        {"op": "move", "from": "/x", "path": "/z"},
        {"op": "remove", "path": "/a/b~1c/1"},
    ]
    assert json_patch(old, operations) == {"a": {"b/c": [0, 2, 3]}, "y": 2, "z": 2}
    assert old == {"a": {"b/c": [1, 2]}, "x": 1}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/x", "value": 2},
        {"op": "remove", "path": "/nope"},
        {"op": "replace", "path": "/nope", "value": 1},
        {"op": "add", "path": "/l/7", "value": 1},
        {"op": "fly", "path": "/x"},
        {"op": "add", "path": "x", "value": 1},
    ],
)
def test_a_json_patch_is_applied_completely_or_refused(operation):
    with pytest.raises(ApiError):
        json_patch({"x": 1, "l": []}, [operation])
