"""Update the tables of a state after facts have changed it, and store their models.

Law: tables that were updated fact by fact equal tables that are made of the state at once.

The models that policies fitted to jobs are stored in the snapshot as bytes, so that a restart does
not fit them again. Their numbers have no meaning for another version. Each version reads only its
own models, and fits again all that it cannot read.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator import failures
from services.allocator.failures import compute_each
from services.allocator.models.program_history import finished_job, histories_by_program, history_of
from services.allocator.models.programs import Programs
from services.allocator.models.speed import Fit
from services.allocator.placement.amounts import amounts, difference, total_of
from services.allocator.placement.best_fit_index import update_index
from services.allocator.placement.free_capacity import node_view, promised_tasks, reserved_amounts
from services.allocator.policies.contract import JobList, JobSnapshot, Node, Quota
from services.allocator.policies.registry import ARRAYS, FITTERS, MODELS, POLICIES
from services.allocator.policies.weir.job_rows import JobRow, Numbers, update_rows
from services.allocator.policies.weir.policy import largest_node, two_digits
from services.allocator.policies.weir.staircase import Config
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.policy_view import view_of_job
from services.allocator.state.state import State
from services.allocator.state.tables import NO_MARKS, Amounts, Marks, Tables
from shared.messages import Resources
from shared.version import VERSION

WEIR = "weir"
NOTHING = (0.0, 0.0, 0.0)


def refresh_tables(state: State, rules: Rules) -> State:
    """Return the state with tables that are up to date.

    `rules`: with the cluster's quotas in them (`with_cluster_quotas`).
    """
    before = state.tables
    marks = state.marks
    stored: StoredModels | None = None
    if before is None or not _is_made_by(before, rules):
        stored = _stored_models(state, rules)
        before = _empty_tables(stored, rules)
        every = frozenset(state.jobs)
        marks = Marks(every, frozenset(state.nodes), every, closed=True)
    elif marks == NO_MARKS and before.quotas == rules.quotas:
        return state
    tables = _with_nodes(before, state, marks)
    tables = _with_promised(tables, state, marks)
    tables = _with_histories(tables, state, marks)
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
    """Return True if tables or stored models were made with the present default policy and memory
    factor; otherwise they are of no use.
    """
    made_by = (tables.policy, tables.oom_memory_factor)
    return made_by == (rules.policy, rules.oom_memory_factor)


def policy_of(job: Job, rules: Rules) -> str:
    """Return the name of the job's policy: the cluster's, if the job names none that is known."""
    name = job.request.policy or rules.policy
    return name if name in POLICIES else rules.policy


# ---------------------------------------------------------------- nodes


def _with_nodes(tables: Tables, state: State, marks: Marks) -> Tables:
    """Update the marked nodes, the index of all nodes, and the largest node."""
    if not marks.nodes:
        return tables
    nodes = dict(tables.nodes)
    free = dict(tables.free)
    for name in marks.nodes:
        if name not in state.nodes:
            nodes.pop(name, None)
            free.pop(name, None)
            continue
        view = node_view(state.nodes[name])
        nodes[name] = view
        if view.open:
            free[name] = amounts(view.free)
        else:
            free.pop(name, None)

    new_names = (nodes.keys() & marks.nodes) - tables.nodes.keys()
    if new_names:
        # In the order of the state, as if all were made at once.
        nodes = {name: nodes[name] for name in state.nodes}

    largest = tables.largest
    if any(_is_resized(tables.nodes.get(name), nodes.get(name)) for name in marks.nodes):
        largest = largest_node(list(nodes.values()))
    index = update_index(tables.index, nodes, marks.nodes)
    return replace(tables, index=index, free=free, largest=largest)


def _is_resized(before: Node | None, after: Node | None) -> bool:
    """Return True if a node came, went, opened, closed, or has another size."""
    if before is None or after is None:
        return True
    return (before.open, before.allocatable) != (after.open, after.allocatable)


def _with_promised(tables: Tables, state: State, marks: Marks) -> Tables:
    """Update the tasks that are decided, and that their node does not list yet."""
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


def _with_histories(tables: Tables, state: State, marks: Marks) -> Tables:
    """Update the results of closed jobs, and the history of each program."""
    if not marks.closed:
        return tables
    past = {}
    for key, end in state.closed.items():
        is_known = key in tables.past and key not in marks.jobs
        past[key] = tables.past[key] if is_known else tuple(finished_job(end))
    return replace(tables, past=past, histories=histories_by_program(state.closed, past))


def _changed_jobs(
    before: Tables, tables: Tables, state: State, marks: Marks, rules: Rules
) -> set[str]:
    """Return the open jobs that policies see differently from before."""
    changed = set(marks.jobs & state.jobs.keys())
    new_history = before.histories is not tables.histories
    new_quotas = tables.quotas != rules.quotas
    if not new_history and not new_quotas:
        return changed

    for key, job in state.jobs.items():
        if key in changed:
            continue
        namespace = job.request.namespace
        history = history_of(tables.histories, job.request) if new_history else None
        other_history = new_history and tables.jobs[key].history != history
        other_quota = new_quotas and tables.quotas.get(namespace) != rules.quotas.get(namespace)
        if other_history or other_quota:
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

    A stored model is used if its job has not changed since the model was fitted.
    """
    gone = tables.jobs.keys() - state.jobs.keys()
    if not changed and not gone:
        return replace(tables, quotas=rules.quotas)
    jobs = dict(tables.jobs)
    for key in gone:
        del jobs[key]
    views_to_fit: dict[str, list[JobSnapshot]] = {}
    for key in changed:
        job = state.jobs[key]
        policy = policy_of(job, rules)
        view = view_of_job(job, rules, history_of(tables.histories, job.request))
        model = stored_model(stored, policy, view) if stored else None
        jobs[key] = view if model is None else replace(view, model=model)
        if model is None and policy in FITTERS:
            views_to_fit.setdefault(policy, []).append(view)
    for policy, views in views_to_fit.items():
        # A policy fails with a job that has no model, and with no other job.
        models = compute_each(FITTERS[policy], views)
        for view, model in zip(views, models, strict=True):
            jobs[view.key] = replace(view, model=model)
    return replace(tables, jobs=jobs, quotas=rules.quotas)


# ---------------------------------------------------------------- the cluster's total


def _with_total(
    before: Tables, tables: Tables, state: State, marks: Marks, changed: Collection[str]
) -> Tables:
    """Update the sum of the free and the held amounts on nodes that take tasks. It has two digits,
    because a share need not be exact, and prices should not change with every fact.
    """
    keys = marks.jobs | marks.listed | set(changed)

    # If other nodes take tasks than before, the amounts of all jobs may be others.
    same_nodes = before.nodes.keys() == tables.nodes.keys()
    if not same_nodes or before.free.keys() != tables.free.keys():
        keys = keys | tables.jobs.keys()

    held = dict(tables.held)
    for key in keys:
        if key in tables.jobs:
            held[key] = _held_amount(key, tables, state)
        else:
            held.pop(key, None)
    total = two_digits(_sum_of([*tables.free.values(), *held.values()]))
    return replace(tables, held=held, total=total)


def _sum_of(parts: Sequence[Amounts]) -> Resources:
    """Return the sum, whatever the order of its parts."""
    cpu, memory_gib, gpu = [math.fsum(column) for column in zip(*parts, strict=True)] or NOTHING
    return Resources(cpu=cpu, memory_gib=memory_gib, gpu=int(gpu))


def _held_amount(key: str, tables: Tables, state: State) -> Amounts:
    """Return the amount that the tasks of a job hold. Promised amounts are still free, so they are
    left out.
    """
    parts = []
    for task in tables.jobs[key].tasks:
        if task.node in tables.free or task.node not in state.nodes:
            parts.append(task.resources)
    held = total_of(parts)
    promised = tables.promised.get(key)
    if promised:
        held = difference(held, total_of(reserved_amounts(state, state.jobs[key], promised)))
    return amounts(held)


# ---------------------------------------------------------------- the order of a pass


def _with_order(
    before: Tables, tables: Tables, state: State, changed: Collection[str], rules: Rules
) -> Tables:
    """Update the order of the jobs in a pass, the jobs that need attention, and the policy of each
    job.
    """
    gone = before.jobs.keys() - state.jobs.keys()
    if not changed and not gone:
        return tables

    unchanged = tables.needs_attention - gone - set(changed)
    urgent = [key for key in changed if needs_attention(state.jobs[key])]

    ranks = dict(tables.ranks)
    policies = dict(tables.policies)
    for key in gone:
        ranks.pop(key, None)
        policies.pop(key, None)
    is_sorted = True
    for key in changed:
        job = state.jobs[key]
        rank = (-job.request.priority, job.uid)
        policy = "" if job.suspended_by_user else policy_of(job, rules)
        if ranks.get(key) != rank or policies.get(key, "") != policy:
            ranks[key] = rank
            policies[key] = policy
            is_sorted = False

    if not is_sorted:
        keys = sorted(ranks, key=ranks.__getitem__)
        ranks = {key: ranks[key] for key in keys}
        policies = {key: policies[key] for key in keys if policies.get(key)}
    return replace(tables, ranks=ranks, policies=policies, needs_attention=unchanged.union(urgent))


def needs_attention(job: Job) -> bool:
    """Return True if a job may need something else than the size that its policy wants."""
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
        or job.pending_generation is not None
    )


def _with_lists(before: Tables, tables: Tables) -> Tables:
    """List the jobs of each policy, and make the arrays of each policy with a changed job."""
    if tables.jobs is before.jobs and tables.policies is before.policies:
        return tables
    by_policy = {name: JobList() for name in dict.fromkeys(tables.policies.values())}
    quotas = _shared_quotas(tables)
    for key, name in tables.policies.items():
        job = tables.jobs[key]
        quota = quotas.get((name, job.request.namespace))
        by_policy[name].append(job if quota is None else replace(job, quota=quota))

    # The arrays of a policy are made again only if one of its jobs has changed.
    for name in by_policy.keys() & ARRAYS.keys():
        jobs = by_policy[name]
        known = before.by_policy.get(name, JobList())
        if len(known) == len(jobs) and all(map(operator.is_, known, jobs)):
            jobs.arrays = known.arrays
        else:
            jobs.arrays = _arrays(name, jobs)
    return replace(tables, by_policy=by_policy)


def _shared_quotas(tables: Tables) -> dict[tuple[str, str], Quota]:
    """Return, by policy and namespace, the part of the quota that jobs of other policies do not
    hold.

    Only namespaces with a quota and jobs of several policies are in it.
    """
    if not tables.quotas:
        return {}
    held: defaultdict[str, dict[str, list[Resources]]] = defaultdict(dict)
    for key, policy in tables.policies.items():
        job = tables.jobs[key]
        if job.quota is not None:
            held_by_policy = held[job.request.namespace].setdefault(policy, [])
            held_by_policy += [task.resources for task in job.tasks]
    found = {}
    for namespace, by_policy in held.items():
        for policy in by_policy:
            others = _held_by_others(by_policy, policy)
            if others:
                found[policy, namespace] = tables.quotas[namespace].without(total_of(others))
    return found


def _held_by_others(by_policy: Mapping[str, list[Resources]], policy: str) -> list[Resources]:
    """Return the resources of the tasks of all policies but one."""
    others: list[Resources] = []
    for name, held in by_policy.items():
        if name != policy:
            others += held
    return others


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
    new_rows = []
    for key in changed:
        if policy_of(state.jobs[key], rules) != WEIR:
            if key in of_job:
                gone.add(key)  # the name may have been another job's, of policy `weir`
        elif tables.jobs[key].model is None:
            new_rows.append(key)
    return update_rows(before, tables, new_rows, gone)


# ---------------------------------------------------------------- stored models

LAYOUT = " ".join([VERSION, *Numbers._fields, *Config._fields, *map(str, MODELS.values())])
"""The meaning of a model's numbers. Models of another layout are not read."""
NO_FIT = Fit("synchronous", (1.0, 1.0, 1.0, 1.0), 0.0, 0, b"")
"""In a stored row, in place of its program's fit."""


class StoredModels(msgspec.Struct, frozen=True, kw_only=True):
    """`total`, `largest`: the cluster that rows were made for. `others`: by policy and job.
    `fitted_to`: by job, `_digest` of the job that its model was fitted to.
    """

    layout: str
    policy: str
    oom_memory_factor: float
    total: Resources
    largest: Resources
    programs: Programs
    rows: dict[str, JobRow]
    others: dict[str, dict[str, bytes]]
    fitted_to: dict[str, bytes]


def encode_models(tables: Tables) -> bytes:
    """Return the models of all jobs as bytes."""
    rows: dict[str, JobRow] = {}
    others: dict[str, dict[str, bytes]] = {}
    fitted_to: dict[str, bytes] = {}
    for key, job in tables.jobs.items():
        if job.model is None:
            continue
        fitted_to[key] = _digest(job)
        if isinstance(job.model, JobRow):
            rows[key] = replace(job.model, fitted=NO_FIT)
            continue
        for name, kind in MODELS.items():
            if type(job.model) is kind:
                models = others.setdefault(name, {})
                models[key] = msgspec.msgpack.encode(job.model)

    stored = StoredModels(
        layout=LAYOUT,
        policy=tables.policy,
        oom_memory_factor=tables.oom_memory_factor,
        total=tables.total,
        largest=tables.largest,
        programs=tables.programs,
        rows=rows,
        others=others,
        fitted_to=fitted_to,
    )
    return msgspec.msgpack.encode(stored)


def decode_models(stored: bytes) -> StoredModels | None:
    """Return the models that `encode_models` encoded; None if another version wrote them."""
    try:
        found = msgspec.msgpack.decode(stored, type=StoredModels)
    except msgspec.DecodeError:
        return None
    if found.layout != LAYOUT:
        return None
    return found


def stored_model(stored: StoredModels, policy: str, job: JobSnapshot) -> Any:
    """Return the stored model of a job as its policy expects it; None: there is none, or the job
    has changed since the model was fitted.
    """
    key = job.key
    fitted_to = stored.fitted_to.get(key)
    if fitted_to is None or fitted_to != _digest(job):
        return None
    if policy == "weir" and key in stored.rows:
        return _stored_row(stored, stored.rows[key])
    models = stored.others.get(policy, {})
    if key not in models:
        return None
    return msgspec.msgpack.decode(models[key], type=MODELS[policy])


def _stored_row(stored: StoredModels, row: JobRow) -> JobRow | None:
    """Return the row with the fit of its program; None if that is not stored."""
    fit = stored.programs.fits.get(row.program)
    if fit is None:
        return None
    return replace(row, fitted=fit)


def _digest(job: JobSnapshot) -> bytes:
    """Return a digest of everything that a model may depend on: the job, its settings, and its
    history.
    """
    facts = msgspec.msgpack.encode(replace(job, model=None), order="deterministic")
    return blake2b(facts, digest_size=16).digest()
