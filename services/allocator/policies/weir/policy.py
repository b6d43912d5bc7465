"""Weir's own policy, the default: the smallest mean completion time that restarts leave worth having.

    1. Each job's staircase: its speeds by size and batch, by the model fitted to all jobs of its program, on their
       concave hull over cost (`staircase.py`).
    2. Each job's price: what a second less of its work saves all jobs together (`pricing.py`, heSRPT).
    3. The room, step by step, to whoever gains most price x speed for its cost (`auction.py`); first steps are
       gang floors: of those that run, then of those for which all would wait in the end, then of the others by their
       price. What a job has counts more, so that nobody is robbed for a trifle; who has just paused may shrink, but
       not grow, until what it may gain is more than another pause.
    4. Where that passes over those that may not be overtaken any more (`patience.py`): once more, with these
       first in all that jobs would not keep anyway.
    5. What is left goes to who may gain by a larger size, though that is not likely (`trying.py`).

From the seeds: free room is used (Config Manager), but for a little that waits for who comes next; by a fitted model
that a growth path refines (Dike), what remains to be learned counts (FlowCon's and Optimus' loss-awareness enter by the
remaining work), gain per cost decides (DLRover), size and batch are chosen together for all jobs (IBM). The prices are
what none of them has.

The combination is ours. One job: `stand.py`; all of them: `field.py`. A job of which nothing is known yet
is taken to be like the median of those that are. A namespace's quota is a second room from which its jobs' steps are
taken, so that what it may not use goes to others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import attrgetter

import numpy as np

from services.allocator.kept import Kept, KeptTogether
from services.allocator.models.speed import Array
from services.allocator.placing.amounts import UNITS, WORDS, together
from services.allocator.policies.contract import JobSeen, Node, Size, Want
from services.allocator.policies.weir.auction import NONE, Ints, granted
from services.allocator.policies.weir.field import Field, limited
from services.allocator.policies.weir.hindrance import Cause, Hindrance, hindrances
from services.allocator.policies.weir.hull import Config
from services.allocator.policies.weir.instead import instead
from services.allocator.policies.weir.programs import program
from services.allocator.policies.weir.stand import KEEP, Stand, all_held, config_of, fills, held, stands_in, vector
from services.allocator.policies.weir.trying import longest, tries
from shared.messages import Alternative, Resources
from shared.words import lasting


def weir(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    there = everything(cluster, jobs)
    stands = stands_in(rounded(there), largest(cluster))((), jobs)
    free = [s for s in stands if s.steps and not s.job.busy]
    none = [_nowhere(s) for s in stands if not s.steps and s.job.size is None]
    if not free:
        return none
    room = vector(there) - sum((vector(held(s.job)) for s in stands if s.job.busy or not s.steps), np.zeros(3))
    field, rooms = _field((), free), np.concatenate([room, *_purses(stands)])
    offers = field.offers(now)
    given = _given(field, offers, rooms, now)
    hindered = hindrances(field.stairs, offers, rooms, given, field.runs)
    wants = [*map(_wanted, free, _known.each(free), given.tolist(), hindered)]
    if content := _content(stands, free, wants, hindered):
        for n, config in tries(free, content, field.rest(rooms, given, now), now).items():
            wants[n] = _tried(free[n], config)
    return [*none, *wants]


def _content(
    stands: Sequence[Stand], free: Sequence[Stand], wants: Sequence[Want], hindered: Sequence[Hindrance | None]
) -> list[int]:
    """Places of those that may try: they have what they want and want no more, nobody waits for room, and of their
    program nothing is in flight.
    """
    if any(map(_waits_for_room, free, hindered)):
        return []
    changing = {program(s.job) for s in stands if s.job.busy}
    alone = [n for n in longest((), free) if hindered[n] is None and program(free[n].job) not in changing]
    return [n for n in alone if (wants[n].size, wants[n].batch) == (free[n].job.size, free[n].job.batch)]


def _waits_for_room(s: Stand, hindered: Hindrance | None) -> bool:
    """It may be granted a step, and yet not stand anywhere: what is free in sum may lie scattered."""
    return s.job.size is None and not (hindered and hindered.cause == "quota")


def _given(field: Field, offers: Array, rooms: Array, now: float) -> Ints:
    """Which step each job gets: by worth alone, and where that passes over who is late, once more."""
    first, leaves, late = field.first(now), field.leaves(now), field.late(now)
    given = granted(field.stairs, offers, rooms, first, leaves)
    if all(given[n] != NONE for n in late):
        return given
    return granted(field.stairs, field.late_first(offers, late, given), rooms, first, leaves)


_field: KeptTogether[tuple[()], Stand, Field] = KeptTogether(Field)


def _purses(stands: Sequence[Stand]) -> list[Array]:
    """What each namespace that has a quota may spread among its jobs that may change, in the order of `limited`."""
    rest: dict[str, list[Array]] = {}
    for s in stands:
        if s.job.quota is not None and (s.job.busy or not s.steps):
            rest.setdefault(s.job.request.namespace, []).append(vector(held(s.job)))
    quotas = limited([s.job for s in stands if s.steps and not s.job.busy])
    return [vector(quota.most()) - sum(rest.get(space, []), np.zeros(3)) for space, quota in quotas.items()]


def everything(cluster: Sequence[Node], jobs: Sequence[JobSeen]) -> Resources:
    """What is free, and what these jobs hold."""
    takes = [node for node in cluster if node.open]
    free = [node.free for node in takes]
    if len(takes) == len(cluster):
        return together([*free, all_held((), jobs)])
    closed = {node.name for node in cluster if not node.open}
    return together([*free, *(task.resources for job in jobs for task in job.tasks if task.node not in closed)])


def largest(cluster: Sequence[Node]) -> Resources:
    """The node with most devices, then most cores, empty."""
    return _largest((), [node.allocatable for node in cluster if node.open])


_largest: KeptTogether[tuple[()], Resources, Resources] = KeptTogether(
    lambda shapes: max(shapes, key=attrgetter("gpu", "cpu", "memory_gib"), default=Resources())
)


def rounded(there: Resources) -> Resources:
    """To two digits: a share need not be exact, and what is kept by it stays, while the cluster changes little."""
    return Resources(cpu=_two(there.cpu), memory_gib=_two(there.memory_gib), gpu=int(_two(there.gpu)))


def _two(amount: float) -> float:
    return float(f"{amount:.1e}")


# ---------------------------------------------------------------- what is said


Others = tuple[Alternative, ...]
Lesser = Callable[[Size, int], Want]
Wants = dict[tuple[int, Hindrance | None], Want]


def _wanted(s: Stand, known: Wants, at: int, hindered: Hindrance | None) -> Want:
    """What is wanted where this step is granted, and none more; the very same, as long as that and its stand are."""
    if want := known.get((at, hindered)):
        return want
    known.clear()
    want = known[at, hindered] = _waits(s, hindered) if at == NONE else _want(s, at, hindered)
    return want


_known: Kept[Stand, Wants] = Kept(lambda s: {})


def _want(s: Stand, at: int, hindered: Hindrance | None) -> Want:
    config = s.steps[at]
    others = (_other(s.steps[at + 1], f"it {why_not(hindered)}"),) if hindered else ()
    same = (config.size, config.batch) == (s.job.size, s.job.batch)
    if s.job.size and not same and config.cost >= s.cost * (1 - 1e-9) and config.speed < (1 + KEEP) * s.speed:
        reason = f"keeps what it has: {_too_little(s, config)}"
        return _said(s, s.job.size, s.job.batch, reason, others)
    if same:
        return _said(s, config.size, config.batch, _kept(s, at, hindered), others, _foreseen(s, config))
    return _to_have(s, config, others, partial(_lesser, s))


def _tried(s: Stand, config: Config) -> Want:
    gain = config.speed / s.speed - 1
    reason = (
        f"tries {config.size.told()} in room that is free: faster or not, but in the mean {gain:.0%} faster, if what "
        "proves slower is given up again"
    )
    return _said(s, config.size, config.batch, reason, (), _foreseen(s, config), partial(_in_vain, s))


def _in_vain(s: Stand, size: Size, batch: int) -> Want:
    """It tries all of a size or nothing."""
    return _said(s, size, batch, "tries no part of a size", (), (1.0, None))


def _lesser(s: Stand, size: Size, batch: int) -> Want:
    """What is said where there is no room for more than this."""
    return _to_have(s, config_of(s, size, batch))


def _to_have(s: Stand, config: Config, others: Others = (), lesser: Lesser | None = None) -> Want:
    return _said(s, config.size, config.batch, _gained(s, config), others, _foreseen(s, config), lesser)


def _foreseen(s: Stand, config: Config) -> tuple[float | None, float | None]:
    """So many times as fast as now, and so many where its devices stand apart."""
    if not s.speed:
        return None, None
    return config.speed / s.speed, config.apart / s.speed if config.apart is not None else None


RESOURCES = tuple(WORDS.values())
NOTICED = 0.005
"""Less is told as 0 %."""
SAID_KEPT = 4096
"""Words of so many gains."""
WHY_NOT: dict[Cause, str] = {
    "pause": "would be another pause too soon",
    "next": "would leave too little for who comes next",
    "room": "would take {} more than is left on the nodes",
    "quota": "would take {} more than is left of its namespace's quota",
    "others": "would take more than is left on the nodes, and others gain more by what they have",
}
"""Of a size, by what hinders it; with how much is short."""


def why_not(hindered: Hindrance) -> str:
    amounts = zip(hindered.short, UNITS.values(), strict=True)
    return WHY_NOT[hindered.cause].format(" and ".join(f"{short:g} {unit}" for short, unit in amounts if short))


def _gained(s: Stand, config: Config) -> str:
    room = f"{config.cost:.0%} of the {RESOURCES[config.scarce]} that jobs of this policy may have"
    if s.left_s is None:
        return f"there is no better use of {room}, by what is known before it runs"
    gives = s.job.size and config.cost < s.cost * (1 - 1e-9)
    rest = f"; what it gives up is for who gains more by it, now or when they come{_rather(s, config)}" if gives else ""
    return f"{config.speed:,.0f} examples/s with {room}, of which there is no better use{rest}"


def _rather(s: Stand, config: Config) -> str:
    """Of who gives up workers alone, or ps alone, what the other role would have cost; nothing where that could not
    give as much, or would have been no slower.
    """
    other = instead(s, config)
    slower = 1 - other.speed / config.speed if other and config.speed else 0.0
    return f"; with {other.size.told()} it would be {slower:.0%} slower" if other and slower > NOTICED else ""


def _kept(s: Stand, at: int, hindered: Hindrance | None) -> str:
    if hindered:
        return f"keeps what it has: {s.steps[at + 1].size.told()} {why_not(hindered)}"
    if fills(s):
        return "keeps what it has: another task would be more than there is on the nodes"
    if s.unrepaid and s.unrepaid.speed > (1 + NOTICED) * s.speed > 0:
        return f"keeps what it has: {_too_little(s, s.unrepaid)}"
    if s.job.size == s.job.most:
        return "keeps what it has, which is the most that it may have"
    return "keeps what it has: as far as is known, no larger size that it may have would be faster"


def _too_little(s: Stand, config: Config) -> str:
    """Of a size for which it is not changed; by the speeds that say so (`stand.py`)."""
    short = config.speed < (1 + KEEP) * s.speed
    return _told(config.ps, config.workers, round(100 * (config.speed / s.speed - 1)), None if short else s.pause_s)


@lru_cache(SAID_KEPT)
def _told(ps: int, workers: int, percent: int, pause_s: float | None) -> str:
    would = f"{Size(ps, workers).told()} would be {abs(percent)}% {'slower' if percent < 0 else 'faster'}"
    if pause_s is None:
        return f"{would}, and below {KEEP:.0%} it does not change"
    return f"{would}, which does not repay a pause of {lasting(pause_s, fine=True)} in what it has left to do"


def _waits(s: Stand, hindered: Hindrance | None) -> Want:
    """Nothing is left at its price: one that runs goes down to its least, one that waits goes on waiting."""
    least, why = s.steps[0], why_not(hindered) if hindered else ""
    if s.job.size is None:
        return _said(s, Size(0, 0), s.job.request.batch.start, f"waits: a chief, {least.size.told()} {why}")
    return _said(s, least.size, least.batch, f"has its least: even that {why}")


def _nowhere(s: Stand) -> Want:
    """It waits for a larger cluster, and the allocator says for what."""
    return _said(s, s.job.least, s.job.request.batch.start, "as soon as its least fits")


def _said(
    s: Stand,
    size: Size,
    batch: int,
    reason: str,
    others: Others = (),
    foreseen: tuple[float | None, float | None] = (None, None),
    lesser: Lesser | None = None,
) -> Want:
    return Want(
        job=s.job.key,
        ps=size.ps,
        workers=size.workers,
        batch=batch,
        reason=reason,
        alternatives=others,
        faster=foreseen[0],
        speed_now=s.speed or None,
        apart=foreseen[1],
        lesser=lesser,
    )


def _other(config: Config, why: str) -> Alternative:
    return Alternative(ps=config.size.ps, workers=config.size.workers, batch=config.batch, why=why)
