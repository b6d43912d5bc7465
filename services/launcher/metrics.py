"""The launcher's metrics: the states of its pods, the exits of tasks, abandoned generations, and
the times of preparing and saving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

from services.launcher.facts import PodFact
from services.launcher.steps.task_reports import NODE_LOST
from services.launcher.view import View
from shared.messages import (
    DELETED,
    EVICTED,
    CheckpointFailed,
    CheckpointSaved,
    GenerationAbandoned,
    GenerationPrepared,
    Message,
    TaskExited,
)
from shared.runtime.metrics import Family, Measure, Meter

PodState = Literal["pending", "stuck", "running", "leaving", "ended"]
REASONS = ("Completed", "Error", "OOMKilled", "Unschedulable", EVICTED, DELETED, NODE_LOST)
OTHER = "other"
STARTING = ("", "ContainerCreating", "PodInitializing")
"""Reasons of a container that is being created."""
TIMES = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)

PODS = Family(
    name="weir_launcher_pods",
    kind="gauge",
    help="Pods of jobs, by state: pending, stuck (no node, or its container cannot be created), "
    "running, leaving, or ended.",
    labels=("state",),
)
EXITED = Family(
    name="weir_launcher_tasks_exited_total",
    kind="counter",
    help="Tasks that ended unexpectedly, by Kubernetes' reason; other: a rare reason.",
    labels=("reason",),
)
ABANDONED = Family(
    name="weir_launcher_generations_abandoned_total",
    kind="counter",
    help="Generations that were abandoned before they trained; the previous one continued.",
)
PREPARING = Family(
    name="weir_training_prepare_seconds",
    kind="histogram",
    help="Time in which a chief connected, built and traced before the hand-over, beside the "
    "running generation.",
    bounds=TIMES,
)
SAVING = Family(
    name="weir_training_save_seconds",
    kind="histogram",
    help="Time in which a checkpoint was written, while training continued or paused.",
    bounds=TIMES,
)
UNSAVED = Family(
    name="weir_training_checkpoints_failed_total",
    kind="counter",
    help="Checkpoints that could not be written; training continued.",
)


class LauncherMetrics:
    def __init__(self) -> None:
        self.exited = Meter(EXITED, [(reason,) for reason in (*REASONS, OTHER)])
        self.abandoned = Meter(ABANDONED)
        self.unsaved = Meter(UNSAVED)
        self.preparing = Meter(PREPARING)
        self.saving = Meter(SAVING)

    def count_fact(self, message: Message) -> None:
        """Count a new message of a trainer."""
        if isinstance(message, CheckpointFailed):
            self.unsaved.count()
        elif isinstance(message, CheckpointSaved):
            is_new = message.seconds > 0  # 0: the checkpoint existed already
            if is_new:
                self.saving.observe(message.seconds)
        elif isinstance(message, GenerationPrepared):
            is_chief = message.role == "chief"
            if is_chief and message.error is None:
                self.preparing.observe(message.seconds)

    def count_published(self, message: Message) -> None:
        """Count a message of the launcher."""
        if isinstance(message, TaskExited):
            self.exited.count(message.reason if message.reason in REASONS else OTHER)
        elif isinstance(message, GenerationAbandoned):
            self.abandoned.count()

    def measures(self, view: View) -> Iterable[Measure]:
        meters = (self.exited, self.abandoned, self.preparing, self.saving, self.unsaved)
        return (*(meter.measure() for meter in meters), pods_by_state(view))


def pods_by_state(view: View) -> Measure:
    """Return the number of pods in each state, including states without pods."""
    counts = Counter[PodState]()
    for pods in view.pods.values():
        counts.update(pod_state(pod) for pod in pods.values() if not pod.deleted)
    return Measure(PODS, {(state,): counts[state] for state in get_args(PodState)})


def pod_state(pod: PodFact) -> PodState:
    if pod.has_ended:
        return "ended"
    if pod.terminating:
        return "leaving"
    if pod.phase == "Running":
        return "running"
    return "stuck" if pod.unschedulable or pod.waiting not in STARTING else "pending"
