"""Make the tables of a state again where facts have changed them. Pure.

Law: the tables that come of one fact after another are those that are made of the state at once.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from services.allocator import failures
from services.allocator.capacity import node_view, promised_tasks, reserved_amounts
from services.allocator.job import Job
from services.allocator.models.kin import by_program, kin_of
from services.allocator.models.past import past_of
from services.allocator.placing.amounts import amounts, minus, together
from services.allocator.placing.order import update_index
from services.allocator.policies.contract import JobList, JobSeen, Quota
from services.allocator.policies.registry import ARRAYS, FITTERS, POLICIES
from services.allocator.policies.weir.policy import largest, rounded
from services.allocator.policies.weir.row_updates import update_rows
from services.allocator.rules import Rules
from services.allocator.seen import seen
from services.allocator.state import State
from services.allocator.stored_models import StoredModels, decode_models, stored_model
from services.allocator.tables import NO_MARKS, Amounts, Marks, Tables
from shared.messages import Resources

WEIR = "weir"
NOTHING = (0.0, 0.0, 0.0)


def refreshed(state: State, rules: Rules) -> State:
    """Return the state with tables that are up to date.

    `rules`: with the cluster's quotas in them (`cluster_quotas.py`).
    """
    tables, marks = state.tables, state.marks
    stored: StoredModels | None = None
    if tables is None or not _is_made_by(tables, rules):
        stored = _stored_models(state, rules)
        tables = _empty_tables(stored, rules)
        every = frozenset(state.jobs)
        marks = Marks(every, frozenset(state.nodes), every, closed=True)
    elif marks == NO_MARKS and tables.quotas == rules.quotas:
        return state
    before = tables
    tables = _with_nodes(tables, state, marks)
    tables = _with_promised(tables, state, marks)
    tables = _with_kins(tables, state, marks)
    changed = _changed_jobs(before, tables, state, marks, rules)
    tables = _with_jobs(tables, state, changed, stored, rules)
    tables = _with_total(before, tables, state, marks, changed)
    tables = _with_order(before, tables, state, changed, rules)
    tables = _with_rows(before, tables, state, changed, rules)
    tables = _with_lists(before, tables)
    return replace(state, tables=tables, marks=NO_MARKS, models=b"")


def _stored_models(state: State, rules: Rules) -> StoredModels | None:
    """Return the models that were stored with the state, if they were fitted by these settings."""
    stored = decode_models(state.models) if state.models else None
    return stored if stored is not None and _is_made_by(stored, rules) else None


def _empty_tables(stored: StoredModels | None, rules: Rules) -> Tables:
    """Return tables without entries, for the cluster and with the programs of the stored models."""
    empty = Tables(policy=rules.policy, oom_memory_factor=rules.oom_memory_factor)
    if stored is None:
        return empty
    return replace(empty, total=stored.total, largest=stored.largest, programs=stored.programs)


def _is_made_by(tables: Tables | StoredModels, rules: Rules) -> bool:
    made_by = (tables.policy, tables.oom_memory_factor)
    return made_by == (rules.policy, rules.oom_memory_factor)


def policy_of(job: Job, rules: Rules) -> str:
    """Return the name of the job's policy: the cluster's, if the job names none that is known."""
    name = job.request.policy or rules.policy
    return name if name in POLICIES else rules.policy


# ---------------------------------------------------------------- nodes


def _with_nodes(tables: Tables, state: State, marks: Marks) -> Tables:
    if not marks.nodes:
        return tables
    nodes = dict(tables.nodes)
    free = dict(tables.free)
    is_same_cluster = True
    for name in marks.nodes:
        seen_node = state.nodes.get(name)
        had = nodes.get(name)
        if seen_node is None:
            nodes.pop(name, None)
            free.pop(name, None)
            is_same_cluster = False
            continue
        view = node_view(seen_node)
        nodes[name] = view
        if view.open:
            free[name] = amounts(view.free)
        else:
            free.pop(name, None)
        if had is None or (had.open, had.allocatable) != (view.open, view.allocatable):
            is_same_cluster = False
    if len(nodes) > len(tables.nodes):
        # In the order of the state, as if all were made at once.
        nodes = {name: nodes[name] for name in state.nodes}
    biggest = tables.largest if is_same_cluster else largest(list(nodes.values()))
    return replace(
        tables,
        index=update_index(tables.index, nodes, marks.nodes),
        free=free,
        largest=biggest,
    )


def _with_promised(tables: Tables, state: State, marks: Marks) -> Tables:
    keys = marks.jobs | marks.listed
    if not keys:
        return tables
    promised = dict(tables.promised)
    for key in keys:
        job = state.jobs.get(key)
        tasks = promised_tasks(job, state.nodes) if job else ()
        if tasks:
            promised[key] = tasks
        else:
            promised.pop(key, None)
    return replace(tables, promised=promised)


# ---------------------------------------------------------------- jobs


def _with_kins(tables: Tables, state: State, marks: Marks) -> Tables:
    if not marks.closed:
        return tables
    past = {}
    for key, end in state.closed.items():
        known = tables.past.get(key)
        past[key] = tuple(past_of(end)) if known is None or key in marks.jobs else known
    return replace(tables, past=past, kins=by_program(state.closed, past))


def _changed_jobs(
    before: Tables, tables: Tables, state: State, marks: Marks, rules: Rules
) -> set[str]:
    """Return the open jobs that policies see otherwise than before."""
    changed = {key for key in marks.jobs if key in state.jobs}
    if before.kins is not tables.kins:
        for key, job in state.jobs.items():
            kin = kin_of(tables.kins, job.request)
            if key not in changed and tables.jobs[key].kin != kin:
                changed.add(key)
    if tables.quotas != rules.quotas:
        for key, job in state.jobs.items():
            space = job.request.namespace
            if tables.quotas.get(space) != rules.quotas.get(space):
                changed.add(key)
    return changed


def _with_jobs(
    tables: Tables,
    state: State,
    changed: Collection[str],
    stored: StoredModels | None,
    rules: Rules,
) -> Tables:
    """Make the entries of changed jobs, with the model that their policy fits to each.

    A stored model is used where its job is still what the model was fitted to.
    """
    gone = tables.jobs.keys() - state.jobs.keys()
    if not changed and not gone:
        return replace(tables, quotas=rules.quotas)
    jobs = dict(tables.jobs)
    for key in gone:
        del jobs[key]
    by_policy: dict[str, list[str]] = {}
    for key in changed:
        job = state.jobs[key]
        policy = policy_of(job, rules)
        jobs[key] = seen(job, rules, kin_of(tables.kins, job.request))
        model = stored_model(stored, policy, jobs[key]) if stored else None
        if model is not None:
            jobs[key] = replace(jobs[key], model=model)
        else:
            by_policy.setdefault(policy, []).append(key)
    for name, keys in by_policy.items():
        if name in FITTERS:
            fitted = _fit_models(name, [jobs[key] for key in keys])
            for key, model in zip(keys, fitted, strict=True):
                jobs[key] = replace(jobs[key], model=model)
    return replace(tables, jobs=jobs, quotas=rules.quotas)


def _fit_models(name: str, jobs: list[JobSeen]) -> list[object]:
    """Fit models to jobs; a job with which that fails has none, so that its policy fails with it
    and with no other job.
    """
    try:
        return list(FITTERS[name](jobs))
    except Exception:
        if failures.RAISE_ALL or len(jobs) == 1:
            return [None] * len(jobs)
        apart: list[object] = []
        for job in jobs:
            apart += _fit_models(name, [job])
        return apart


# ---------------------------------------------------------------- the cluster's total


def _with_total(
    before: Tables, tables: Tables, state: State, marks: Marks, changed: Collection[str]
) -> Tables:
    """Add up what is free, and what jobs hold, on nodes that take tasks: to two digits, because a
    share need not be exact, and prices should not move with every fact.
    """
    keys = marks.jobs | marks.listed | set(changed)
    same_nodes = before.nodes.keys() == tables.nodes.keys()
    if not same_nodes or before.free.keys() != tables.free.keys():
        keys = keys | tables.jobs.keys()
    held = dict(tables.held)
    for key in keys:
        if key in tables.jobs:
            held[key] = _held_amount(key, tables, state)
        else:
            held.pop(key, None)
    parts = [*tables.free.values(), *held.values()]
    cpu, memory_gib, gpu = [math.fsum(column) for column in zip(*parts, strict=True)] or NOTHING
    total = rounded(Resources(cpu=cpu, memory_gib=memory_gib, gpu=int(gpu)))
    return replace(tables, held=held, total=total)


def _held_amount(key: str, tables: Tables, state: State) -> Amounts:
    """Return what the tasks of a job hold, less what is promised to them: that is still free."""
    parts = []
    for task in tables.jobs[key].tasks:
        if task.node in tables.free or task.node not in state.nodes:
            parts.append(task.resources)
    held = together(parts)
    promised = tables.promised.get(key)
    if promised:
        held = minus(held, together(reserved_amounts(state, state.jobs[key], promised)))
    return amounts(held)


# ---------------------------------------------------------------- the order of a pass


def _with_order(
    before: Tables, tables: Tables, state: State, changed: Collection[str], rules: Rules
) -> Tables:
    """Put the jobs in the order of passes, and find the urgent ones, and whom to ask for a size."""
    gone = before.jobs.keys() - state.jobs.keys()
    if not changed and not gone:
        return tables
    urgent = set(tables.urgent - gone)
    ranks = dict(tables.ranks)
    policies = dict(tables.policies)
    for key in gone:
        ranks.pop(key, None)
        policies.pop(key, None)
    is_sorted = True
    for key in changed:
        job = state.jobs[key]
        if needs_attention(job):
            urgent.add(key)
        else:
            urgent.discard(key)
        rank = (-job.request.priority, job.uid)
        if ranks.get(key) != rank:
            ranks[key] = rank
            is_sorted = False
        policy = "" if job.suspended_by_user else policy_of(job, rules)
        if policies.get(key, "") != policy:
            policies[key] = policy
            is_sorted = False
    if not is_sorted:
        ranks = dict(sorted(ranks.items(), key=_rank))
        policies = {key: policies[key] for key in ranks if policies.get(key)}
    return replace(tables, ranks=ranks, policies=policies, urgent=frozenset(urgent))


def _rank(item: tuple[str, tuple[int, int]]) -> tuple[int, int]:
    return item[1]


def needs_attention(job: Job) -> bool:
    """Return whether a job may need something else than the size that its policy wants."""
    return bool(
        job.cancelled
        or job.changed
        or job.exits
        or job.leaving
        or job.starving
        or job.crowded
        or job.abandonments
        or job.failed_generations
        or job.killed_generations
        or job.coming is not None
    )


def _with_lists(before: Tables, tables: Tables) -> Tables:
    """List the jobs of each policy, and make the arrays of those policies whose jobs changed."""
    if tables.jobs is before.jobs and tables.policies is before.policies:
        return tables
    by_policy = {name: JobList() for name in dict.fromkeys(tables.policies.values())}
    quotas = _shared_quotas(tables)
    for key, name in tables.policies.items():
        job = tables.jobs[key]
        quota = quotas.get((name, job.request.namespace))
        by_policy[name].append(job if quota is None else replace(job, quota=quota))
    for name, jobs in by_policy.items():
        if name not in ARRAYS:
            continue
        known = before.by_policy.get(name)
        if known is not None and len(known) == len(jobs) and all(map(operator.is_, known, jobs)):
            jobs.arrays = known.arrays
        else:
            jobs.arrays = _arrays(name, jobs)
    return replace(tables, by_policy=by_policy)


def _shared_quotas(tables: Tables) -> dict[tuple[str, str], Quota]:
    """Return, by policy and namespace, the quota less what jobs of other policies hold.

    Only namespaces with a quota and jobs of several policies are in it.
    """
    if not tables.quotas:
        return {}
    held: defaultdict[str, dict[str, list[Resources]]] = defaultdict(dict)
    for key, policy in tables.policies.items():
        job = tables.jobs[key]
        if job.quota is not None:
            amounts_of = held[job.request.namespace].setdefault(policy, [])
            amounts_of += [task.resources for task in job.tasks]
    found = {}
    for space, by_policy in held.items():
        for policy in by_policy:
            others: list[Resources] = []
            for other, taken in by_policy.items():
                if other != policy:
                    others += taken
            if others:
                found[policy, space] = tables.quotas[space].without(together(others))
    return found


def _arrays(name: str, jobs: JobList) -> Any:
    """Return the arrays of these jobs; None if they cannot be made: then the policy fails with some
    of them.
    """
    try:
        return ARRAYS[name](jobs)
    except Exception:
        if failures.RAISE_ALL:
            raise
        return None


# ---------------------------------------------------------------- rows of policy `weir`


def _with_rows(
    before: Tables, tables: Tables, state: State, changed: Collection[str], rules: Rules
) -> Tables:
    """Update the programs and the rows of the jobs of policy `weir`."""
    of_job = tables.programs.of_job
    gone = {key for key in of_job if key not in state.jobs}
    mine = []
    for key in changed:
        if policy_of(state.jobs[key], rules) != WEIR:
            if key in of_job:
                gone.add(key)  # the name may have been another job's, of policy `weir`
        elif tables.jobs[key].model is None:
            mine.append(key)
    return update_rows(before, tables, mine, gone)
