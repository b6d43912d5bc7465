"""The launcher in numbers: how its pods stand, how tasks end, which generations never were, and
what saving takes.
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
BEGINNING = ("", "ContainerCreating", "PodInitializing")
"""What a container waits for that is only being made."""
TIMES = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)

PODS = Family(
    name="weir_launcher_pods",
    kind="gauge",
    help="Pods of jobs: pending, stuck (without a node, or its container cannot be made), running, leaving, or ended.",
    labels=("state",),
)
EXITED = Family(
    name="weir_launcher_tasks_exited_total",
    kind="counter",
    help="Tasks that ended though they were wanted, by Kubernetes' reason; other: none that is usual.",
    labels=("reason",),
)
ABANDONED = Family(
    name="weir_launcher_generations_abandoned_total",
    kind="counter",
    help="Generations that were decided and never trained; the one before went on.",
)
PREPARING = Family(
    name="weir_training_prepare_seconds",
    kind="histogram",
    help="How long a chief took to connect, build and trace before the hand-over, beside the running generation.",
    bounds=TIMES,
)
SAVING = Family(
    name="weir_training_save_seconds",
    kind="histogram",
    help="How long it took to write a checkpoint, while training went on or stood still.",
    bounds=TIMES,
)
UNSAVED = Family(
    name="weir_training_checkpoints_failed_total",
    kind="counter",
    help="Checkpoints that could not be written; training went on without.",
)


class LauncherMetrics:
    def __init__(self) -> None:
        self.exited = Meter(EXITED, [(reason,) for reason in (*REASONS, OTHER)])
        self.abandoned, self.unsaved = Meter(ABANDONED), Meter(UNSAVED)
        self.preparing, self.saving = Meter(PREPARING), Meter(SAVING)

    def count_fact(self, message: Message) -> None:
        """What trainers say, once it is new."""
        if isinstance(message, CheckpointFailed):
            self.unsaved.count()
        elif (
            isinstance(message, CheckpointSaved) and message.seconds > 0
        ):  # 0: it was there already
            self.saving.observe(message.seconds)
        elif (
            isinstance(message, GenerationPrepared)
            and message.role == "chief"
            and message.error is None
        ):
            self.preparing.observe(message.seconds)

    def count_published(self, message: Message) -> None:
        """What we say ourselves."""
        if isinstance(message, TaskExited):
            self.exited.count(message.reason if message.reason in REASONS else OTHER)
        elif isinstance(message, GenerationAbandoned):
            self.abandoned.count()

    def measures(self, view: View) -> Iterable[Measure]:
        meters = (self.exited, self.abandoned, self.preparing, self.saving, self.unsaved)
        return (*(meter.measure() for meter in meters), pods_by_state(view))


def pods_by_state(view: View) -> Measure:
    """How many pods are in each state; a state that none is in is told, too."""
    found = Counter(
        pod_state(pod) for pods in view.pods.values() for pod in pods.values() if not pod.deleted
    )
    return Measure(PODS, {(state,): found[state] for state in get_args(PodState)})


def pod_state(pod: PodFact) -> PodState:
    if pod.ended:
        return "ended"
    if pod.terminating:
        return "leaving"
    if pod.phase == "Running":
        return "running"
    return "stuck" if pod.unschedulable or pod.waiting not in BEGINNING else "pending"
