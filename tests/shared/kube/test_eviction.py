"""What closes a node to our tasks, so that those on it have to go.

How long a task may take to end: what was asked for, or what its job was seen to need, within a
bound.
"""

from __future__ import annotations

import pytest

from shared.kube import eviction
from shared.kube.eviction import leaving_reason
from shared.messages import CORDONED, TAINTED, Taint

OURS_TO_LEAVE = [Taint(key="karpenter.sh/disrupted"), Taint(key="anything", effect="NoExecute")]
HARMLESS = [
    Taint(key="node.kubernetes.io/not-ready", effect="NoExecute"),
    Taint(key="node.kubernetes.io/unschedulable"),
    Taint(key="nvidia.com/gpu"),
    Taint(key="anything"),
]


@pytest.mark.parametrize("taint", OURS_TO_LEAVE, ids=lambda t: t.key)
def test_an_evicting_taint_has_precedence_over_a_cordon(taint: Taint) -> None:
    assert leaving_reason(True, [taint]) == leaving_reason(False, [*HARMLESS, taint]) == TAINTED


@pytest.mark.parametrize("taint", HARMLESS, ids=lambda t: t.key)
def test_a_taint_that_evicts_no_pod_is_no_reason_to_leave(taint: Taint) -> None:
    assert (leaving_reason(True, [taint]), leaving_reason(False, [taint])) == ("", CORDONED)


@pytest.mark.parametrize(
    ("asked_s", "changes_s", "most_s", "needed_s"),
    [
        (30.0, (), 180.0, 30.0),  # nothing was measured
        (30.0, (10.0,), 180.0, 30.0),  # it needs less
        (30.0, (60.0,), 180.0, 90.0),  # it needs more
        (30.0, (60.0, 5.0), 180.0, 90.0),  # one that was quick does not make the next one quick
        (30.0, (600.0,), 180.0, 180.0),  # it needs more than it may have
        (30.0, (60.0,), 0.0, 30.0),  # nothing is given beyond what was asked for
        (300.0, (60.0,), 180.0, 300.0),  # more was asked for than it needs
    ],
)
def test_the_grace_period_covers_the_jobs_needs_and_its_request(
    asked_s: float, changes_s: tuple[float, ...], most_s: float, needed_s: float
) -> None:
    assert eviction.grace_period(asked_s, changes_s, most_s) == needed_s


def test_only_the_last_known_measurements_count() -> None:
    changes_s: tuple[float, ...] = ()
    for change_s in (90.0, 1.0, 0.0, 2.0, 3.0):
        changes_s = eviction.add_measurement(changes_s, change_s)
    assert changes_s == (1.0, 2.0, 3.0)
