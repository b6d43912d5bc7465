"""What each decision foresaw, and what came, by the same formula (`services/allocator/steps/payback.py`).
Pure.

foreseen   saved = remaining / v - remaining / v',  for a pause of so many seconds
came       saved = left / v - left / v'';  in all: saved - slowed - pause

remaining  examples that were left when it was decided                                      [examples]
left       examples that were left when the next generation took over                       [examples]
v, v''     measured: examples a second before the decision, and of the generation that came [examples/s]
v'         what was foreseen; from `saved`, `remaining` and `v` by the first formula        [examples/s]
slowed     by how much what trained got behind while the next was prepared beside it        [s]
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from services.console.board.derived import Outcome, outcomes
from services.console.board.story import Story


class Came(msgspec.Struct, frozen=True, kw_only=True):
    """A decision beside what came of it. `number` counts from 1; `remaining`, `left`: examples, as
    last reported before it and before the hand-over.

    None: not known, or nothing was foreseen.
    """

    number: int
    outcome: Outcome
    remaining: int | None = None
    left: int | None = None

    @property
    def foreseen_speed(self) -> float | None:
        before, gain_s = self.outcome.before, self.outcome.decision.gain_s
        if not (before and gain_s and self.remaining):
            return None
        left_s = self.remaining / before - gain_s
        return self.remaining / left_s if left_s > 0 else None

    @property
    def saved_s(self) -> float | None:
        """Seconds by the speed alone, without what it cost to come there; below 0: it is slower."""
        before, after = self.outcome.before, self.outcome.after
        return (
            self.left / before - self.left / after
            if before and after and self.left is not None
            else None
        )

    @property
    def in_all_s(self) -> float | None:
        """Seconds by which the job is over sooner for it; below 0: later."""
        if self.saved_s is None:
            return None
        return self.saved_s - (self.outcome.slowed_s or 0.0) - (self.outcome.pause_s or 0.0)


def foresights(story: Story) -> Iterator[Came]:
    whole = story.view.total_samples
    for number, outcome in enumerate(outcomes(story), start=1):
        told = [report for report in story.reports if report.at_s <= outcome.decision.at_s]
        by_then = (told[-1].samples if told else None, outcome.applied)
        remaining, left = (max(whole - n, 0) if n is not None and whole else None for n in by_then)
        yield Came(number=number, outcome=outcome, remaining=remaining, left=left)
