"""The laws that every decision has to keep, whatever happened before it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import msgspec

from services.allocator.placement.amounts import subtract
from services.allocator.state.job import GENERATIONS_LOST, Job
from services.allocator.state.policy_view import size_of
from services.allocator.state.state import State
from services.launcher.actions import CreatePod
from services.launcher.pods import pod_manifest
from services.launcher.settings import Settings
from services.local.scheduler import NodeInfo, filter_reasons, pod_requirements
from shared.bus import subjects
from shared.messages import AllocationDecided, JobRequested, Resources, Span, TaskPlan
from tests.allocator.fuzz.world import World, actions

QUIET_ROUNDS = 24
"""The number of rounds without new facts after which every job must be at rest.

Some policies change step by step: FlowCon halves the surplus of a task of a million cores in each
round.
"""
QUIET_S = 250.0
"""The time between two rounds, in seconds."""
DUST = 1e-6


def check(world: World) -> None:
    state, decided = world.before, world.decided
    assert decided.why.keys() == state.jobs.keys() and all(decided.why.values()), (
        "no job without a reason"
    )
    assert decided.wake_s is None or math.isfinite(decided.wake_s)
    said = Counter(action.key() for action in decided.actions)
    assert all(times == 1 for times in said.values()), "one decision a job"
    for action in decided.actions:
        assert (
            subjects.decode_message(subjects.subject_of(action), subjects.encode_message(action))
            == action
        ), "can be said"
        if isinstance(action, AllocationDecided):
            job = state.jobs[action.key()]
            if not action.tasks:
                gives_way(job, action, state)
                continue
            within_bounds(job, action)
            whole(job, action)
            on_usable_nodes(job, action, state)
    within_nodes(world)
    within_quotas(world)


def gives_way(job: Job, action: AllocationDecided, state: State) -> None:
    """Check a suspension: by the user, or of an elastic job for a waiting one of higher priority.

    A suspension is repeated if pods of the job go on as if it had not been read.
    """
    if job.suspension is not None:
        assert not job.decided and (action.batch, action.revision) == (0, job.revision + 1)
        assert action.generation >= job.suspension.generation
        return
    assert (action.batch, action.revision) == (0, job.revision + 1)
    if job.suspended_by_user:
        assert (
            job.active_decision is not None
            and job.pending_generation is None
            and _is_next(job, action.generation)
        )
        return
    asked, waiting = job.request, [other for other in state.jobs.values() if _waits(other)]
    assert asked.ps.min < asked.ps.max or asked.workers.min < asked.workers.max
    assert any(
        other.request.priority > asked.priority and other.key in action.reason for other in waiting
    )
    assert job.active_decision is not None and job.pending_generation is None
    assert (action.batch, action.revision) == (0, job.revision + 1) and _is_next(
        job, action.generation
    )


def _waits(job: Job) -> bool:
    """Return True if a job has no decision yet, or stands still because it lost tasks."""
    return job.newest_decision is None or job.stands_still


def within_quotas(world: World) -> None:
    """Check that the resources promised to the jobs of each namespace are within its quota.

    Each task counts with the most that any decision gives it.
    """
    for namespace, quota in world.rules.quotas.items():
        jobs = [job for job in world.state.jobs.values() if job.request.namespace == namespace]
        given = [each for job in jobs for each in promised_to(job)]
        for of in ("cpu", "memory_gib", "gpu"):
            most_of, all_of = getattr(quota, of), math.fsum(getattr(each, of) for each in given)
            assert most_of is None or all_of <= most_of + DUST, (namespace, of, most_of, given)


def promised_to(job: Job) -> list[Resources]:
    """Return the resources of each task that is wanted and has not ended."""
    wanted = [
        task
        for decision in (job.active_decision, job.pending_decision)
        if decision
        for task in decision.tasks
    ]
    alive = {task.serial for task in wanted if job.pod(task) not in job.exits}
    return [most(*(task.resources for task in wanted if task.serial == serial)) for serial in alive]


def within_bounds(job: Job, action: AllocationDecided) -> None:
    """Check that a decision is within the bounds of its job, including the gang floor.

    If the user changed the bounds, the job may be outside, but not further than before.
    """
    size, asked, had = (
        size_of(action),
        job.request,
        size_of(job.newest_decision) if job.changed and job.newest_decision else None,
    )
    assert _is_within(size.ps, asked.ps, had.ps if had else asked.ps.min), (asked.ps, size)
    assert _is_within(size.workers, asked.workers, had.workers if had else asked.workers.min), (
        asked.workers,
        size,
    )
    assert asked.batch.min <= action.batch <= asked.batch.max, (asked.batch, action.batch)
    assert math.isfinite(action.gain_s) and math.isfinite(action.cost_s)


def _is_within(number: int, span: Span, had: int) -> bool:
    return min(span.min, had) <= number <= max(span.max, had)


def whole(job: Job, action: AllocationDecided) -> None:
    """Check the roles, indices, serials, generation and revision of a decision.

    There is at most one chief; indices have no gaps; a serial always means the same task; the
    revision rises and the generation never falls.
    """
    for role in ("chief", "ps", "worker"):
        indices = [task.index for task in action.tasks if task.role == role]
        assert indices == list(range(len(indices))) and (role != "chief" or indices == [0])
    serials = [task.serial for task in action.tasks]
    assert len(set(serials)) == len(serials)
    known = {task.serial: task for decision in job.decided.values() for task in decision.tasks}
    for task in action.tasks:
        before = known.get(task.serial)
        assert (
            (task.serial >= job.serials)
            if before is None
            else (before.node, before.role) == (task.node, task.role)
        )
    assert action.revision == job.revision + 1
    assert action.generation == job.generation or _is_next(job, action.generation)


def on_usable_nodes(job: Job, action: AllocationDecided, state: State) -> None:
    """Check that new tasks are on nodes that their pod may use.

    Selector, affinity and tolerations are read as by the Kubernetes scheduler.
    """
    pod = {"spec": pod_constraints(job.request)}
    known = {task.serial for decision in job.decided.values() for task in decision.tasks}
    for task in action.tasks:
        if task.serial in known:
            continue
        node = state.nodes[task.node]
        seen = NodeInfo(
            name=node.node,
            labels=node.labels,
            taints=tuple(msgspec.to_builtins(taint) for taint in node.taints),
            cordoned=not node.schedulable,
            allocatable={},
            free={"pods": 1},
        )
        assert not filter_reasons(pod_requirements(pod), seen), (task, node.labels, node.taints)


def pod_constraints(request: JobRequested) -> dict[str, Any]:
    """Return the part of a pod's spec that restricts its nodes."""
    task = TaskPlan(role="worker", index=0, serial=1, node="n0", resources=Resources())
    decision = AllocationDecided(
        job=request.job, uid=1, revision=1, request=request, tasks=(task,), batch=1, reason="-"
    )
    order = CreatePod(decision=decision, task=task, name="pod", owner_uid="uid", grace_s=1.0)
    spec = pod_manifest(order, Settings())["spec"]
    for term in spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]:
        chosen = term["matchFields"].pop()  # the node of this task
        assert chosen["values"] == ["n0"]
    if not request.affinity:
        del spec["affinity"]
    return {key: spec[key] for key in ("affinity", "nodeSelector", "tolerations") if key in spec}


def _is_next(job: Job, generation: int) -> bool:
    """Return True if this generation may follow the job's last one.

    It is the next number. If a report names a generation without a decision, some numbers may be
    skipped, but at most `GENERATIONS_LOST`.
    """
    if job.early is None:
        return generation == job.generation + 1
    return job.generation < generation <= job.generation + GENERATIONS_LOST + 1


def within_nodes(world: World) -> None:
    """Check that new tasks, and the growth of tasks, fit into what is free on each node.

    Earlier promises are deducted from what is free. A node may have shrunk below its promises; then
    no more of that resource may be decided there.
    """
    new: dict[str, list[Resources]] = defaultdict(list)
    listed = shown(world.before)
    for action in actions(world):
        job = world.before.jobs[action.key()]
        for task in action.tasks:
            more = subtract(task.resources, held(job, task, listed))
            if more != Resources():
                new[task.node].append(more)
    promised = promises(world.before)
    for name, wants in new.items():
        node = world.before.nodes[name]
        assert node.ready and node.schedulable, name
        for of in ("cpu", "memory_gib", "gpu"):
            more_of, before = (
                math.fsum(getattr(r, of) for r in rs) for rs in (wants, promised[name])
            )
            assert more_of == 0 or more_of + before <= getattr(node.free, of) + DUST, (
                name,
                of,
                node.free,
                wants,
                before,
            )


def held(job: Job, task: TaskPlan, listed: dict[str, Resources]) -> Resources:
    """Return the most that the task has or was promised."""
    known = [
        t.resources
        for decision in job.decided.values()
        for t in decision.tasks
        if t.serial == task.serial
    ]
    return most(*known, listed.get(job.pod(task), Resources()))


def promises(state: State) -> dict[str, list[Resources]]:
    """Return, by node, what wanted tasks were promised and no node fact shows yet."""
    listed, found = shown(state), defaultdict[str, list[Resources]](list)
    for job in state.jobs.values():
        wanted = [
            task
            for decision in (job.active_decision, job.pending_decision)
            if decision
            for task in decision.tasks
        ]
        for task in {task.serial: task for task in wanted}.values():
            if job.pod(task) not in job.exits:
                has = listed.get(job.pod(task), Resources())
                found[task.node].append(
                    subtract(most(*(t.resources for t in wanted if t.serial == task.serial)), has)
                )
    return found


def shown(state: State) -> dict[str, Resources]:
    return {own.pod: own.resources for node in state.nodes.values() for own in node.own}


def most(*resources: Resources) -> Resources:
    of = {name: max(getattr(r, name) for r in resources) for name in ("cpu", "memory_gib", "gpu")}
    return Resources(**of)


def settles(world: World) -> None:
    """Check that every job comes to rest, and that no earlier allocation returns.

    In each round decisions are carried out and jobs without a speed report one. There are no other
    facts.
    """
    been = [standing(world.state)]
    for _ in range(QUIET_ROUNDS):
        world.settle(0)
        world.first_reports()
        world.now += QUIET_S
        world.decide()
        check(world)
        if not world.decided.actions:
            return
        if standing(world.state) != been[-1]:
            been.append(standing(world.state))
            assert been[-1] not in been[:-1], ("back and forth", been, world.decided.why)
    raise AssertionError(("no rest", been, world.decided.why))


def standing(state: State) -> dict[str, tuple[int, int, int] | None]:
    """Return ps, workers and batch of each job, or None for a job without a decision."""
    wanted = {key: job.newest_decision for key, job in state.jobs.items()}
    return {
        key: (size_of(d).ps, size_of(d).workers, d.batch) if d else None
        for key, d in wanted.items()
    }
