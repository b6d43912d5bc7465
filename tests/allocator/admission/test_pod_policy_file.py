"""Tests of the pod policy file: each fault is reported with its line, and sections are combined."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.allocator.admission.pod_policy_file import parse_pod_policy, with_pod_policy
from services.allocator.pod_policy import ALLOW_ALL, PodPolicy, covers, is_listed
from services.allocator.settings import Rules
from services.local import stack
from shared.documents import InvalidFile
from shared.messages import NodeRequirement, NodeTerm, Toleration
from shared.runtime.config import BadSettings

BAD = """\
everyone: {}
default:
  secrets:
  foo: 1
  claims: data
namespaces:
  Team: {}
  team-a:
    tolerations:
      - {key: a}
      - {efect: x, effect: y}
    largest_task: {cpu: -1}
    node_pools: [{"a b": c}]
    secrets: []
    secrets: [a]
"""


def test_every_fault_of_the_file_has_its_line() -> None:
    with pytest.raises(InvalidFile) as caught:
        parse_pod_policy(BAD)

    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "line 1",
        "line 3",
        "line 4",
        "line 5",
        "line 6",
        "line 11",
        "line 11",
        "line 12",
        "line 13",
        "line 15",
    ]
    assert lines[0].endswith("everyone: no such section; use default or namespaces")
    assert lines[1].endswith("default.secrets: has no value; write [] to allow none")
    assert "did you mean 'effect'?" in lines[5]
    assert lines[7].endswith("namespaces.team-a.largest_task.cpu: Expected `float` >= 0.0, got -1")
    assert lines[9].endswith("namespaces.team-a.secrets: occurs twice")


@pytest.mark.parametrize(
    ("text", "line"), [("- a\n", "line 1: the file is a mapping"), ("a: [\n", "line 2: ")]
)
def test_a_file_of_another_form_is_refused(text: str, line: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        parse_pod_policy(text)

    assert str(caught.value).startswith(line)


def test_an_empty_file_allows_nothing() -> None:
    policy = parse_pod_policy("")

    assert policy == PodPolicy()
    assert not policy.rules_of("default").claims


def test_a_section_leaves_the_rest_to_the_default_section() -> None:
    policy = parse_pod_policy(
        "default: {secrets: [a], claims: [b]}\nnamespaces: {team: {secrets: []}, other: }\n"
    )

    assert policy.rules_of("team").secrets == ()
    assert policy.rules_of("team").claims == ("b",)
    assert policy.rules_of("other") == policy.rules_of("nobody") == policy.default


def test_pools_bind_a_namespace_unless_one_has_every_node() -> None:
    policy = parse_pod_policy("namespaces: {a: {node_pools: [{p: x}]}, b: {node_pools: [{}]}}")

    wanted = NodeRequirement(key="p", operator="In", values=("x",))
    assert policy.pool_terms("a") == (NodeTerm(labels=(wanted,)),)
    assert policy.pool_terms("b") == policy.pool_terms("c") == ()


def test_a_name_is_listed_as_a_whole_or_by_its_beginning() -> None:
    assert is_listed("team-a-x", ["team-a-*"]) and is_listed("x", ["*"]) and is_listed("x", ["x"])
    assert not is_listed("team-a", ["team-a-*"]) and not is_listed("xy", ["x"])
    assert not is_listed("x", None)


def test_a_toleration_is_allowed_by_one_that_tolerates_at_least_as_much() -> None:
    wanted = Toleration(key="team", value="a", effect="NoSchedule")
    for allowed in (
        wanted,
        Toleration(key="team", value="a"),
        Toleration(key="team", operator="Exists"),
        Toleration(operator="Exists"),
    ):
        assert covers(allowed, wanted), allowed
    for allowed in (
        Toleration(key="team", value="b"),
        Toleration(key="team", value="a", effect="NoExecute"),
        Toleration(key="other", operator="Exists"),
    ):
        assert not covers(allowed, wanted), allowed
    assert not covers(wanted, Toleration(key="team", operator="Exists", effect="NoSchedule"))
    assert not covers(wanted, Toleration(key="team", value="a"))


def test_a_file_that_cannot_be_used_stops_the_program_with_its_faults(tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    with pytest.raises(BadSettings, match="cannot read"):
        with_pod_policy(Rules(pod_policy=str(file)))
    file.write_text("default: {secret: []}\n")
    with pytest.raises(BadSettings, match=r"pods.yaml, line 1: default.secret: no such field"):
        with_pod_policy(Rules(pod_policy=str(file)))
    file.write_text("default: {secrets: [a]}\n")
    assert with_pod_policy(Rules(pod_policy=str(file))).pod_rules.default.secrets == ("a",)


def test_weir_up_allows_everything() -> None:
    allowed = parse_pod_policy(stack.ALLOW_ALL).default

    assert allowed.images == ("*",)
    for field in ("secrets", "labels", "node_pools", "tolerations", "claims", "priority_classes"):
        assert getattr(allowed, field) == getattr(ALLOW_ALL.default, field)
