"""Remedies: changes by a person that give the job more: capacity, priority, or other bounds.

For each kind of change the search finds the smallest one that helps. Every change is tried with the
decision itself, on a state in which all hand-overs are complete and no timer runs
(`waiting.settled_states`). So capacity that other jobs would take first does not count. If no
single change helps, other bounds are combined with one of the others.

The missing capacity is on an existing node, or on additional nodes. Cores, GiB and devices are
reduced one after the other, as long as the decision still gives the job more. So less of one of
them, with the others unchanged, does not help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from services.allocator.placement.amounts import multiply, smallest_enough, subtract, total_of
from services.allocator.placement.claims import ReachableNodes
from services.allocator.placement.free_capacity import free_nodes
from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.policy_view import size_of
from services.allocator.state.state import State
from services.whatif.explain.counterfactual import (
    DIGITS,
    Adds,
    AnyChange,
    Frees,
    Opens,
    Outcome,
    Raises,
    Widens,
    amount_of_tasks,
    apply_changes,
    bounds_of,
    find_outcome,
    held_tasks,
    total_of_pods,
)
from services.whatif.explain.explanation import Means, tasks_held
from services.whatif.proposal import Effect
from shared.bounds import within_bounds
from shared.messages import CapacityChanged, Resources, RoleResources, Span

STEPS_MOST = 64
"""The largest change of bounds and priorities that is tried. Priorities go higher if another job's
is higher.
"""
OPENED_MOST = 8
"""The largest number of closed nodes that are tried."""
Bounds = Callable[[Job, int], Widens]


class Trial:
    """One job in one state, and the decisions about it after further changes."""

    def __init__(
        self,
        state: State,
        key: str,
        now: float,
        rules: Rules,
        given: tuple[AnyChange, ...] = (),
    ) -> None:
        self.before = state
        self.state = apply_changes(state, key, given)
        self.key = key
        self.now = now
        self.rules = rules
        self.given = given

    @property
    def job(self) -> Job:
        return self.state.jobs[self.key]

    def outcome(self, *changes: AnyChange, to_the_end: bool = False) -> Outcome:
        """Decide with these changes, in addition to the given ones, until the job gets more.
        `to_the_end`: go on after that, to see the effects on other jobs.
        """
        state = apply_changes(self.state, self.key, changes)
        return find_outcome(state, self.key, self.now, self.rules, to_the_end)

    def reason(self, *changes: AnyChange) -> str:
        """Return the reason of the job after the changes."""
        return self.outcome(*changes).why.get(self.key, "")

    def helps(self, change: AnyChange) -> bool:
        return self.outcome(change).given is not None

    def means(self, *changes: AnyChange) -> Means | None:
        """Return the changes as means; None if they do not help."""
        found = self.outcome(*changes).given
        if found is None:
            return None
        return Means(changes=(*self.given, *changes), gives=tasks_held(found))


def find_remedies(state: State, key: str, now: float, rules: Rules) -> tuple[Means, ...]:
    """Return the single changes that help; if none does, other bounds with one other change."""
    bench = Trial(state, key, now, rules)
    found = list(_means_beside_bounds(bench))
    bounds = _wider_bounds(bench)
    if bounds is not None:
        found.append(bounds)
    if found:
        return tuple(found)
    together = _bounds_with_another(bench)
    return () if together is None else (together,)


def find_obstacle(state: State, key: str, now: float, rules: Rules) -> str:
    """Return the reason why the job gets no more.

    The reason that remains with enough room and wider bounds follows, if it is another one.
    """
    bench = Trial(state, key, now, rules)
    wide = _more_of_both(bench.job, STEPS_MOST)
    plenty = Trial(state, key, now, rules, (wide,))
    room = Adds(nodes=1, shape=largest_request(plenty.job))
    reason = bench.reason()
    with_plenty = plenty.reason(room)
    if with_plenty == reason:
        return reason
    return f"{reason}; with more room and larger bounds: {with_plenty}"


def _means_beside_bounds(bench: Trial) -> Iterator[Means]:
    """Yield the means other than bounds: room on a node, a closed node, more nodes, priority."""
    for search in (least_freed_room, _opened_node, fewest_added_nodes):
        change = search(bench)
        if change is None:
            continue
        means = bench.means(change)
        if means is not None:
            yield means
    means = _priority_change(bench)
    if means is not None:
        yield means


def _bounds_with_another(bench: Trial) -> Means | None:
    """Return other bounds with the first of the other means that helps."""
    kinds = (
        (_more_workers, 1),
        (_more_of_both, 1),
        (_more_of_both, STEPS_MOST),
    )
    for bounds, step in kinds:
        change = bounds(bench.job, step)
        wide = Trial(bench.before, bench.key, bench.now, bench.rules, (change,))
        found = next(_means_beside_bounds(wide), None)
        if found is not None:
            return found
    return None


def _opened_node(bench: Trial) -> Opens | None:
    """Return the closed node with the most free cores with which the job gets more; None if there
    is none.
    """
    for node in _closed_nodes(bench)[:OPENED_MOST]:
        change = Opens(node=node.node)
        if bench.helps(change):
            return change
    return None


def _closed_nodes(bench: JobTrial) -> list[CapacityChanged]:
    """Return the closed nodes that could take the job's tasks, the most free cores first."""
    takes = usable_nodes(bench)
    takes |= ReachableNodes(bench.state, bench.rules).unreachable_nodes(bench.job)
    closed = [node for node in bench.state.nodes.values() if node.node not in takes]
    closed.sort(key=lambda node: (-node.free.cpu, node.node))
    return closed


# ---------------------------------------------------------------- priority


def _priority_change(bench: Trial) -> Means | None:
    """Return the lowest priority that helps, and the jobs that would have less because of it."""
    change = _least_priority(bench)
    if change is None:
        return None
    means = bench.means(change)
    if means is None:
        return None
    return replace(means, others=_shrunk_jobs(bench, change))


def _least_priority(bench: Trial) -> Raises | None:
    """Return the lowest priority that helps."""
    own = bench.job.request.priority
    highest = max(job.request.priority for job in bench.state.jobs.values())
    most = max(STEPS_MOST, highest - own + 1)

    def raised_by(step: int) -> Raises:
        return Raises(priority=own + step)

    step = smallest_enough(most, lambda step: step > 0 and bench.helps(raised_by(step)))
    return raised_by(step) if step else None


def _shrunk_jobs(bench: Trial, change: AnyChange) -> tuple[Effect, ...]:
    """Return the other jobs that would have less with the change than without it, in the end."""
    without = bench.outcome(to_the_end=True)
    beside = bench.outcome(change, to_the_end=True)

    losers = []
    for key, job in without.state.jobs.items():
        other = beside.state.jobs.get(key)
        if key == bench.key or other is None:
            continue
        if amount_of_tasks(held_tasks(other)) < amount_of_tasks(held_tasks(job)):
            effect = Effect(
                job=key,
                without=_wanted_size(job),
                beside=_wanted_size(other),
                why=beside.why.get(key, ""),
            )
            losers.append(effect)
    return tuple(losers)


def _wanted_size(job: Job) -> Size | None:
    return size_of(job.newest_decision) if job.newest_decision else None


# ---------------------------------------------------------------- bounds


def _wider_bounds(bench: Trial) -> Means | None:
    """Return the first kind of other bounds that helps, with the smallest step that helps.

    For a waiting job, these are smaller minima.
    """
    kinds: tuple[Bounds, ...] = (_more_workers, _more_ps, _more_of_both)
    if bench.job.newest_decision is None:
        kinds = (_less_of_both,)
    for bounds in kinds:
        means = _least_step(bench, bounds)
        if means is not None:
            return means
    return None


def _least_step(bench: Trial, bounds: Bounds) -> Means | None:
    """Return the smallest step of the bounds that helps; None if no step helps."""
    step = smallest_enough(
        STEPS_MOST, lambda step: step > 0 and bench.helps(bounds(bench.job, step))
    )
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


STEP = 0.01
"""The smallest difference of cores and of GiB."""
NODES_LOOKED_AT = 4
SHAPES_LOOKED_AT = 4
NODES_MOST = 64
"""The most additional nodes that are tried."""
Room = Callable[[Resources], AnyChange]


class JobTrial(Protocol):
    """One job in one state, and a test whether a change helps it."""

    state: State
    rules: Rules

    @property
    def job(self) -> Job: ...
    def helps(self, change: AnyChange) -> bool: ...


def least_freed_room(bench: JobTrial) -> Frees | None:
    """Return the least additional capacity on one node that helps. It is a part of what pods of
    others hold there now. Return None if all of it is not enough.
    """
    found = []
    for node in _candidate_nodes(bench):
        free_on_node = partial(_free_on, node.node)
        everything = foreign_resources(node)
        if bench.helps(free_on_node(everything)):
            least_room = _tightest_room(bench, everything, free_on_node)
            found.append(free_on_node(least_room))
    return min(found, key=lambda change: _room_order(change.more), default=None)


def fewest_added_nodes(bench: JobTrial) -> Adds | None:
    """Return the smallest number of additional nodes of an existing shape that helps; if there is
    none, one node of a new shape.
    """
    found = []
    for like in _node_shapes(bench):
        change = _node_count(bench, like)
        if change is not None:
            found.append(change)
    if found:
        return min(found, key=_cores_in_all)
    large = largest_request(bench.job)
    if not bench.helps(_one_of(large)):
        return None
    least_shape = _tightest_room(bench, large, _one_of)
    return _one_of(least_shape)


def usable_nodes(bench: JobTrial) -> set[str]:
    """Return the names of the nodes that take tasks of the job."""
    reach = ReachableNodes(bench.state, bench.rules)
    takes = {node.name for node in free_nodes(bench.state) if node.open}
    return (takes | reach.tolerated_nodes(bench.job)) - reach.unreachable_nodes(bench.job)


def foreign_resources(node: CapacityChanged) -> Resources:
    """Return the resources that pods of others have on a node."""
    taken = subtract(node.allocatable, node.free)
    return subtract(taken, total_of_pods(node.own))


def _free_on(node: str, more: Resources) -> Frees:
    return Frees(node=node, more=more)


def _one_of(shape: Resources) -> Adds:
    return Adds(nodes=1, shape=shape)


def _cores_in_all(change: Adds) -> tuple[float, int, str]:
    """Return the sort key of added nodes: the cores of all of them, their number, then the name of
    the node that they are like.
    """
    return change.nodes * change.shape.cpu, change.nodes, change.like


def _candidate_nodes(bench: JobTrial) -> list[CapacityChanged]:
    """Return the nodes with pods of others, the most free cores first.

    Of nodes that are alike, only one is returned.
    """
    takes = usable_nodes(bench)
    alike: dict[tuple[Resources, Resources, bool], CapacityChanged] = {}
    for node in sorted(bench.state.nodes.values(), key=_most_free_first):
        taken = foreign_resources(node)
        if node.node not in takes or taken == Resources():
            continue
        beside = _has_pods_of(bench.job, node)
        alike.setdefault((node.free, taken, beside), node)
    return list(alike.values())[:NODES_LOOKED_AT]


def _has_pods_of(job: Job, node: CapacityChanged) -> bool:
    """Return True if the node lists a pod of the job. Placement prefers such a node to another one
    with the same free capacity.
    """
    return any(f"{own.namespace}.{own.job}" == job.key for own in node.own)


def _most_free_first(node: CapacityChanged) -> tuple[float, float, str]:
    """Return the sort key that puts the node with most free cores first, then the one with most
    free memory, then by name.
    """
    return -node.free.cpu, -node.free.memory_gib, node.node


def _node_shapes(bench: JobTrial) -> list[CapacityChanged]:
    """Return one node of each shape, the first by name, of the nodes that the job may use. If there
    are many shapes, only the largest are returned.
    """
    outside = ReachableNodes(bench.state, bench.rules).unreachable_nodes(bench.job)
    alike: dict[Resources, CapacityChanged] = {}
    for node in sorted(bench.state.nodes.values(), key=lambda node: node.node):
        if node.node in outside:
            continue
        alike.setdefault(node.allocatable, node)
    by_size = sorted(alike.values(), key=lambda node: _room_order(node.allocatable))
    return by_size[-SHAPES_LOOKED_AT:]


def _node_count(bench: JobTrial, like: CapacityChanged) -> Adds | None:
    """Return the smallest number of additional nodes of this shape that helps."""

    def more(nodes: int) -> Adds:
        return Adds(nodes=nodes, shape=like.allocatable, like=like.node)

    nodes = smallest_enough(NODES_MOST, lambda nodes: nodes > 0 and bench.helps(more(nodes)))
    return more(nodes) if nodes else None


def largest_request(job: Job) -> Resources:
    """Return the resources of the whole job at its largest size, within the bounds of one node."""
    request = job.request
    sizes = request.resources or RoleResources()
    every_ps = multiply(sizes.ps, request.ps.max)
    every_worker = multiply(sizes.worker, request.workers.max)
    return within_bounds(total_of([sizes.chief, every_ps, every_worker]))


def _tightest_room(bench: JobTrial, enough: Resources, change: Room) -> Resources:
    """Return the smallest room that is still enough: the least cores, then GiB, then devices."""
    enough = _least_of(bench, enough, "cpu", STEP, change)
    enough = _least_of(bench, enough, "memory_gib", STEP, change)
    return _least_of(bench, enough, "gpu", 1, change)


def _least_of(
    bench: JobTrial, enough: Resources, name: str, step: float, change: Room
) -> Resources:
    """Return the room with the least amount of one resource, in steps, that is still enough."""
    has = getattr(enough, name)
    steps = math.ceil(round(has / step, DIGITS))

    def at(n: int) -> Resources:
        amount = min(has, round(n * step, DIGITS))
        return replace(enough, **{name: amount})

    fewest = smallest_enough(steps, lambda n: bench.helps(change(at(n))))
    return enough if fewest is None else at(fewest)


def _room_order(room: Resources) -> tuple[int, float, float]:
    return room.gpu, room.cpu, room.memory_gib
