"""Terms of a node affinity, as the scheduler reads them."""

from __future__ import annotations

import pytest

from services.allocator.placing.node_terms import fulfils_any
from shared.messages import NodeRequirement, NodeTerm

LABELS = {"zone": "a", "cpus": "8", "ssd": ""}


def met(key: str, operator: str, *values: str) -> bool:
    wanted = NodeRequirement(key=key, operator=operator, values=values)
    return fulfils_any("n1", LABELS, [NodeTerm(labels=(wanted,))])


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        (("zone", "In", "b", "a"), ("zone", "In", "b")),
        (("zone", "NotIn", "b"), ("zone", "NotIn", "a")),
        (("rack", "NotIn", "b"), ("rack", "In", "")),
        (("ssd", "Exists"), ("rack", "Exists")),
        (("rack", "DoesNotExist"), ("ssd", "DoesNotExist")),
        (("cpus", "Gt", "7"), ("cpus", "Gt", "8")),
        (("cpus", "Lt", "9"), ("cpus", "Lt", "8")),
        (("zone", "In", "a"), ("zone", "Gt", "1")),
        (("zone", "In", "a"), ("cpus", "Gt", "many")),
        (("zone", "In", "a"), ("cpus", "Gt")),
        (("zone", "In", "a"), ("zone", "Like", "a")),
    ],
)
def test_each_operator_means_what_the_scheduler_means(yes: tuple[str, ...], no: tuple[str, ...]):
    assert met(*yes) and not met(*no)


def test_all_of_one_term_has_to_be_met_and_a_term_without_requirements_means_no_node():
    zone = NodeRequirement(key="zone", operator="In", values=("a",))
    here = NodeRequirement(key="metadata.name", operator="In", values=("n1",))
    there = NodeRequirement(key="metadata.name", operator="In", values=("n2",))
    assert fulfils_any("n1", LABELS, [NodeTerm(labels=(zone,), fields=(here,))])
    assert not fulfils_any("n1", LABELS, [NodeTerm(labels=(zone,), fields=(there,))])
    assert fulfils_any("n1", LABELS, [NodeTerm(fields=(there,)), NodeTerm(fields=(here,))])
    assert not fulfils_any("n1", LABELS, [NodeTerm()]) and not fulfils_any("n1", LABELS, [])
