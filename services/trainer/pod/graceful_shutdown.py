"""The last seconds of a pod: announce the end, keep working, and exit in time.

`supervise.py` decides; this module gives it the times: how long saves and changes took, and how
long the pod may stay. The pod looks up whether the job is over or another generation trains: the
launcher ends pods as soon as it knows that, and this pod may receive the fact later.
"""

from __future__ import annotations

from services.trainer.pod.supervise import ShutdownTimes
from services.trainer.settings import Settings
from shared.kube import eviction
from shared.messages import SIGTERM, CheckpointSaved, TaskLeaving, TrainingResumed

LOOK_UP_S = 2.0  # longest wait for the bus while the pod ends
SAVE_MARGIN = 2.0  # a save may take that many times as long as the last one


class GracefulShutdown:
    """The measurements of saves and changes, and the times that follow from them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.save_s = 0.0  # duration of the last save, drain included
        self.measured_generation = -1  # the newest generation with a measured change
        self.changes_s: tuple[float, ...] = ()  # durations of the job's last changes

    @property
    def times(self) -> ShutdownTimes:
        last_save_s = max(self.settings.last_save_s, SAVE_MARGIN * self.save_s)
        return ShutdownTimes(leave_s=self.settings.leave_s, last_save_s=last_save_s)

    @property
    def grace_s(self) -> float:
        """Return the seconds that this pod may take to end: as long as a change takes, within the
        limit of Kubernetes.
        """
        settings = self.settings
        return eviction.grace_period(settings.grace_s, self.changes_s, settings.grace_most_s)

    def on_saved(self, fact: CheckpointSaved) -> None:
        self.save_s = fact.drain_s + fact.seconds

    def on_resumed(self, fact: TrainingResumed) -> None:
        """Remember the duration of a change, once for each generation. A generation that continues
        was not changed.
        """
        if fact.generation > self.measured_generation:
            self.measured_generation = fact.generation
            self.changes_s = eviction.add_measurement(self.changes_s, fact.change_s)

    def leaving_notice(self, generation: int, leaves_s: float) -> TaskLeaving:
        """Return the notice of this task's end."""
        settings = self.settings
        return TaskLeaving(
            job=settings.job,
            namespace=settings.namespace,
            uid=settings.uid,
            pod=settings.pod,
            pod_uid=settings.pod_uid,
            role=settings.role,
            serial=settings.serial,
            generation=max(generation, 0),
            node=settings.node,
            why=SIGTERM,
            leaves_s=leaves_s,
        )
