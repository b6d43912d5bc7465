"""Tests of the cluster file."""

from __future__ import annotations

import msgspec
import pytest

from services.allocator.settings import Rules
from services.cli.up import service_settings
from services.local.cluster_spec import InvalidClusterFile, NamespaceQuota, parse_cluster
from services.local.controllers import tenants_due
from services.local.tenant import process_shares
from shared.runtime import config


def test_nodes_with_a_count_are_numbered_and_a_single_one_keeps_its_name():
    spec = parse_cluster("nodes: [{name: a, count: 2, cpu: 2}, {name: b, cpu: 0.5, gpu: 1}]")
    assert list(spec.nodes_by_name()) == ["a-1", "a-2", "b"]


def test_every_error_of_a_cluster_file_is_listed():
    text = """
nodes: [{name: A_b}, {nmae: x, cpu: 0, gpu: many}, 3, {name: c}, {name: c}]
tenants: [{node: nowhere, cpu: 1, from_s: 5, to_s: 5}]
extra: 1
"""
    with pytest.raises(InvalidClusterFile) as caught:
        parse_cluster(text)
    told = str(caught.value)
    assert told.splitlines() == [
        "extra: no such section; use nodes, tenants, quotas",
        "nodes[1].nmae: no such field; did you mean 'name'?",
        "nodes[1].cpu: Expected `float` > 0.0, got 0",
        "nodes[1].gpu: Expected `int`, got 'many'",
        "nodes[2]: must be a mapping",
        "nodes[0].name: 'A_b' is not a valid name for a node",
        "nodes: 'c' occurs 2 times",
        "tenants[0].to_s: must be later than from_s",
    ]


def test_a_tenant_of_an_unknown_node_is_an_error():
    with pytest.raises(InvalidClusterFile, match=r"tenants\[0\]\.node: there is no node 'nowhere'"):
        parse_cluster("nodes: [{name: a}]\ntenants: [{node: nowhere, cpu: 1}]")


@pytest.mark.parametrize("text", ["nodes: [", "[]", "nodes: {}", "nodes: 3", "nodes: []"])
def test_an_invalid_cluster_file_is_refused(text):
    with pytest.raises(InvalidClusterFile):
        parse_cluster(text)


def test_tenants_are_due_within_their_times():
    tenants = parse_cluster(
        "nodes: [{name: a}]\ntenants: [{node: a, cpu: 1, from_s: 1, to_s: 3}, {node: a, cpu: 1,"
        " from_s: 2}]"
    ).tenants
    assert [tenants_due(tenants, t) for t in (0, 1, 2, 3)] == [set(), {0}, {0, 1}, {1}]


def test_a_tenant_has_a_process_for_each_core():
    assert process_shares(2.5) == [1.0, 1.0, 0.5] and process_shares(0.3) == [0.3]


def test_quotas_are_validated_with_every_reason():
    spec = parse_cluster("nodes: [{name: a}]\nquotas: {team-a: {cpu: 2}}")
    assert spec.quotas == {"team-a": NamespaceQuota(cpu=2)}
    rules = config.load_settings(Rules, "allocator", service_settings(spec))
    assert msgspec.to_builtins(rules.quotas) == msgspec.to_builtins(spec.quotas)
    assert rules.job_namespaces == ("default", "team-a")
    assert service_settings(parse_cluster("nodes: [{name: a}]")) == {
        "WEIR_JOB_NAMESPACES": "default"
    }
    with pytest.raises(InvalidClusterFile) as caught:
        parse_cluster("nodes: [{name: a}]\nquotas: {team-a: {cpu: -2, gpus: 1}, B: 3}")
    assert len(str(caught.value).splitlines()) == 3
