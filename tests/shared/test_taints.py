"""What closes a node to our tasks, so that those on it have to go."""

from __future__ import annotations

import pytest

from shared.kube.taints import closed
from shared.messages import CORDONED, TAINTED, Taint

OURS_TO_LEAVE = [Taint(key="karpenter.sh/disrupted"), Taint(key="anything", effect="NoExecute")]
HARMLESS = [
    Taint(key="node.kubernetes.io/not-ready", effect="NoExecute"),
    Taint(key="node.kubernetes.io/unschedulable"),
    Taint(key="nvidia.com/gpu"),
    Taint(key="anything"),
]


@pytest.mark.parametrize("taint", OURS_TO_LEAVE, ids=lambda t: t.key)
def test_a_node_that_is_taken_away_is_closed_harder_than_by_its_cordon(taint: Taint) -> None:
    assert closed(True, [taint]) == closed(False, [*HARMLESS, taint]) == TAINTED


@pytest.mark.parametrize("taint", HARMLESS, ids=lambda t: t.key)
def test_a_taint_that_takes_no_pod_away_closes_nothing(taint: Taint) -> None:
    assert (closed(True, [taint]), closed(False, [taint])) == ("", CORDONED)
