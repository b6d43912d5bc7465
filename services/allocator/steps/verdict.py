"""The input of each step (`Situation`) and its result (`Verdict`), for one job in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from services.allocator.placement.placers import Placer, place
from services.allocator.placement.resizing import wanted_sizes
from services.allocator.placement.room import Room
from services.allocator.placement.trial import Placed, PlacementRequest, Shortage, try_place
from services.allocator.policies.contract import JobSnapshot, Size, Target
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.policy_view import downtime_s
from services.allocator.state.releases import NOTHING_RELEASING, ReleasingCapacity
from services.allocator.steps.resize_conditions import PendingChange
from shared.messages import (
    LONGEST_S,
    MOST_MEASURED,
    AllocationDecided,
    Alternative,
    JobFinished,
    RoleResources,
    TaskPlan,
)

Attempt = tuple[Sequence[TaskPlan], Size, Size]
"""The tasks that a job keeps, and the largest and the smallest size to place it at."""


class Situation(msgspec.Struct, frozen=True):
    """The input of a step for one job. `seen`: the job as its policy sees it. `room`: the free
    capacity at this step. `cause`: the id of the newest fact. `opened_s`: the time at which a node
    last became ready. `target`: the target of the job's policy; None: there is none, or the policy
    was not called yet. `pending_change`: that of the last pass. `releasing`: capacity that is being
    released.
    """

    job: Job
    seen: JobSnapshot
    room: Room
    now: float
    settings: Rules
    cause: str
    opened_s: float = 0.0
    target: Target | None = None
    pending_change: PendingChange | None = None
    releasing: ReleasingCapacity = NOTHING_RELEASING

    @property
    def current(self) -> AllocationDecided | None:
        """The decision that runs; None: the job waits, or its first generation is in flight."""
        return self.job.active_decision

    @property
    def size(self) -> Size:
        """The size of the newest decision; no task: there is none."""
        return self.seen.size or Size(0, 0)

    @property
    def newest(self) -> AllocationDecided | None:
        """The newest decision: of the generation in flight, else of the one that runs."""
        return self.job.newest_decision

    def sizes(self, target: Target | None = None) -> RoleResources:
        """Return the size of each task that the policy wants, or else its present size."""
        return wanted_sizes(self.job, target.sizes if target else None, self.settings)

    def trial(
        self,
        keep: Sequence[TaskPlan],
        most: Size,
        least: Size | None = None,
        sizes: RoleResources | None = None,
        placer: Placer = place,
        avoid: frozenset[str] = frozenset(),
    ) -> Placed | Shortage:
        """Place the job at the largest size from `most` down to `least` (None: only at `most`),
        beside the tasks that it keeps, with new tasks of these sizes (None: as its tasks are).
        """
        return try_place(self.room, self.request(keep, most, least, sizes, placer, avoid))

    def first_trial(self, attempts: Sequence[Attempt]) -> Placed | Shortage:
        """Place the job by the first attempt that finds room; the shortage of the last one if none
        does.
        """
        *earlier, last = attempts
        for keep, most, least in earlier:
            trial = self.trial(keep, most, least)
            if isinstance(trial, Placed):
                return trial
        return self.trial(*last)

    def request(
        self,
        keep: Sequence[TaskPlan],
        most: Size,
        least: Size | None = None,
        sizes: RoleResources | None = None,
        placer: Placer = place,
        avoid: frozenset[str] = frozenset(),
        opened: frozenset[str] = frozenset(),
    ) -> PlacementRequest:
        """Return the request that `trial` places."""
        job = self.job
        return PlacementRequest(
            job=job.key,
            keep=keep,
            most=most,
            least=least or most,
            sizes=sizes or self.sizes(),
            serial=job.serials,
            placer=placer,
            avoid=avoid,
            opened=opened,
            quota=self.settings.quotas.get(job.request.namespace),
        )


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of a step: an action, or the reason for none. `wake_s`: the time (s) of the next
    pass; None: after the next fact.
    """

    why: str
    action: AllocationDecided | JobFinished | None = None
    wake_s: float | None = None
    pending_change: PendingChange | None = None


class Rationale(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reason of a decision. `cause`: the fact that led to it, or the pod. `gain_s`, `cost_s`:
    the training time (s) that it saves and takes.
    """

    reason: str
    cause: str
    alternatives: Sequence[Alternative] = ()
    gain_s: float = 0.0
    cost_s: float = 0.0


def next_decision(
    job: Job, tasks: Sequence[TaskPlan], batch: int, now: float, rationale: Rationale
) -> AllocationDecided:
    """Return the next decision about a job. Its generation rises only if tasks, nodes or batch
    change.
    """
    generation = job.next_generation if needs_new_generation(job, tasks, batch) else job.generation
    return AllocationDecided(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=generation,
        revision=job.revision + 1,
        request=job.request,
        tasks=tuple(tasks),
        batch=batch,
        reason=rationale.reason,
        alternatives=tuple(rationale.alternatives),
        gain_s=_bounded_s(rationale.gain_s),
        cost_s=_bounded_s(rationale.cost_s),
        cause=rationale.cause,
        off_s=min(downtime_s(job, now), LONGEST_S),
        checkpoint_folder=job.checkpoint_folder,
        decided_s=now,
    )


def grant_tasks(
    situation: Situation, tasks: Sequence[TaskPlan], batch: int, rationale: Rationale
) -> Verdict:
    """Return the verdict that gives a job these tasks."""
    action = next_decision(situation.job, tasks, batch, situation.now, rationale)
    return Verdict(why=rationale.reason, action=action)


def _bounded_s(seconds: float) -> float:
    """Return a time that a message can hold; 0 for NaN and infinity, because JSON has neither."""
    if not math.isfinite(seconds):
        return 0.0
    return max(-MOST_MEASURED, min(seconds, MOST_MEASURED))


def needs_new_generation(job: Job, tasks: Sequence[TaskPlan], batch: int) -> bool:
    """Return True if these tasks differ from the newest decision's in more than their resources."""
    newest = job.decided.get(job.generation)
    if newest is None or newest.batch != batch:
        return True
    return _places(newest.tasks) != _places(tasks)


def _places(tasks: Sequence[TaskPlan]) -> set[tuple[str, int, int, str]]:
    """Return each task with its node, without its resources."""
    return {(task.role, task.index, task.serial, task.node) for task in tasks}
