"""What each decision foresaw, and what came, by the same formula (`services/allocator/payback.py`). Pure.

foreseen   saved = remaining / v - remaining / v',  for a pause of so many seconds
came       saved = remaining / v - remaining / v''

remaining  examples that were left when it was decided                                      [examples]
v, v''     measured: examples a second of the generation before, and of the one that came   [examples/s]
v'         what was foreseen; from `saved`, `remaining` and `v` by the first formula        [examples/s]
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from services.board.derived import Outcome, outcomes
from services.board.story import Story


class Came(msgspec.Struct, frozen=True, kw_only=True):
    """A decision beside what came of it. `number` counts from 1; `remaining`: examples, as last reported before it.

    None: not known, or nothing was foreseen.
    """

    number: int
    outcome: Outcome
    remaining: int | None = None

    @property
    def foreseen_speed(self) -> float | None:
        before, gain_s = self.outcome.before, self.outcome.decision.gain_s
        if not (before and gain_s and self.remaining):
            return None
        left_s = self.remaining / before - gain_s
        return self.remaining / left_s if left_s > 0 else None

    @property
    def saved_s(self) -> float | None:
        """Seconds; below 0: it cost time, beside its pause."""
        before, after = self.outcome.before, self.outcome.after
        return self.remaining / before - self.remaining / after if before and after and self.remaining else None


def foresights(story: Story) -> Iterator[Came]:
    whole = story.view.total_samples
    for number, outcome in enumerate(outcomes(story), start=1):
        told = [report for report in story.reports if report.at_s <= outcome.decision.at_s]
        left = max(whole - told[-1].samples, 0) if told and whole else None
        yield Came(number=number, outcome=outcome, remaining=left)
