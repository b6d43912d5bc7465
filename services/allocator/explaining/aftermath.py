"""What comes of a state if nothing else happens: decide, take what was decided for true, and decide again.

    trained(state)     each generation in flight has taken over, and the nodes list just the pods that are wanted
    rested(state)      the last pause of every job, and its last abandoned generation, lie a day back
    outcome(state)     both, after each decision, with timers of 0, until the job is given more or nothing moves

So a counterfactual need not wait: what holds a job for a time only does not hold it here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from services.allocator.cluster_quotas import quotas_after
from services.allocator.decide import Decisions, decide
from services.allocator.job import OF_JOB, Job
from services.allocator.placing.amounts import less, plus, together
from services.allocator.rules import Rules
from services.allocator.state import State, apply
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobFinished,
    OwnPod,
    Resources,
    TaskPlan,
    TrainingResumed,
)
from shared.subjects import ORDERS

ROUNDS = 4
"""Decisions after each other that are looked at: one gives room, the next takes it."""
DAY_S = 86_400.0
DIGITS = 6
"""Of cores and GiB: what sums of decimal fractions are worth."""
Amount = tuple[int, float, int]
"""Devices, cores, tasks; of two amounts the larger one is more."""


class Outcome(msgspec.Struct, frozen=True):
    """The first decision that gives the job more (None: none does), why jobs are as they are then, and the state."""

    given: AllocationDecided | None
    why: dict[str, str]
    state: State


def amount(tasks: Iterable[TaskPlan]) -> Amount:
    whole = tuple(tasks)
    cpu = sum(task.resources.cpu for task in whole)
    return sum(task.resources.gpu for task in whole), round(cpu, DIGITS), len(whole)


def held(job: Job) -> tuple[TaskPlan, ...]:
    """What is decided and has not ended."""
    return tuple(task for task in job.wanted.tasks if job.exit_of(task) is None) if job.wanted else ()


def given_more(found: Decisions, job: Job) -> AllocationDecided | None:
    """The decision about this job, if there is one and it gives more than the job holds."""
    mine = [a for a in found.actions if isinstance(a, AllocationDecided) and a.key() == job.key]
    return next((action for action in mine if amount(action.tasks) > amount(held(job))), None)


def outcome(state: State, key: str, now: float, rules: Rules, to_the_end: bool = False) -> Outcome:
    """`to_the_end`: go on when the job was given more, to see what becomes of the others."""
    job, given, why = state.jobs[key], None, dict[str, str]()
    state, rules = rested(trained(state, now), now), without_timers(rules)
    for _ in range(ROUNDS):
        found = decide(state, now, rules)
        given, why = given or given_more(found, job), found.why
        if not found.actions or (given and not to_the_end):
            break
        state = rested(trained(said(state, found.actions, now), now), now)
    return Outcome(given, why, state)


def without_timers(rules: Rules) -> Rules:
    return replace(rules, window_s=0.0, max_delay_s=0.0, cooldown_s=0.0, backoff_s=0.0, settle_s=0.0)


def said(state: State, actions: Iterable[AllocationDecided | JobFinished], now: float) -> State:
    for action in actions:
        state = apply(state, action, ORDERS, state.sequences.get(ORDERS, 0) + 1, now)
    return state


def rested(state: State, now: float) -> State:
    return replace(state, jobs={key: _rested(job, now - DAY_S) for key, job in state.jobs.items()})


def _rested(job: Job, since_s: float) -> Job:
    """The very same one, if it is so already: what is known of it is kept by that."""
    done = job.resumed_s == since_s and not job.abandonments
    return job if done else replace(job, resumed_s=since_s, abandonments=0)


# ---------------------------------------------------------------- what was decided comes true


def trained(state: State, now: float, keys: Collection[str] | None = None) -> State:
    """Of these jobs, or of all, what is in flight trains; pods are where they are wanted, and nowhere else."""
    flying = [job for key, job in state.jobs.items() if job.coming is not None and (keys is None or key in keys)]
    state = replace(state, jobs=state.jobs | {job.key: _resumed(job, now) for job in flying})
    own = _own(state.jobs.values())
    after = replace(state, nodes={name: _listing(node, own.get(name, ())) for name, node in state.nodes.items()})
    return replace(after, quotas=quotas_after(state, after))


def _resumed(job: Job, now: float) -> Job:
    fact = TrainingResumed(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=job.coming or 0,
        step=job.progress.step if job.progress else 0,
        samples=job.progress.samples if job.progress else 0,
    )
    resumed: Job = OF_JOB[TrainingResumed](job, fact, now)
    return resumed


def _own(jobs: Iterable[Job]) -> dict[str, list[OwnPod]]:
    """Each node's pods."""
    own: dict[str, list[OwnPod]] = {}
    for job in jobs:
        for task in held(job):
            pod = OwnPod(
                namespace=job.request.namespace, job=job.request.job, pod=job.pod(task), resources=task.resources
            )
            own.setdefault(task.node, []).append(pod)
    return own


def _listing(node: CapacityChanged, own: Iterable[OwnPod]) -> CapacityChanged:
    """The node with these pods of ours, and what they leave free of what there is for us."""
    pods = tuple(own)
    if pods == node.own:
        return node
    free = less(plus(node.free, all_have(node.own)), all_have(pods))
    return replace(node, own=pods, free=rounded(free))


def all_have(pods: Iterable[OwnPod]) -> Resources:
    return together(pod.resources for pod in pods)


def rounded(amount: Resources) -> Resources:
    return replace(amount, cpu=round(amount.cpu, DIGITS), memory_gib=round(amount.memory_gib, DIGITS))
