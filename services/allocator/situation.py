"""One job in one pass: the argument of every step of `decide`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from services.allocator.job import Job
from services.allocator.placing.placement import Placing, Room, place
from services.allocator.placing.resizing import wanted_sizes
from services.allocator.placing.trial import Placed, PlacementRequest, Shortage, try_place
from services.allocator.policies.contract import JobSeen, Size, Want
from services.allocator.releases import NOTHING, Coming
from services.allocator.rules import Rules
from services.allocator.timing import Wish
from shared.messages import AllocationDecided, RoleResources, TaskPlan

Attempt = tuple[Sequence[TaskPlan], Size, Size]
"""The tasks that a job keeps, and the largest and the smallest size to place it at."""


class Situation(msgspec.Struct, frozen=True):
    """`room`: what is free at this step. `cause`: the fact that made the state what it is.
    `opened_s`: when the newest node came, or came back. `target`: what the job's policy wants for
    it; None: nothing, or it was not asked yet. `wish`: the change that was wanted in the last pass.
    `coming`: what is being released. `seen`: the job as its policy sees it.
    """

    job: Job
    seen: JobSeen
    room: Room
    now: float
    settings: Rules
    cause: str
    opened_s: float = 0.0
    target: Want | None = None
    wish: Wish | None = None
    coming: Coming = NOTHING

    @property
    def current(self) -> AllocationDecided | None:
        """The decision that runs; None: the job waits, or its first generation is in flight."""
        return self.job.runs

    @property
    def size(self) -> Size:
        """The size of the newest decision; no task: there is none."""
        return self.seen.size or Size(0, 0)

    @property
    def newest(self) -> AllocationDecided | None:
        """The newest decision: of the generation in flight, else of the one that runs."""
        return self.job.wanted

    def sizes(self, target: Want | None = None) -> RoleResources:
        """Return how large each task is to be: as a policy wants it, or else as it is."""
        return wanted_sizes(self.job, target.sizes if target else None, self.settings)

    def trial(
        self,
        keep: Sequence[TaskPlan],
        most: Size,
        least: Size | None = None,
        sizes: RoleResources | None = None,
        how: Placing = place,
        avoid: frozenset[str] = frozenset(),
    ) -> Placed | Shortage:
        """Place the job at the largest size from `most` down to `least` (None: only at `most`),
        beside the tasks that it keeps, with new tasks of these sizes (None: as its tasks are).
        """
        return try_place(self.room, self.request(keep, most, least, sizes, how, avoid))

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
        how: Placing = place,
        avoid: frozenset[str] = frozenset(),
    ) -> PlacementRequest:
        """Return what `trial` places."""
        job = self.job
        return PlacementRequest(
            job=job.key,
            keep=keep,
            most=most,
            least=least or most,
            sizes=sizes or self.sizes(),
            serial=job.serials,
            how=how,
            avoid=avoid,
            quota=self.settings.quotas.get(job.request.namespace),
        )
