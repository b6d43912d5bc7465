"""What became of one job, written down as it happens."""

from __future__ import annotations

from dataclasses import dataclass, field

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
