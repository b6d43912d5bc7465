"""How long each epoch took: a fold of its own, because the read model thins what was reported.
Pure.

    an epoch is over when as many examples as it and those before it have were applied; between two
    reports, at at = before_s + (epochs x size - before) / (samples - before) x (at_s - before_s)

with what the two reports say of time and examples, and `size` the examples of an epoch: the time
between two reports is shared out evenly, and a pause never is. One that was rolled back ends when
it is complete again; the first begins with the first update.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
from msgspec.structs import replace

from services.whatif.event_log import LogEntry
from shared.messages import JobAccepted, ProgressReported, TrainingResumed


class Passes(msgspec.Struct, frozen=True):
    """Of one job, by its uid. `size`: examples of an epoch, 0 before the first report. `ends`: when
    each complete epoch was over, by its number from 1; `last_s`, `last`: time and examples of the
    newest report or a generation's begin.
    """

    uid: int = -1
    epochs: int = 0
    began_s: float | None = None
    ends: dict[int, float] = {}
    last_s: float = 0.0
    last: int = 0
    size: float = 0.0

    @property
    def seconds(self) -> list[float]:
        """Of each complete epoch, in their order; pauses in it included."""
        if self.began_s is None:
            return []
        ends = [at for _, at in sorted(self.ends.items())]
        return [later - earlier for earlier, later in pairwise([self.began_s, *ends])]


def heard(passes: Passes, told: LogEntry) -> Passes:
    """With one more message of this job, or of a later one with its name."""
    said = told.message
    if isinstance(said, JobAccepted) and said.uid > passes.uid:
        return Passes(said.uid, said.request.epochs)
    if not isinstance(said, TrainingResumed | ProgressReported) or said.uid != passes.uid:
        return passes
    if isinstance(said, TrainingResumed):
        return _resumed(passes, said, told.at_s)
    passes = replace(passes, size=said.total_samples / passes.epochs)
    ends = passes.ends | _over(passes, said.samples, told.at_s)
    return replace(passes, ends=ends, last_s=told.at_s, last=said.samples)


def _resumed(passes: Passes, said: TrainingResumed, at_s: float) -> Passes:
    """What was applied behind the last report was so before the pause; what was lost was not."""
    began_s = at_s if passes.began_s is None else passes.began_s
    ends = passes.ends | _over(passes, said.samples, at_s - said.off_s - (said.pause_s or 0.0))
    kept = {number: at for number, at in ends.items() if number * passes.size <= said.samples}
    return replace(passes, began_s=began_s, ends=kept, last_s=at_s, last=said.samples)


def _over(passes: Passes, samples: int, at_s: float) -> dict[int, float]:
    """The epochs that were complete since the last word, and when."""
    more = samples - passes.last
    if more <= 0 or not passes.size:
        return {}
    shares = {
        number: (number * passes.size - passes.last) / more
        for number in range(1, int(samples / passes.size) + 1)
    }
    return {
        number: passes.last_s + part * (at_s - passes.last_s)
        for number, part in shares.items()
        if part > 0
    }
