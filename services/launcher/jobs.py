"""The state of one job, from the messages on the bus: its generations, and the facts about its
pods.
"""

from __future__ import annotations

import msgspec

from shared.messages import (
    AllocationDecided,
    ClusterSpecPublished,
    GenerationPrepared,
    TaskExited,
    TaskPlan,
    TaskReady,
    TaskStarted,
    TaskUpdated,
)


class Notice(msgspec.Struct, frozen=True):
    """When a reason was first published, and the earliest deadline published with it (0: none)."""

    at_s: float
    leaves_s: float = 0.0


class LeavingNotices(msgspec.Struct, frozen=True, kw_only=True):
    """The published notices about a pod that has to leave, by reason."""

    pod: str
    notices: dict[str, Notice] = {}


def is_earlier(leaves_s: float, published_s: float) -> bool:
    """Return True if a deadline (0: unknown) is earlier than the published one, by a second or
    more.
    """
    if not leaves_s:
        return False
    return not published_s or round(leaves_s) < round(published_s)


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one generation. Times are those at which the server stored the message.

    `prepared`: by pod uid. `drains`: the generation that was ordered to drain. `unsaved`: the
    reason why the generation before could not save a checkpoint for this one.
    """

    decision: AllocationDecided
    decided_s: float
    spec: ClusterSpecPublished | None = None
    spec_s: float = 0.0
    prepared: dict[str, GenerationPrepared] = {}
    ordered_s: float | None = None
    drains: int | None = None
    abandoned: bool = False
    unsaved: str = ""

    @property
    def tasks(self) -> dict[str, TaskPlan]:
        """The tasks by pod name."""
        return {task.pod(self.decision.job): task for task in self.decision.tasks}

    @property
    def chief(self) -> str:
        """The pod name of the chief; empty if there is none."""
        for name, task in self.tasks.items():
            if task.role == "chief":
                return name
        return ""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job that is not finished. Facts about tasks are by pod uid.

    `running`: the generation that resumed last.
    `drained`: the generation that has saved its final checkpoint, and applies no more updates.
    `drained_for`: its successor. `drained_step`: the step of that checkpoint; a checkpoint of a
    later step shows that the generation has gone on.
    `settled_s`: when a generation last resumed or was abandoned.
    `changes_s`: the durations of the last changes, from the decision to the first update.
    """

    namespace: str
    job: str
    uid: int
    generations: dict[int, Generation] = {}
    running: int | None = None
    drained: int | None = None
    drained_for: int | None = None
    drained_step: int = 0
    settled_s: float = 0.0
    ready: dict[str, TaskReady] = {}
    started: dict[str, TaskStarted] = {}
    leaving: dict[str, LeavingNotices] = {}
    exited: dict[str, TaskExited] = {}
    updated: dict[str, TaskUpdated] = {}
    changes_s: tuple[float, ...] = ()

    @property
    def key(self) -> str:
        """The name of the job in messages: `namespace.job`."""
        return f"{self.namespace}.{self.job}"

    @property
    def newest(self) -> int | None:
        return max(self.generations, default=None)

    def pods_seen_alive(self) -> set[str]:
        """Return the names of the pods that have been alive at some time."""
        facts = [*self.ready.values(), *self.started.values(), *self.exited.values()]
        return {fact.pod for fact in facts}


def locked_generation(job: Job) -> int | None:
    """Return the generation that must keep its chance to resume: it was handed over to, and the
    generation before it has stopped for it.
    """
    for number, generation in job.generations.items():
        if generation.ordered_s is None or generation.abandoned or not is_ahead(job, number):
            continue
        before = generation.spec.previous if generation.spec else None
        if before is not None and before == job.drained:
            return number
    return None


def is_ahead(job: Job, number: int) -> bool:
    """Return True if a generation is newer than the running one."""
    return job.running is None or number > job.running


def is_paused(job: Job) -> bool:
    """Return True if the newest decision has no tasks and no generation is locked."""
    newest = job.newest
    if newest is None or job.generations[newest].decision.tasks:
        return False
    return locked_generation(job) is None
