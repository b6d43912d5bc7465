"""Which larger size a job tries, in room that nobody else has a use for.

The auction goes by what is likely. A job that is likely to gain nothing more stays as it is, and what its model does
not know of larger sizes it never learns: on an idle cluster, too, where all that there is to lose are two pauses. So
what the auction leaves is offered once more, by what is to be expected where a size that proves slower is given up
again (expected improvement: `models/search.py`):

    a size is tried  <=>  it gains `GAIN` or more, and saves more than `PAUSES` pauses of what is left to do

Nobody tries while a job of the same policy waits, but for its quota, or where what is free will be wanted soon
(`Field.rest`). Of a program one job tries at a time, the one with most left to do, and a size once: what it shows holds
for all. Who has just paused waits as for any growth (`pauses.py`). Ours. Others believe an optimistic model until they
know better (Pollux, OSDI 2021), for contended room as well; that was worse where room is short.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from services.allocator.kept import Kept, KeptTogether
from services.allocator.models.search import expected_gain
from services.allocator.models.speed import Array, Points
from services.allocator.placing.amounts import ROUNDING
from services.allocator.policies.contract import Size
from services.allocator.policies.weir.grid import points
from services.allocator.policies.weir.hull import Config
from services.allocator.policies.weir.pauses import PAUSES, settled_s
from services.allocator.policies.weir.programs import Program, program
from services.allocator.policies.weir.staircase import larger
from services.allocator.policies.weir.stand import Stand, config_of, held, pays_from, vector

GAIN = 0.2
"""Of its speed, in the mean of what a size may prove to be. With less, tries were as often in the way as of use."""


def tries(stands: Sequence[Stand], places: Iterable[int], left: Array, now: float) -> dict[int, Config]:
    """What is tried, by place. `places`: some of those of `longest`, of which each has what it wants; `left`: to each
    job [jobs, (cores, GiB, devices)]. A config's speed is what is to be expected of it.
    """
    left, found = left.copy(), {}
    for n in places:
        s = stands[n]
        config = next((c for c in _promising(s) if (_more(s, c) <= left[n] + ROUNDING).all()), None)
        if config and now >= settled_s(s.job.since_s, s.job.pause_s or 0.0, 1.0 - s.speed / config.speed):
            left -= _more(s, config)
            found[n] = config
    return found


def _all_longest(stands: Sequence[Stand]) -> list[int]:
    """The place of each program's running job with most left to do; of no program of which a job has a size that it
    has not told the speed of, as something will be learned anyway.
    """
    found: dict[Program, int] = {}
    names = program.each([s.job for s in stands])
    running = [n for n, s in enumerate(stands) if s.job.size]
    for n in sorted(running, key=lambda n: stands[n].left_s or 0.0):
        found.pop(names[n], None)  # so that its program comes last
        found[names[n]] = n
    unheard = {names[n] for n in running if not _heard(stands[n])}
    return [n for name, n in reversed(found.items()) if name not in unheard]


longest: KeptTogether[tuple[()], Stand, list[int]] = KeptTogether(_all_longest)


def _heard(s: Stand) -> bool:
    return any((Size(o.ps, o.workers), o.batch) == (s.job.size, s.job.batch) for o in s.job.observed)


def _more(s: Stand, config: Config) -> Array:
    """Cores, GiB, devices."""
    return np.array([config.cpu, config.memory_gib, config.gpu]) - vector(held(s.job))


def _all_promising(s: Stand) -> tuple[Config, ...]:
    """By falling gain; none where nothing is known of its work."""
    if not s.left_s or not s.speed or not len(sizes := _untried(s)):
        return ()
    at = points([s.fitted], sizes[None], [s.together])
    mean, spread = s.fitted.predict(Points(at.rows[0], s.fitted.observed.device))
    worth = np.log([s.job.worth(batch) for batch in sizes[:, 2].astype(int).tolist()])
    gains = expected_gain(mean + worth, spread, math.log(s.speed))
    speeds = s.speed * np.exp(gains)
    least = max((1.0 + GAIN) * s.speed, pays_from(PAUSES * s.pause_s, s.speed, s.left_s * s.best))
    order = [n for n in np.argsort(-speeds, kind="stable").tolist() if speeds[n] >= least]
    told = zip(sizes[order].astype(int).tolist(), speeds[order].tolist(), strict=True)
    return tuple(_config(s, Size(ps, workers), batch, speed) for (ps, workers, batch), speed in told)


def _config(s: Stand, size: Size, batch: int, speed: float) -> Config:
    """Devices that one node could hold stand on one, or it is not tried: apart they are taken to gain nothing."""
    config, gathers = config_of(s, size, batch, speed), not size.ps and 1 < size.workers <= s.together
    return replace(config, apart=s.speed) if gathers else config


_promising: Kept[Stand, tuple[Config, ...]] = Kept(_all_promising)


def _untried(s: Stand) -> Array:
    """Larger sizes [sizes, 3], of which no job of its program has shown the speed."""
    sizes = larger(s.job, s.fitted, s.node)
    shown = {*map(tuple, s.fitted.observed.rows[:, :3].tolist())}
    return sizes[[tuple(row) not in shown for row in sizes.tolist()]]
