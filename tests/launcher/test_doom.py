"""Which cordons and taints send a node's pods away, and which are none of our business."""

from __future__ import annotations

import pytest

from services.launcher.doom import Doom, doom
from services.launcher.facts import node_fact
from shared.messages import CORDONED, TAINTED, Taint
from tests.launcher.builders import sent


@pytest.mark.parametrize(
    ("key", "effect", "notice_s"),
    [
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule", 0.0),
        ("aws-node-termination-handler/spot-itn", "NoSchedule", 120.0),
        ("cloud.google.com/impending-node-termination", "NoSchedule", 30.0),
        ("maintenance", "NoExecute", 0.0),
    ],
)
def test_who_takes_a_node_away_says_so_by_a_taint(key: str, effect: str, notice_s: float) -> None:
    assert doom(False, [Taint(key=key, effect=effect)]) == Doom(
        TAINTED, f"{key}:{effect}", notice_s
    )


@pytest.mark.parametrize(
    ("key", "effect"),
    [
        ("node.kubernetes.io/unreachable", "NoExecute"),  # judged by readiness
        ("nvidia.com/gpu", "NoExecute"),  # tolerated
        (
            "kubernetes.azure.com/scalesetpriority",
            "NoSchedule",
        ),  # a spot node, for as long as it lives
        ("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),  # perhaps one day
        ("dedicated", "NoSchedule"),
    ],
)
def test_other_taints_send_nobody_away(key: str, effect: str) -> None:
    assert doom(False, [Taint(key=key, effect=effect)]) is None


def test_a_cordon_sends_away_and_a_taint_with_the_shortest_notice_comes_before_it() -> None:
    assert doom(True, []) == Doom(CORDONED)
    keys = ("karpenter.sh/disrupted", "aws-node-termination-handler/spot-itn")
    assert doom(True, [Taint(key=key) for key in keys]) == Doom(
        TAINTED, f"{keys[1]}:NoSchedule", 120.0
    )


def test_a_node_is_read_with_its_cordon_and_its_taints() -> None:
    cordon = {
        "unschedulable": True,
        "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
    }
    assert node_fact(sent({"metadata": {"name": "n"}, "spec": cordon})).doom == CORDONED
    taint = {
        "key": "aws-node-termination-handler/spot-itn",
        "effect": "NoSchedule",
        "timeAdded": None,
    }
    node = node_fact(sent({"metadata": {"name": "n"}, "spec": {"taints": [taint]}}))
    assert (node.doom, node.within_s, node.ready) == (TAINTED, 120.0, True)
