"""How far one job has come, as the bus told it: its generations, and what its pods said of
themselves.
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
    """When a reason was first said, and the soonest time that was said with it (0: none)."""

    at_s: float
    leaves_s: float = 0.0


class LeavingNotices(msgspec.Struct, frozen=True, kw_only=True):
    """What was said of a pod that will have to go, by reason."""

    pod: str
    notices: dict[str, Notice] = {}


def is_earlier(leaves_s: float, said_s: float) -> bool:
    """Whether a time is news beside the one that was said; a message tells it to the second."""
    return bool(leaves_s) and (not said_s or round(leaves_s) < round(said_s))


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """How far one generation has come. `prepared` is by pod uid; times are when the server stored
    the message.
    """

    decision: AllocationDecided
    decided_s: float
    spec: ClusterSpecPublished | None = None
    spec_s: float = 0.0
    prepared: dict[str, GenerationPrepared] = {}
    ordered_s: float | None = None
    drains: int | None = None  # the generation that was ordered to
    abandoned: bool = False
    unsaved: str = ""  # why the one before could not save for it

    @property
    def tasks(self) -> dict[str, TaskPlan]:
        """By pod name."""
        return {task.pod(self.decision.job): task for task in self.decision.tasks}

    @property
    def chief(self) -> str:
        """The name of its pod."""
        return next((name for name, task in self.tasks.items() if task.role == "chief"), "")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job that is not finished. Task facts are by pod uid."""

    namespace: str
    job: str
    uid: int
    generations: dict[int, Generation] = {}
    running: int | None = None  # resumed last
    drained: int | None = None  # saved its final checkpoint: it applies nothing more
    drained_for: int | None = None  # the successor for which it did
    drained_step: int = (
        0  # at which update; a later checkpoint of the same generation shows that it went on
    )
    settled_s: float = 0.0  # when a generation last resumed or was abandoned
    ready: dict[str, TaskReady] = {}
    started: dict[str, TaskStarted] = {}
    leaving: dict[str, LeavingNotices] = {}
    exited: dict[str, TaskExited] = {}
    updated: dict[str, TaskUpdated] = {}
    changes_s: tuple[
        float, ...
    ] = ()  # what its last changes took, from the decision to the first update

    @property
    def key(self) -> str:
        """Its name as a message has it (`Spoken.key`)."""
        return f"{self.namespace}.{self.job}"

    @property
    def newest(self) -> int | None:
        return max(self.generations, default=None)

    def pods_seen_alive(self) -> set[str]:
        """The names that have been alive at some time."""
        return {
            fact.pod for facts in (self.ready, self.started, self.exited) for fact in facts.values()
        }


def locked_generation(job: Job) -> int | None:
    """The generation that must have its chance: handed over to, and the one before has stopped for
    it.
    """
    for number, generation in job.generations.items():
        handed = (
            generation.ordered_s is not None and not generation.abandoned and is_ahead(job, number)
        )
        before = generation.spec.previous if generation.spec else None
        if handed and before is not None and before == job.drained:
            return number
    return None


def is_ahead(job: Job, number: int) -> bool:
    return job.running is None or number > job.running


def is_paused(job: Job) -> bool:
    """The newest decision wants nothing, and nothing must be waited for."""
    newest = job.newest
    return (
        newest is not None
        and not job.generations[newest].decision.tasks
        and locked_generation(job) is None
    )
