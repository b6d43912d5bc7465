"""What became of one job, written down as it happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from services.allocator.readings import counted
from services.allocator.simulator.scenario import Work
from shared.messages import AllocationDecided, Outcome


@dataclass
class Record:
    """`sizes`: (time, ps, workers, batch) from each decision on; `paused_s`: stood still after its first step."""

    work: Work
    started_s: float | None = None
    finished_s: float | None = None
    outcome: Outcome | None = None
    resizes: int = 0
    paused_s: float = 0.0
    sizes: list[tuple[float, int, int, int]] = field(default_factory=list)

    def decided(self, decision: AllocationDecided, now: float) -> None:
        size = (counted(decision, "ps"), counted(decision, "worker"), decision.batch)
        if not self.sizes or self.sizes[-1][1:] != size:
            self.sizes.append((now, *size))

    def resumed(self, now: float, stopped_s: float) -> None:
        """A generation trains: the first one starts the job, each later one is a resize."""
        if self.started_s is None:
            self.started_s = now
            return
        self.resizes += 1
        self.paused_s += max(0.0, now - stopped_s)

    def over(self, outcome: Outcome, now: float) -> None:
        self.finished_s, self.outcome = now, outcome
        self.sizes.append((now, 0, 0, 0))

    @property
    def completed(self) -> bool:
        return self.outcome == "succeeded"

    @property
    def completion_s(self) -> float | None:
        """From submission to the end, waiting included; None for what was not completed."""
        return self.finished_s - self.work.submitted_s if self.completed and self.finished_s is not None else None

    def longest_wait_s(self, ended_s: float) -> float:
        """The longest time without tasks between its submission and its end, or that of the run."""
        end_s = ended_s if self.finished_s is None else self.finished_s
        waits, since_s = [0.0], self.work.submitted_s
        for at_s, ps, workers, _ in (*self.sizes, (end_s, 0, 1, 0)):
            if ps + workers == 0:
                since_s = min(since_s, at_s)
            elif since_s < inf:
                waits.append(min(at_s, end_s) - since_s)
                since_s = inf
        return max(waits)
