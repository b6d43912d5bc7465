"""The cluster file."""

from __future__ import annotations

import pytest

from services.local.node_spec import BadCluster, parse
from services.local.tenancy import due
from services.local.tenant import shares


def test_nodes_alike_are_numbered_and_a_single_one_keeps_its_name():
    spec = parse("nodes: [{name: a, count: 2, cpu: 2}, {name: b, cpu: 0.5, gpu: 1}]")
    assert list(spec.named()) == ["a-1", "a-2", "b"]


def test_every_reason_is_told_at_once():
    text = """
nodes: [{name: A_b, cpu: 0}, {nmae: x}, {name: c}, {name: c}]
tenants: [{node: nowhere, cpu: 1, from_s: 5, to_s: 5}]
extra: 1
"""
    with pytest.raises(BadCluster) as caught:
        parse(text)
    told = str(caught.value)
    for part in (
        "extra: unknown",
        "'A_b' is no good name",
        "cpu: must be above 0",
        "nodes[1]",
        "'c' is there 2 times",
        "no node 'nowhere'",
        "to_s: must be later",
    ):
        assert part in told


@pytest.mark.parametrize("text", ["nodes: [", "[]", "nodes: {}", "nodes: 3", "nodes: []"])
def test_what_is_no_cluster_is_refused(text):
    with pytest.raises(BadCluster):
        parse(text)


def test_tenants_come_and_go():
    tenants = parse(
        "nodes: [{name: a}]\ntenants: [{node: a, cpu: 1, from_s: 1, to_s: 3}, {node: a, cpu: 1, from_s: 2}]"
    ).tenants
    assert [due(tenants, t) for t in (0, 1, 2, 3)] == [set(), {0}, {0, 1}, {1}]


def test_a_tenant_takes_a_process_a_core():
    assert shares(2.5) == [1.0, 1.0, 0.5] and shares(0.3) == [0.3]
