"""Counterfactuals: changes of facts, and the state after them.

`Waits`, `Settles`, `Trains` and `Reports` happen without a person (`waiting.py` tries them); the
other changes need one.

`find_outcome` returns the future of a state if nothing else happens: it decides, assumes that the
decision is carried out, and decides again.

    with_generations_landed   each generation in flight takes over, and the nodes list only the
                              wanted pods
    without_recent_pauses     the last pause of every job was a day ago, and no generation of it
                              was abandoned
    find_outcome              both, after each decision, with timers of 0, until the job is given
                              more or the decision changes nothing

So a counterfactual does not wait: timers and pauses are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.decide import Decisions, decide
from services.allocator.placement.amounts import add, subtract, total_of
from services.allocator.placement.free_capacity import quotas_after
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.state import State, apply, without_tables
from services.whatif.simulator.fake_cluster import own_pods, with_resumed_generation
from shared.bus.subjects import ORDERS
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobFinished,
    JobRequested,
    OwnPod,
    Resources,
    Span,
    TaskPlan,
)


class Change(msgspec.Struct, frozen=True, kw_only=True, tag_field="what"):
    """One fact that would be different."""


class Waits(Change, frozen=True, kw_only=True, tag="waits"):
    """Nothing happens until a certain time (seconds since 1970).

    The allocator decides again when its timers end. A policy's own times have no timer: at such a
    time the allocator decides only if a report or another fact arrives. If a fact arrives earlier,
    the policy may want something else by then.
    """

    until_s: float


class Settles(Change, frozen=True, kw_only=True, tag="settles"):
    """The wanted changes of all these jobs (`<namespace>.<job>`) were decided and carried out."""

    jobs: tuple[str, ...]


class Trains(Change, frozen=True, kw_only=True, tag="trains"):
    """A generation in flight takes over."""

    job: str
    generation: int


class Reports(Change, frozen=True, kw_only=True, tag="reports"):
    """The job reports its speed at its size. `samples_per_second` is the assumed speed."""

    generation: int
    samples_per_second: float


class Frees(Change, frozen=True, kw_only=True, tag="frees"):
    """More is free on a node (`more`): pods of others have left it."""

    node: str
    more: Resources


class Adds(Change, frozen=True, kw_only=True, tag="adds"):
    """There are more nodes, without pods.

    `like` is a node of the same shape; empty if no node has that shape.
    """

    nodes: int
    shape: Resources
    like: str = ""


class Opens(Change, frozen=True, kw_only=True, tag="opens"):
    """A node that takes no tasks (not ready, cordoned or tainted) takes them."""

    node: str


class Raises(Change, frozen=True, kw_only=True, tag="raises"):
    """The request has this priority."""

    priority: int


class Widens(Change, frozen=True, kw_only=True, tag="widens"):
    """The request has these bounds."""

    ps: Span
    workers: Span
    batch: Span


def bounds_of(request: JobRequested) -> Widens:
    """Return the bounds of a request."""
    return Widens(ps=request.ps, workers=request.workers, batch=request.batch)


AnyChange = Waits | Settles | Trains | Reports | Frees | Adds | Opens | Raises | Widens


def apply_changes(state: State, key: str, changes: Iterable[AnyChange]) -> State:
    """Return the state after the changes that need a person.

    A change that happens without a person is ignored.
    """
    for change in changes:
        apply_change = APPLY_CHANGE[type(change)]
        state = apply_change(state, key, change)
    return state


def with_request_fields(state: State, key: str, **fields: Any) -> State:
    """Return the state in which these fields of a job's request are different."""
    job = state.jobs[key]
    request: JobRequested = replace(job.request, **fields)
    jobs = state.jobs | {key: replace(job, request=request)}
    return replace(without_tables(state), jobs=jobs)


def _change_nothing(state: State, key: str, change: Change) -> State:
    return state


def _free_room(state: State, key: str, change: Frees) -> State:
    """Return the state with more free capacity on one node, as if pods of others had left it."""
    node = state.nodes[change.node]
    free = add(node.free, change.more)
    freer = replace(node, free=free)
    return _with_node(state, freer)


def _add_nodes(state: State, key: str, change: Adds) -> State:
    """Return the state with additional empty nodes of one shape. They have the labels of an
    existing node of that shape, if there is one.
    """
    labels = state.nodes[change.like].labels if change.like else {}
    for number in range(change.nodes):
        # Placement looks at a node's name only to break ties.
        name = f"another-{number + 1}"
        node = _empty_node(name, change.shape, labels)
        state = _with_node(state, node)
    return state


def _empty_node(name: str, shape: Resources, labels: dict[str, str]) -> CapacityChanged:
    """Return a node on which no pod runs: all that is allocatable is free."""
    return CapacityChanged(
        node=name,
        node_uid=name,
        seen="-",
        allocatable=shape,
        free=shape,
        labels=labels,
    )


def _open_node(state: State, key: str, change: Opens) -> State:
    """Return the state in which a node is ready, not cordoned and without taints."""
    node = state.nodes[change.node]
    usable = replace(node, ready=True, schedulable=True, taints=())
    return _with_node(state, usable)


def _raise_priority(state: State, key: str, change: Raises) -> State:
    return with_request_fields(state, key, priority=change.priority)


def _widen_bounds(state: State, key: str, change: Widens) -> State:
    """Return the state in which the request has other bounds of ps, workers and batch."""
    return with_request_fields(
        state,
        key,
        ps=change.ps,
        workers=change.workers,
        batch=change.batch,
    )


def _with_node(state: State, node: CapacityChanged) -> State:
    """Return the state with this node added or replaced. Tables that were derived from the previous
    nodes are dropped.
    """
    nodes = state.nodes | {node.node: node}
    return replace(without_tables(state), nodes=nodes)


APPLY_CHANGE: dict[type[Change], Callable[[State, str, Any], State]] = {
    Waits: _change_nothing,
    Settles: _change_nothing,
    Trains: _change_nothing,
    Reports: _change_nothing,
    Frees: _free_room,
    Adds: _add_nodes,
    Opens: _open_node,
    Raises: _raise_priority,
    Widens: _widen_bounds,
}
"""The function that makes each kind of change."""

ROUNDS = 4
"""The most decisions in a row: one frees capacity, the next uses it."""
DAY_S = 86_400.0
DIGITS = 6
"""Decimal digits of cores and GiB that are exact in sums of fractions."""
Amount = tuple[int, float, int]
"""Devices, cores, tasks. Amounts are compared in this order."""


class Outcome(msgspec.Struct, frozen=True):
    """The first decision that gives the job more (None: there is none), with the state (`state`)
    and the reason of each job (`why`) after the last decision.
    """

    given: AllocationDecided | None
    why: dict[str, str]
    state: State


def amount_of_tasks(tasks: Iterable[TaskPlan]) -> Amount:
    """Return the devices, the cores and the number of the tasks."""
    whole = tuple(tasks)
    gpu = sum(task.resources.gpu for task in whole)
    cpu = sum(task.resources.cpu for task in whole)
    return gpu, round(cpu, DIGITS), len(whole)


def held_tasks(job: Job) -> tuple[TaskPlan, ...]:
    """Return the tasks that are decided and have not ended."""
    if job.newest_decision is None:
        return ()
    return tuple(task for task in job.newest_decision.tasks if job.exit_of(task) is None)


def larger_decision(found: Decisions, job: Job) -> AllocationDecided | None:
    """Return the decision that gives this job more than it holds; None if there is none."""
    for action in found.actions:
        if not isinstance(action, AllocationDecided) or action.key() != job.key:
            continue
        if amount_of_tasks(action.tasks) > amount_of_tasks(held_tasks(job)):
            return action
    return None


def find_outcome(
    state: State, key: str, now: float, rules: Rules, to_the_end: bool = False
) -> Outcome:
    """Decide up to `ROUNDS` times, until the job is given more or a decision changes nothing.

    `to_the_end`: go on after the job was given more, to see the effects on the others.
    """
    job = state.jobs[key]
    rules = without_timers(rules)
    state = landed_state(state, now)
    given: AllocationDecided | None = None
    why: dict[str, str] = {}
    for _ in range(ROUNDS):
        found = decide(state, now, rules)
        given = given or larger_decision(found, job)
        why = found.why
        if not found.actions:
            break
        if given and not to_the_end:
            break
        state = fold_actions(state, found.actions, now)
        state = landed_state(state, now)
    return Outcome(given, why, state)


def landed_state(state: State, now: float) -> State:
    """Return the state after all generations in flight took over, without recent pauses."""
    return without_recent_pauses(with_generations_landed(state, now), now)


def without_timers(rules: Rules) -> Rules:
    """Return the rules with every timer at 0 seconds."""
    return replace(
        rules,
        window_s=0.0,
        max_delay_s=0.0,
        cooldown_s=0.0,
        backoff_s=0.0,
        settle_s=0.0,
    )


def fold_actions(
    state: State, actions: Iterable[AllocationDecided | JobFinished], now: float
) -> State:
    """Fold the actions of a decision into the state."""
    for action in actions:
        sequence = state.sequences.get(ORDERS, 0) + 1
        state = apply(state, action, ORDERS, sequence, now)
    return state


def without_recent_pauses(state: State, now: float) -> State:
    """Set the last pause of every job to a day ago, and forget its abandoned generations."""
    since_s = now - DAY_S
    jobs = {}
    for key, job in state.jobs.items():
        if job.resumed_s != since_s or job.abandonments:
            job = replace(job, resumed_s=since_s, abandonments=0)
        jobs[key] = job
    return replace(without_tables(state), jobs=jobs)


# ---------------------------------------------------------------- decisions are carried out


def with_generations_landed(state: State, now: float, keys: Collection[str] | None = None) -> State:
    """Let the generations in flight of these jobs (None: of all) take over.

    After it, the nodes list only the wanted pods.
    """
    jobs = dict(state.jobs)
    for key, job in state.jobs.items():
        if job.pending_generation is None:
            continue
        if keys is None or key in keys:
            jobs[key] = with_resumed_generation(job, job.pending_generation, now)
    before = replace(without_tables(state), jobs=jobs)
    after = replace(before, nodes=_nodes_with_wanted_pods(before))
    return replace(after, quotas=quotas_after(before, after))


def _nodes_with_wanted_pods(state: State) -> dict[str, CapacityChanged]:
    """Return the nodes, each with only the wanted pods."""
    pods = _wanted_pods(state.jobs.values())
    nodes = {}
    for name, node in state.nodes.items():
        nodes[name] = _node_with_pods(node, pods.get(name, ()))
    return nodes


def _wanted_pods(jobs: Iterable[Job]) -> dict[str, list[OwnPod]]:
    """Return the wanted pods of each node."""
    wanted: dict[str, list[OwnPod]] = {}
    for job in jobs:
        request = job.request
        pods_by_node = own_pods(request.namespace, request.job, held_tasks(job))
        for node, pods in pods_by_node.items():
            wanted.setdefault(node, []).extend(pods)
    return wanted


def _node_with_pods(node: CapacityChanged, own: Iterable[OwnPod]) -> CapacityChanged:
    """Return the node with these pods of ours, and with the capacity that they leave free."""
    pods = tuple(own)
    if pods == node.own:
        return node
    ours = add(node.free, total_of_pods(node.own))
    free = subtract(ours, total_of_pods(pods))
    return replace(node, own=pods, free=without_float_errors(free))


def total_of_pods(pods: Iterable[OwnPod]) -> Resources:
    """Return the sum of the resources of pods."""
    return total_of(pod.resources for pod in pods)


def without_float_errors(amount: Resources) -> Resources:
    """Return the amount without the rounding errors of sums of decimal fractions."""
    cpu = round(amount.cpu, DIGITS)
    memory_gib = round(amount.memory_gib, DIGITS)
    return replace(amount, cpu=cpu, memory_gib=memory_gib)
