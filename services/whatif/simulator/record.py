"""The history of one job, written down as it happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from services.allocator.readings import counted
from services.whatif.simulator.scenario import Work
from shared.messages import AllocationDecided, Outcome

SizeChange = tuple[float, int, int, int]
"""A time; from then on, the number of ps and of workers, and the batch."""


@dataclass
class Record:
    """The history of one job."""

    work: Work
    started_s: float | None = None
    finished_s: float | None = None
    outcome: Outcome | None = None
    resizes: int = 0
    paused_s: float = 0.0
    """The time for which the job stood still after its first step."""
    sizes: list[SizeChange] = field(default_factory=list)
    """An entry for each change of the size, and for the end."""

    def decided(self, decision: AllocationDecided, now: float) -> None:
        """Note the size of a decision, if it is another one."""
        ps = counted(decision, "ps")
        workers = counted(decision, "worker")
        size = (ps, workers, decision.batch)
        if self.sizes and self.sizes[-1][1:] == size:
            return
        self.sizes.append((now, *size))

    def resumed(self, now: float, stopped_s: float) -> None:
        """Note that a generation trains: the first starts the job, a later one is a resize."""
        if self.started_s is None:
            self.started_s = now
            return
        self.resizes += 1
        self.paused_s += max(0.0, now - stopped_s)

    def over(self, outcome: Outcome, now: float) -> None:
        """Note the end of the job."""
        self.finished_s = now
        self.outcome = outcome
        self.sizes.append((now, 0, 0, 0))

    @property
    def completed(self) -> bool:
        """True if the job succeeded."""
        return self.outcome == "succeeded"

    @property
    def completion_s(self) -> float | None:
        """Seconds from submission to the end, waiting included; None if it was not completed."""
        if not self.completed or self.finished_s is None:
            return None
        return self.finished_s - self.work.submitted_s

    def longest_wait_s(self, ended_s: float) -> float:
        """Return the longest time without tasks, up to the end of the job, or of the run."""
        end_s = ended_s if self.finished_s is None else self.finished_s
        longest_s = 0.0
        since_s = self.work.submitted_s  # infinite while it has tasks
        # The end counts as a change to a size with tasks.
        for at_s, ps, workers, _ in (*self.sizes, (end_s, 0, 1, 0)):
            if ps + workers == 0:
                since_s = min(since_s, at_s)
            elif since_s < inf:
                waited_s = min(at_s, end_s) - since_s
                longest_s = max(longest_s, waited_s)
                since_s = inf
        return longest_s
