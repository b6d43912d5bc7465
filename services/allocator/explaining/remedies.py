"""What somebody could do so that the job gets more: room, priority, other bounds. Each is searched for its smallest.

All are tried where everything in flight has landed and nobody waits for time (`waiting.grounds`), by the decision
itself, so that room which others would take first does not count. If none helps by itself, other bounds together with
one of the others are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from services.allocator.bisection import least
from services.allocator.explaining.aftermath import Outcome, amount, held, outcome
from services.allocator.explaining.change import Adds, AnyChange, Opens, Raises, Widens, bounds_of, changed
from services.allocator.explaining.explanation import Means, holding
from services.allocator.explaining.rooms import added, freed, largest, open_nodes
from services.allocator.job import Job
from services.allocator.proposal import Effect
from services.allocator.rules import Rules
from services.allocator.seen import size_of
from services.allocator.state import State
from shared.messages import Span

STEPS_MOST = 64
"""Bounds and priorities are moved by so much at most."""
OPENED_MOST = 8
"""So many closed nodes are looked at."""
Bounds = Callable[[Job, int], Widens]


class Bench:
    """One job in one state, and what decisions give it when something is otherwise."""

    def __init__(self, state: State, key: str, now: float, rules: Rules, given: tuple[AnyChange, ...] = ()) -> None:
        self.state, self.key, self.now, self.rules, self.given = changed(state, key, given), key, now, rules, given
        self.before = state

    @property
    def job(self) -> Job:
        return self.state.jobs[self.key]

    def outcome(self, *changes: AnyChange, to_the_end: bool = False) -> Outcome:
        return outcome(changed(self.state, self.key, changes), self.key, self.now, self.rules, to_the_end)

    def helps(self, change: AnyChange) -> bool:
        return self.outcome(change).given is not None

    def means(self, *changes: AnyChange) -> Means | None:
        """None where they do not help."""
        found = self.outcome(*changes).given
        return Means(changes=(*self.given, *changes), gives=holding(found)) if found else None


def remedies(state: State, key: str, now: float, rules: Rules) -> tuple[Means, ...]:
    bench = Bench(state, key, now, rules)
    found = [*_of_others(bench), *filter(None, [_bounds(bench)])]
    return tuple(found or _together(bench))


def hindrance(state: State, key: str, now: float, rules: Rules) -> str:
    """Why it gets no more: as it is; and, where that is another reason, with all the room and bounds it could want."""
    bench = Bench(state, key, now, rules)
    wide = _more_of_both(bench.job, STEPS_MOST)
    plenty = Bench(state, key, now, rules, (wide,))
    as_it_is, with_all = bench.outcome(), plenty.outcome(Adds(nodes=1, shape=largest(plenty.job)))
    reasons = dict.fromkeys(found.why.get(key, "") for found in (as_it_is, with_all))
    return "; with more room and larger bounds: ".join(reasons)


def _of_others(bench: Bench) -> Iterator[Means]:
    for change in (freed(bench), _opened(bench), added(bench)):
        if change is not None and (means := bench.means(change)):
            yield means
    if means := _priority(bench):
        yield means


def _together(bench: Bench) -> Iterator[Means]:
    """Other bounds, and then the first of the others that helps."""
    for bounds, step in ((_more_workers, 1), (_more_of_both, 1), (_more_of_both, STEPS_MOST)):
        wide = Bench(bench.before, bench.key, bench.now, bench.rules, (bounds(bench.job, step),))
        found = next(_of_others(wide), None)
        if found is not None:
            yield found
            return


def _opened(bench: Bench) -> Opens | None:
    """The node with most cores free of those that take no tasks, if one is enough."""
    takes = open_nodes(bench.state)
    closed = sorted((n for n in bench.state.nodes.values() if n.node not in takes), key=lambda n: (-n.free.cpu, n.node))
    return next((change for change in (Opens(node=n.node) for n in closed[:OPENED_MOST]) if bench.helps(change)), None)


# ---------------------------------------------------------------- priority


def _priority(bench: Bench) -> Means | None:
    """The lowest that helps, and who would have less by it."""
    own, others = bench.job.request.priority, [j.request.priority for j in bench.state.jobs.values()]
    most = max(STEPS_MOST, max(others) - own + 1)
    step = least(most, lambda higher: higher > 0 and bench.helps(Raises(priority=own + higher)))
    means = bench.means(Raises(priority=own + step)) if step else None
    return replace(means, others=_losers(bench, means.changes[-1])) if means else None


def _losers(bench: Bench, change: AnyChange) -> tuple[Effect, ...]:
    """Who has less in the end than without the change."""
    without, beside = (bench.outcome(*changes, to_the_end=True) for changes in ((), (change,)))
    losers = []
    for key, job in without.state.jobs.items():
        other = beside.state.jobs.get(key)
        if key != bench.key and other and amount(held(other)) < amount(held(job)):
            sizes = [size_of(one.wanted) if one.wanted else None for one in (job, other)]
            losers.append(Effect(job=key, without=sizes[0], beside=sizes[1], why=beside.why.get(key, "")))
    return tuple(losers)


# ---------------------------------------------------------------- bounds


def _bounds(bench: Bench) -> Means | None:
    """The first kind of other bounds that helps, by its smallest step. One that waits could also start smaller."""
    waits = bench.job.wanted is None
    kinds: tuple[Bounds, ...] = (_less_of_both,) if waits else (_more_workers, _more_ps, _more_of_both)
    return next((means for means in (_stepped(bench, bounds) for bounds in kinds) if means), None)


def _stepped(bench: Bench, bounds: Bounds) -> Means | None:
    step = least(STEPS_MOST, lambda step: step > 0 and bench.helps(bounds(bench.job, step)))
    return bench.means(bounds(bench.job, step)) if step else None


def _more_workers(job: Job, step: int) -> Widens:
    return replace(bounds_of(job.request), workers=_more(job.request.workers, step))


def _more_ps(job: Job, step: int) -> Widens:
    return replace(bounds_of(job.request), ps=_more(job.request.ps, step))


def _more_of_both(job: Job, step: int) -> Widens:
    return Widens(
        ps=_more(job.request.ps, step),
        workers=_more(job.request.workers, step),
        batch=replace(job.request.batch, max=job.request.batch.max * (1 + step)),
    )


def _less_of_both(job: Job, step: int) -> Widens:
    ps, workers = job.request.ps, job.request.workers
    return replace(bounds_of(job.request), ps=_less(ps, step), workers=_less(workers, step))


def _more(span: Span, step: int) -> Span:
    return replace(span, max=span.max + step)


def _less(span: Span, step: int) -> Span:
    return replace(span, min=max(1, span.min - step))
