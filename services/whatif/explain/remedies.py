"""Changes that somebody could make so that the job gets more: room, priority, other bounds.

Of each the smallest that helps is searched for. All are tried where everything in flight has landed
and nobody waits for time (`waiting.grounds`), by the decision itself, so that room which others
would take first does not count. If none helps by itself, other bounds together with one of the
others are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from services.allocator.bisection import least
from services.allocator.job import Job
from services.allocator.policies.contract import Size
from services.allocator.proposal import Effect
from services.allocator.rules import Rules
from services.allocator.seen import size_of
from services.allocator.state import State
from services.whatif.explain.aftermath import Outcome, amount, held, outcome
from services.whatif.explain.change import (
    Adds,
    AnyChange,
    Opens,
    Raises,
    Widens,
    bounds_of,
    changed,
)
from services.whatif.explain.explanation import Means, holding
from services.whatif.explain.rooms import added, freed, largest, open_nodes
from shared.messages import CapacityChanged, Span

STEPS_MOST = 64
"""Bounds and priorities are moved by so much at most."""
OPENED_MOST = 8
"""The number of closed nodes that are tried."""
Bounds = Callable[[Job, int], Widens]


class Bench:
    """One job in one state, and the decisions about it when something is different."""

    def __init__(
        self,
        state: State,
        key: str,
        now: float,
        rules: Rules,
        given: tuple[AnyChange, ...] = (),
    ) -> None:
        self.before = state
        self.state = changed(state, key, given)
        self.key = key
        self.now = now
        self.rules = rules
        self.given = given

    @property
    def job(self) -> Job:
        return self.state.jobs[self.key]

    def outcome(self, *changes: AnyChange, to_the_end: bool = False) -> Outcome:
        """Decide with these changes, beside the given ones, until the job gets more. `to_the_end`:
        go on then, to see the effects on other jobs.
        """
        state = changed(self.state, self.key, changes)
        return outcome(state, self.key, self.now, self.rules, to_the_end)

    def reason(self, *changes: AnyChange) -> str:
        """Return the reason of the job after the changes."""
        return self.outcome(*changes).why.get(self.key, "")

    def helps(self, change: AnyChange) -> bool:
        return self.outcome(change).given is not None

    def means(self, *changes: AnyChange) -> Means | None:
        """Return the changes as means, or None if they do not help."""
        found = self.outcome(*changes).given
        if found is None:
            return None
        return Means(changes=(*self.given, *changes), gives=holding(found))


def remedies(state: State, key: str, now: float, rules: Rules) -> tuple[Means, ...]:
    """Return the means that help alone; if there is none, other bounds with one other change."""
    bench = Bench(state, key, now, rules)
    found = list(_means_beside_bounds(bench))
    bounds = _bounds(bench)
    if bounds is not None:
        found.append(bounds)
    if found:
        return tuple(found)
    together = _bounds_with_another(bench)
    return () if together is None else (together,)


def hindrance(state: State, key: str, now: float, rules: Rules) -> str:
    """Return the reason why the job gets no more.

    It is followed by the reason that would be left with all the room and bounds that it could want,
    if that is another one.
    """
    bench = Bench(state, key, now, rules)
    wide = _more_of_both(bench.job, STEPS_MOST)
    plenty = Bench(state, key, now, rules, (wide,))
    room = Adds(nodes=1, shape=largest(plenty.job))
    reason = bench.reason()
    with_plenty = plenty.reason(room)
    if with_plenty == reason:
        return reason
    return f"{reason}; with more room and larger bounds: {with_plenty}"


def _means_beside_bounds(bench: Bench) -> Iterator[Means]:
    """Yield the means other than bounds: room on a node, a closed node, more nodes, priority."""
    for search in (freed, _opened_node, added):
        change = search(bench)
        if change is None:
            continue
        means = bench.means(change)
        if means is not None:
            yield means
    means = _priority(bench)
    if means is not None:
        yield means


def _bounds_with_another(bench: Bench) -> Means | None:
    """Return other bounds with the first of the other means that helps."""
    kinds = (
        (_more_workers, 1),
        (_more_of_both, 1),
        (_more_of_both, STEPS_MOST),
    )
    for bounds, step in kinds:
        change = bounds(bench.job, step)
        wide = Bench(bench.before, bench.key, bench.now, bench.rules, (change,))
        found = next(_means_beside_bounds(wide), None)
        if found is not None:
            return found
    return None


def _opened_node(bench: Bench) -> Opens | None:
    """Return the node with most free cores of those that take no tasks, if one is enough."""
    for node in _closed_nodes(bench.state)[:OPENED_MOST]:
        change = Opens(node=node.node)
        if bench.helps(change):
            return change
    return None


def _closed_nodes(state: State) -> list[CapacityChanged]:
    """Return the nodes that take no tasks, those with most free cores first."""
    takes = open_nodes(state)
    closed = [node for node in state.nodes.values() if node.node not in takes]
    closed.sort(key=lambda node: (-node.free.cpu, node.node))
    return closed


# ---------------------------------------------------------------- priority


def _priority(bench: Bench) -> Means | None:
    """Return the lowest priority that helps, and the jobs that would have less by it."""
    change = _least_priority(bench)
    if change is None:
        return None
    means = bench.means(change)
    if means is None:
        return None
    return replace(means, others=_losers(bench, change))


def _least_priority(bench: Bench) -> Raises | None:
    """Return the lowest priority that helps."""
    own = bench.job.request.priority
    highest = max(job.request.priority for job in bench.state.jobs.values())
    most = max(STEPS_MOST, highest - own + 1)

    def raised_by(step: int) -> Raises:
        return Raises(priority=own + step)

    step = least(most, lambda step: step > 0 and bench.helps(raised_by(step)))
    return raised_by(step) if step else None


def _losers(bench: Bench, change: AnyChange) -> tuple[Effect, ...]:
    """Return the other jobs that have less in the end than without the change."""
    without = bench.outcome(to_the_end=True)
    beside = bench.outcome(change, to_the_end=True)

    losers = []
    for key, job in without.state.jobs.items():
        other = beside.state.jobs.get(key)
        if key == bench.key or other is None:
            continue
        if amount(held(other)) < amount(held(job)):
            effect = Effect(
                job=key,
                without=_wanted_size(job),
                beside=_wanted_size(other),
                why=beside.why.get(key, ""),
            )
            losers.append(effect)
    return tuple(losers)


def _wanted_size(job: Job) -> Size | None:
    return size_of(job.wanted) if job.wanted else None


# ---------------------------------------------------------------- bounds


def _bounds(bench: Bench) -> Means | None:
    """Return the first kind of other bounds that helps, by its smallest step.

    A job that waits could also start smaller.
    """
    kinds: tuple[Bounds, ...] = (_more_workers, _more_ps, _more_of_both)
    if bench.job.wanted is None:
        kinds = (_less_of_both,)
    for bounds in kinds:
        means = _least_step(bench, bounds)
        if means is not None:
            return means
    return None


def _least_step(bench: Bench, bounds: Bounds) -> Means | None:
    """Return the smallest step of the bounds that helps."""
    step = least(STEPS_MOST, lambda step: step > 0 and bench.helps(bounds(bench.job, step)))
    if not step:
        return None
    return bench.means(bounds(bench.job, step))


def _more_workers(job: Job, step: int) -> Widens:
    """Return the job's bounds with a maximum of workers that is higher by the step."""
    workers = _more(job.request.workers, step)
    return replace(bounds_of(job.request), workers=workers)


def _more_ps(job: Job, step: int) -> Widens:
    """Return the job's bounds with a maximum of ps that is higher by the step."""
    ps = _more(job.request.ps, step)
    return replace(bounds_of(job.request), ps=ps)


def _more_of_both(job: Job, step: int) -> Widens:
    """Return the job's bounds with maxima of ps and workers that are higher by the step, and with 1
    + step times the largest batch.
    """
    request = job.request
    batch = request.batch
    return Widens(
        ps=_more(request.ps, step),
        workers=_more(request.workers, step),
        batch=replace(batch, max=batch.max * (1 + step)),
    )


def _less_of_both(job: Job, step: int) -> Widens:
    """Return the job's bounds with minima of ps and workers that are lower by the step, but at
    least 1, so that it can start with less.
    """
    ps = _less(job.request.ps, step)
    workers = _less(job.request.workers, step)
    return replace(bounds_of(job.request), ps=ps, workers=workers)


def _more(span: Span, step: int) -> Span:
    return replace(span, max=span.max + step)


def _less(span: Span, step: int) -> Span:
    return replace(span, min=max(1, span.min - step))
