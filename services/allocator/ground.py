"""Where a running job may stand at another size: beside its tasks, in the room there is."""

from __future__ import annotations

from services.allocator.bisection import least
from services.allocator.job import Job
from services.allocator.placing.gathering import gathered
from services.allocator.placing.lacking import lacking
from services.allocator.placing.placement import Placing, Room, has_room, ladder, place
from services.allocator.placing.resizing import replaced, wanted_sizes
from services.allocator.policies.contract import Size, Want
from services.allocator.rules import Rules
from shared.messages import AllocationDecided, TaskPlan


class Ground:
    """Of one job, for one want: its tasks, how large they are to be, and how those that are new are put somewhere."""

    def __init__(self, job: Job, runs: AllocationDecided, want: Want, room: Room, rules: Rules) -> None:
        self.job, self.keep, self.room = job, runs.tasks, room
        self.sizes = wanted_sizes(job, want.sizes, rules)
        side_by_side: Placing = gathered if want.ps == 0 else place
        self.how = side_by_side if want.sizes is None else replaced

    def take(self, size: Size) -> tuple[TaskPlan, ...] | None:
        """All its tasks at this size, taken from the room; None, and nothing taken, where they do not all fit."""
        return self.how(self.room, self.job.key, self.keep, size, self.sizes, self.job.serials)

    def holds(self, size: Size) -> bool:
        return has_room(self.room, self.job.key, self.keep, size, self.sizes, self.how)

    def lacks(self, size: Size) -> str:
        """What there is too little of, to be put behind `waits for room`."""
        return lacking(self.room, self.job.key, self.keep, size, self.sizes, self.how)

    def largest(self, most: Size, now: Size) -> Size:
        """The largest size from `most` down to `now` for which there is room; nearly always there is none for even one
        task more, which a larger size would want in the same room, too.
        """
        *larger, nearest = ladder(most, now)[:-1] or (now,)
        if nearest == now or not self.holds(nearest):
            return now
        steps = (*larger, nearest)
        given_up = least(len(steps) - 1, lambda n: self.holds(steps[n]))
        return now if given_up is None else steps[given_up]
