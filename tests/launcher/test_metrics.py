"""Tests of the launcher's metrics."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from services.launcher.facts import PodFact
from services.launcher.metrics import (
    ABANDONED,
    EXITED,
    PREPARING,
    SAVING,
    UNSAVED,
    LauncherMetrics,
    pods_by_state,
)
from services.launcher.view import View, with_pod
from shared.messages import (
    CheckpointFailed,
    CheckpointSaved,
    GenerationAbandoned,
    GenerationPrepared,
    Message,
    TaskExited,
)
from shared.runtime.http_server import format_metrics
from shared.runtime.metrics import Histogram
from tests.launcher.builders import JOB, UID
from tests.shared.metric_lint import problems

ABOUT: dict[str, Any] = {"job": JOB, "uid": UID, "generation": 2}
SAVED = CheckpointSaved(**ABOUT, step=5, samples=160, path="/c/gen-2/ckpt-5", seconds=0.4)


def prepared(role: str, seconds: float, **fields: Any) -> GenerationPrepared:
    about = {**ABOUT, "pod": f"{JOB}-{role}-1", "pod_uid": f"u-{role}", "role": role, "serial": 1}
    return GenerationPrepared(**about, seconds=seconds, **fields)


def exited(reason: str) -> TaskExited:
    about = {**ABOUT, "pod": f"{JOB}-ps-1", "pod_uid": "u", "role": "ps", "serial": 1}
    return TaskExited(**about, node="n1", reason=reason)


def told(meters: LauncherMetrics) -> dict[str, Any]:
    return {measure.family.name: measure.series for measure in meters.measures(View())}


def pod(number: int, **fields: Any) -> PodFact:
    made: dict[str, Any] = {
        "namespace": "default",
        "job": JOB,
        "job_uid": UID,
        "role": "worker",
        "serial": number,
    }
    return PodFact(**made, name=f"{JOB}-worker-{number}", uid=f"u{number}", **fields)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "pending"),
        ({"waiting": "ContainerCreating"}, "pending"),
        ({"unschedulable": "0/3 nodes are available"}, "stuck"),
        ({"waiting": "ImagePullBackOff"}, "stuck"),
        ({"phase": "Running"}, "running"),
        ({"phase": "Running", "terminating": True}, "leaving"),
        ({"phase": "Succeeded", "terminating": True}, "ended"),
        ({"phase": "Failed"}, "ended"),
    ],
)
def test_a_pod_counts_in_one_state(fields: dict[str, Any], state: str) -> None:
    found = pods_by_state(with_pod(View(), pod(1, **fields))).series

    assert {labels: number for labels, number in found.items() if number} == {(state,): 1}
    assert len(found) == 5  # states without a pod are exported, too


def test_a_deleted_pod_counts_in_no_state() -> None:
    seen = with_pod(View(), pod(1, phase="Running"))
    assert (
        sum(
            pods_by_state(
                with_pod(seen, replace(pod(1, phase="Running"), deleted=True))
            ).series.values()
        )
        == 0
    )  # type: ignore[arg-type]


def test_trainer_events_are_counted() -> None:
    meters = LauncherMetrics()
    failed = CheckpointFailed(**ABOUT, step=5, path="/c", cause="it is full", remedy="make room")
    heard: list[Message] = [SAVED, failed, prepared("chief", 2.0), prepared("ps", 0.0)]
    for message in [*heard, prepared("chief", 0.0, error="no"), replace(SAVED, seconds=0.0)]:
        meters.count_fact(message)

    found = told(meters)
    assert found[UNSAVED.name] == {(): 1}
    assert (sum(found[SAVING.name][()].counts), found[SAVING.name][()].sum) == (1, 0.4)
    assert (sum(found[PREPARING.name][()].counts), found[PREPARING.name][()].sum) == (1, 2.0)


def test_exits_are_counted_by_a_few_reasons() -> None:
    meters = LauncherMetrics()
    for reason in ("OOMKilled", "OOMKilled", "Evicted", "whatever a node says", ""):
        meters.count_published(exited(reason))
    meters.count_published(GenerationAbandoned(**ABOUT, reason="unschedulable"))

    found = {labels[0]: number for labels, number in told(meters)[EXITED.name].items() if number}
    assert found == {"OOMKilled": 2, "Evicted": 1, "other": 2}
    assert told(meters)[ABANDONED.name] == {(): 1}


def test_alarm_counters_are_exported_with_zero() -> None:
    """Otherwise an alarm could not see the first increase."""
    found = told(LauncherMetrics())

    assert set(found[EXITED.name].values()) == set(found[ABANDONED.name].values()) == {0}
    assert found[UNSAVED.name] == {(): 0}
    assert not any(isinstance(number, Histogram) for number in found[EXITED.name].values())


def test_launcher_metrics_pass_the_lint() -> None:
    meters = LauncherMetrics()
    meters.count_fact(SAVED)
    meters.count_fact(prepared("chief", 2.0))

    assert problems(format_metrics(meters.measures(with_pod(View(), pod(1))))) == []
