"""The cluster file, and every reason against one."""

from __future__ import annotations

import pytest

from services.allocator.policies.contract import Quota
from services.whatif.simulator.cluster_file import cluster
from services.whatif.simulator.losses import Bad

GOOD = """\
nodes:
  - {count: 2, cpu: 4, memory_gib: 8, name: small}
  - {cpu: 16, memory_gib: 64, gpu: 2, name: big}
tenants:
  - {node: small-2, cpu: 1.5, from_s: 30, to_s: 90}
"""
BAD = """\
nodes:
  - {count: 0, cpu: many}
  - {cpu: 4, memery_gib: 8}
  - 7
tenants:
  - {node: small-1}
pods: []
"""


def refused(text: str) -> list[str]:
    with pytest.raises(Bad) as bad:
        cluster(text)
    return str(bad.value).splitlines()


def test_nodes_by_name_and_tenants() -> None:
    read = cluster(GOOD)
    assert {name: (has.cpu, has.gpu) for name, has in read.named().items()} == {
        "small-1": (4, 0),
        "small-2": (4, 0),
        "big": (16, 2),
    }
    (tenant,) = read.tenants
    assert (tenant.node, tenant.cpu, tenant.from_s, tenant.to_s) == ("small-2", 1.5, 30.0, 90.0)


def test_nodes_need_no_names() -> None:
    assert list(cluster("nodes: [{cpu: 4}]").named()) == ["node"]
    assert list(cluster("nodes: [{cpu: 4}, {count: 2, cpu: 8}]").named()) == [
        "node-a",
        "node-b-1",
        "node-b-2",
    ]


def test_every_reason_is_told_with_line_and_column() -> None:
    assert refused(BAD) == [
        "line 2, column 13: nodes[0].count: Expected `int` >= 1, got 0",
        "line 2, column 21: nodes[0].cpu: Expected `float`, got 'many'",
        "line 3, column 26: nodes[1].memery_gib: no such field; did you mean 'memory_gib'?",
        "line 4, column 5: nodes[2]: no mapping",
        "line 6, column 5: tenants[0].cpu: is required",
        "line 7, column 7: pods: unknown; there are nodes, tenants, quotas",
    ]


def test_names_and_tenants_are_checked_against_each_other() -> None:
    wrong = GOOD.replace("name: big", "name: small-1").replace(
        "cpu: 1.5, from_s: 30", "cpu: 5, from_s: 100"
    )
    assert refused(wrong) == [
        "line 2, column 45: nodes[0].name: 'small-1' is there 2 times",
        "line 3, column 45: nodes[1].name: 'small-1' is there 2 times",
        "line 5, column 26: tenants[0].cpu: 'small-2' has 4",
        "line 5, column 48: tenants[0].to_s: must be later than from_s",
    ]
    assert refused(GOOD.replace("small-2", "small-3")) == [
        "line 5, column 12: tenants[0].node: there is no node 'small-3'"
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1: a cluster file is a mapping with `nodes` and perhaps `tenants`"),
        ("nodes: []", "line 1, column 8: nodes: there must be at least one"),
        ("nodes: 4", "line 1, column 8: nodes: is not a list"),
        ("nodes: [", "line 1, column 9: this is no YAML"),
        ("nodes: [{cpu: 1}]\ntenants: x", "line 2, column 10: tenants: is not a list"),
    ],
)
def test_what_is_no_cluster_file_at_all(text: str, why: str) -> None:
    assert refused(text)[0].startswith(why)


def test_quotas_are_read_and_every_reason_against_them_is_told() -> None:
    read = cluster(GOOD + "quotas: {team-a: {cpu: 4, gpu: 1}, team-b: {}}\n")
    assert read.quotas == {"team-a": Quota(cpu=4, gpu=1), "team-b": Quota()}
    wrong = "quotas:\n  Team: {cpu: 1}\n  team-a: {cpu: many, memery_gib: 3}\n"
    told = refused(GOOD + wrong)
    assert told[0].startswith("line 7, column 3: quotas: Expected a name: small letters")
    assert told[0].endswith(", got 'Team'")
    assert told[1:] == [
        "line 8, column 17: quotas.team-a.cpu: Expected `float | null`, got 'many'",
        "line 8, column 35: quotas.team-a.memery_gib: no such field; did you mean 'memory_gib'?",
    ]
    assert "quotas" in refused(GOOD + "quotas: [4]\n")[0]
