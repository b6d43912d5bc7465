"""`weir submit --dry-run`: the decision for a job as of now, with its reason. Nothing is published
or stored.

The state is the allocator's stored state plus the log since then. Its rules are read from the
environment, as the allocator reads them; the limits of `weir up` from the file of its connection.

`answer_proposal` gives the same answer to a job that is proposed on the page. Only the size of such
a job matters; its program is not examined.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing

import msgspec

from services.allocator import snapshot
from services.allocator.admission.pod_policy_file import with_pod_policy
from services.allocator.admission.validation import InvalidRequest, check_request
from services.allocator.custom_policies import register_policies
from services.allocator.placement.amounts import total_of
from services.allocator.placement.free_capacity import free_nodes
from services.allocator.placement.placers import ROLES, place
from services.allocator.placement.room import Room
from services.allocator.placement.trial import describe_resources as amount
from services.allocator.pod_policy import ALLOW_ALL
from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.allocator.state.state import State, apply, with_last_fact
from services.console import job_file
from services.console.bus_reader import read_entries
from services.console.log_entry import entry_filters
from services.console.trouble import WRONG_USE, Trouble
from services.whatif.proposal import Effect, Outlook, outlook
from shared.bus.bus import Bus
from shared.bus.log_reader import LastNodeFacts, StreamQuery, read_last_node_facts
from shared.bus.subjects import FACTS, ORDERS
from shared.messages import CapacityFact, DeadLetter, Resources, RoleResources
from shared.runtime import config
from shared.text import format_size, single_line

NO_POLICY_NAMED = "the job names none; if the cluster uses another, set WEIR_ALLOCATOR_POLICY here"
"""The note beside the policy of a job that names none."""
ALLOCATOR_PREFIXES = ("WEIR_ALLOCATOR_", "WEIR_JOB_NAMESPACES")
LIMIT_SETTINGS = ("WEIR_ALLOCATOR_QUOTAS", "WEIR_JOB_NAMESPACES")
"""The settings that the connection file of a folder may set: none that could import code."""


async def dry_run(bus: Bus, body: bytes, file: str, rules: Rules) -> list[str]:
    """Return the lines of the outlook. Raise `Trouble` with every error in the request."""
    request = check_request(body, rules)
    if isinstance(request, InvalidRequest):
        raise _refusal(f"the request in {file}", request.reasons)
    found = outlook(await _current_state(bus), request, time.time(), rules)
    if found.reasons:
        raise _refusal(f"job {request.job}", found.reasons)
    return describe_outlook(request.key().replace(".", "/"), found)


def _refusal(request: str, reasons: tuple[str, ...]) -> Trouble:
    lines = [f"{request} would be refused:"]
    for reason in reasons:
        lines.append(f"  - {reason}")
    return Trouble("\n".join(lines))


def rules_from_environment(limits: Mapping[str, str] | None = None) -> Rules:
    """Return the rules as the allocator reads them, including custom policies.

    Only the allocator knows the allowed images, the allowed folders of nodes and, if no setting
    names its file, the pod policy. `limits`: settings that `weir up` wrote; the environment
    overrides them.
    """
    values = {"WEIR_ALLOCATOR_HOST_PATHS": "/", "WEIR_ALLOCATOR_IMAGES": ""}
    for name, value in (limits or {}).items():
        if name in LIMIT_SETTINGS:
            values[name] = value
    for name, value in os.environ.items():
        if name.startswith(ALLOCATOR_PREFIXES):
            values[name] = value
    try:
        rules = config.load_settings(Rules, "allocator", values)
        register_policies((rules.policy, *rules.policies))
        return with_pod_policy(rules, without=ALLOW_ALL)
    except config.BadSettings as bad:
        raise Trouble(str(bad), WRONG_USE) from bad


async def _current_state(bus: Bus) -> State:
    """Return the allocator's state after all stored messages."""
    state = await snapshot.load_snapshot(bus)
    node_facts = LastNodeFacts(await read_last_node_facts(bus), state.sequences.get(FACTS, 0))
    queries = []
    for stream in (ORDERS, FACTS):
        after = state.sequences.get(stream, 0)
        queries.append(StreamQuery(stream, entry_filters(stream), after=after))
    async with aclosing(read_entries(bus, queries, follow=False)) as entries:
        async for entry in entries:
            message = entry.message
            if not isinstance(message, DeadLetter):
                node_facts.note_fact(message)
                state = apply(state, message, entry.stream, entry.sequence, entry.stored_s)
    for fact in node_facts.take_missing():
        if isinstance(fact.message, CapacityFact):
            state = with_last_fact(state, fact.message, fact.stored_s)
    return state


# ---------------------------------------------------------------- the outlook as text


def describe_outlook(job: str, found: Outlook, unnamed: str = NO_POLICY_NAMED) -> list[str]:
    """Return the outlook as lines. `unnamed`: the note beside the policy of a job that names
    none.
    """
    lines = _start_lines(job, found) if found.tasks else _waiting_lines(job, found)
    policy_note = "" if found.named else f" ({unnamed})"
    lines.append(f"  policy: {found.policy}{policy_note}")
    if found.unsure:
        lines.append(f"  not sure: {found.unsure}")
    if found.tasks:
        for other in found.alternatives:
            lines.append(f"  rather than {format_size(other.ps, other.workers)}: {other.why}")
    for effect in found.effects:
        lines.append(_describe_effect(effect))
    return lines


def _start_lines(job: str, found: Outlook) -> list[str]:
    """Return the size, the reason and the nodes of a job that would start."""
    counts = Counter(task.role for task in found.tasks)
    size = format_size(counts["ps"], counts["worker"])
    roles_by_node: dict[str, list[str]] = {}
    for task in found.tasks:
        roles_by_node.setdefault(task.node, []).append(task.role)
    places = [f"{node}: {', '.join(roles)}" for node, roles in roles_by_node.items()]
    return [
        f"job {job} would start now with {size}, batch {found.batch}",
        f"  why: {found.why}",
        f"  where: {'; '.join(places)}",
    ]


def _waiting_lines(job: str, found: Outlook) -> list[str]:
    """Return the reason why a job would wait, with the wanted and the free resources: they show
    what has to be smaller.
    """
    reason = found.why.removeprefix("waits") if found.why.startswith("waits") else f": {found.why}"
    lines = [f"job {job} would wait{reason}"]
    if not found.free:
        return [*lines, "  free now: nothing, no node takes tasks"]
    wanted = "; ".join(f"{role} {amount(getattr(found.sizes, role))}" for role in ROLES)
    largest = max(found.free, key=lambda node: (node.free.cpu, node.free.memory_gib))
    total = amount(total_of([node.free for node in found.free]))
    lines.append(f"  it needs: {wanted}; each task on one node")
    lines.append(
        f"  free now: {total} in total; the most on one node {amount(largest.free)}"
        f" ({largest.name})"
    )
    return lines


def _describe_effect(effect: Effect) -> str:
    job = effect.job.replace(".", "/")
    size, size_now = _format_holding(effect.beside), _format_holding(effect.without)
    return f"job {job} would have {size} instead of {size_now}: {effect.why}"


def _format_holding(size: Size | None) -> str:
    return format_size(size.ps, size.workers) if size else "nothing"


# ---------------------------------------------------------------- a proposal on the page


PROPOSAL = "the proposal"
PAGE_POLICY_NOTE = (
    "the job names none, and the cluster may use another; to be sure, add a line such as `policy:"
    " static`"
)
"""A user of the page cannot change settings, but can add a line to the proposal."""
NO_PROGRAM = {"name": "program.py", "digest": f"sha256-{'0' * 64}"}
EXAMPLE = """\
job: proposal
program: program.py
epochs: 3
batch: 64
ps: {start: 1, min: 1, max: 2}
workers: {start: 2, min: 1, max: 4}
resources:
"""
EXAMPLE_SIZE = Size(ps=1, workers=2)
EXAMPLE_TASKS = tuple(
    RoleResources(
        chief=Resources(cpu=small, memory_gib=gib),
        ps=Resources(cpu=small, memory_gib=gib),
        worker=Resources(cpu=large, memory_gib=gib),
    )
    for small, large, gib in ((0.25, 0.5, 1.0), (0.1, 0.2, 1.0), (0.05, 0.1, 0.5))
)
"""Sizes of the example's tasks, the largest first."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`refused`: every error in the job; empty: `says` has the lines of the outlook."""

    says: list[str] = []
    refused: list[str] = []


def example_proposal(state: State) -> str:
    """Return a proposal to start from, with the largest tasks that fit now; the smallest ones if
    none fit.
    """
    text = EXAMPLE
    sizes = _largest_fitting_tasks(state)
    for role in ROLES:
        text += f"  {role}: {_format_resources(getattr(sizes, role))}\n"
    return text


def _largest_fitting_tasks(state: State) -> RoleResources:
    nodes = [node for node in free_nodes(state) if node.takes]
    for sizes in EXAMPLE_TASKS:
        if place(Room(nodes), PROPOSAL, (), EXAMPLE_SIZE, sizes, 0):
            return sizes
    return EXAMPLE_TASKS[-1]


def _format_resources(wants: Resources) -> str:
    return f"{{cpu: {wants.cpu:g}, memory_gib: {wants.memory_gib:g}}}"


def answer_proposal(state: State, text: str, now_s: float, rules: Rules) -> Answer:
    """Return the outcome of a proposal. `text`: a job's YAML file, as `weir submit` takes it."""
    try:
        fields = job_file.complete_fields(job_file.parse_fields(text, PROPOSAL), NO_PROGRAM, "-")
        request = check_request(job_file.encode_fields(fields, PROPOSAL), rules)
    except Trouble as trouble:
        return Answer(refused=[single_line(str(trouble))])
    if isinstance(request, InvalidRequest):
        return Answer(refused=[*map(single_line, request.reasons)])
    found = outlook(state, request, now_s, rules)
    if found.reasons:
        return Answer(refused=[*map(single_line, found.reasons)])
    lines = describe_outlook(request.key().replace(".", "/"), found, PAGE_POLICY_NOTE)
    return Answer(says=[*map(single_line, lines)])
