"""How long each epoch took: a fold of its own, because the read model thins what was reported. Pure.

An epoch ends when the first report says that it is complete: exact to the time between two reports, a second as a rule.
One that was rolled back ends when it is complete again. The first begins with the first update.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from services.allocator.simulator.log_file import Told
from shared.messages import ProgressReported, TrainingResumed


class Passes(msgspec.Struct, frozen=True):
    """Of one job, by its uid. `ends`: when each complete epoch was over, by its number from 1."""

    uid: int = -1
    began_s: float = 0.0
    epoch: int = 0
    ends: dict[int, float] = {}

    @property
    def seconds(self) -> list[float]:
        """Of each complete epoch, in their order; pauses in it included."""
        ends = [at for _, at in sorted(self.ends.items())]
        return [later - earlier for earlier, later in pairwise([self.began_s, *ends])]


def heard(passes: Passes, told: Told) -> Passes:
    """With one more message of this job, or of a later one with its name."""
    said = told.message
    if not isinstance(said, TrainingResumed | ProgressReported) or said.uid < passes.uid:
        return passes
    if said.uid > passes.uid:
        passes = Passes(said.uid, told.at_s)
    if isinstance(said, ProgressReported) and said.epoch != passes.epoch:
        fresh = {number: told.at_s for number in range(passes.epoch + 1, said.epoch + 1)}
        kept = {number: at for number, at in passes.ends.items() if number <= said.epoch}
        return msgspec.structs.replace(passes, epoch=said.epoch, ends=kept | fresh)
    return passes
