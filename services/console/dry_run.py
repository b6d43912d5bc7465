"""`weir submit --dry-run`: the decision for a job as of now, with its reason. Nothing is published
or stored.

The state is the allocator's stored state plus the log since then. Its rules are read from the
environment, as the allocator reads them; the limits of `weir up` from the file of its connection.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing

from services.allocator import snapshot
from services.allocator.admission.validation import InvalidRequest, check_request
from services.allocator.custom_policies import register_policies
from services.allocator.placement.amounts import total_of
from services.allocator.placement.placers import ROLES
from services.allocator.placement.trial import describe_resources as amount
from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.allocator.state.state import State, apply, with_last_fact
from services.console.log_entry import entry_filters
from services.console.log_reader import read_entries
from services.console.trouble import WRONG_USE, Trouble
from services.whatif.proposal import Effect, Outlook, outlook
from shared.bus.bus import Bus
from shared.bus.log_reader import LastNodeFacts, StreamQuery, read_last_node_facts
from shared.bus.subjects import FACTS, ORDERS
from shared.messages import CapacityFact, DeadLetter
from shared.runtime import config
from shared.text import format_size

NO_POLICY_NAMED = "it names none; another may be the cluster's: WEIR_ALLOCATOR_POLICY says so here"
ALLOCATOR_PREFIXES = ("WEIR_ALLOCATOR_", "WEIR_JOB_NAMESPACES")
LIMIT_SETTINGS = ("WEIR_ALLOCATOR_QUOTAS", "WEIR_JOB_NAMESPACES")
"""The settings that a file in a folder may give: none that could import code."""


async def dry_run(bus: Bus, body: bytes, file: str, rules: Rules) -> list[str]:
    """Return the lines of the outlook. Raises `Trouble` with every reason against the request."""
    request = check_request(body, rules)
    if isinstance(request, InvalidRequest):
        raise _refusal(f"the request in {file}", request.reasons)
    found = outlook(await _current_state(bus), request, time.time(), rules)
    if found.reasons:
        raise _refusal(f"job {request.job}", found.reasons)
    return describe_outlook(request.key().replace(".", "/"), found)


def _refusal(whose: str, reasons: tuple[str, ...]) -> Trouble:
    return Trouble(
        "\n".join([f"{whose} would be refused:", *(f"  - {reason}" for reason in reasons)])
    )


def rules_from_environment(limits: Mapping[str, str] | None = None) -> Rules:
    """Return the rules as the allocator reads them, policies of one's own included. The allowed
    images and folders of nodes are known to the allocator alone. `limits`: written by `weir up`;
    the environment overrides them.
    """
    unknown = {"WEIR_ALLOCATOR_HOST_PATHS": "/", "WEIR_ALLOCATOR_IMAGES": ""}
    known = unknown | {
        name: said for name, said in (limits or {}).items() if name in LIMIT_SETTINGS
    }
    known |= {name: os.environ[name] for name in os.environ if name.startswith(ALLOCATOR_PREFIXES)}
    try:
        rules = config.load_settings(Rules, "allocator", known)
        register_policies((rules.policy, *rules.policies))
        return rules
    except config.BadSettings as bad:
        raise Trouble(str(bad), WRONG_USE) from bad


async def _current_state(bus: Bus) -> State:
    """Return the allocator's state after all stored messages."""
    state = await snapshot.load_snapshot(bus)
    node_facts = LastNodeFacts(await read_last_node_facts(bus), state.sequences.get(FACTS, 0))
    wanted = [
        StreamQuery(stream, entry_filters(stream), after=state.sequences.get(stream, 0))
        for stream in (ORDERS, FACTS)
    ]
    async with aclosing(read_entries(bus, wanted, follow=False)) as entries:
        async for entry in entries:
            if not isinstance(entry.message, DeadLetter):
                node_facts.note_fact(entry.message)
                state = apply(state, entry.message, entry.stream, entry.sequence, entry.stored_s)
    for fact in node_facts.take_missing():
        if isinstance(fact.message, CapacityFact):
            state = with_last_fact(state, fact.message, fact.stored_s)
    return state


# ---------------------------------------------------------------- in words


def describe_outlook(job: str, found: Outlook, unnamed: str = NO_POLICY_NAMED) -> list[str]:
    """Return the outlook as lines. `unnamed`: the note beside the policy of a job that names
    none.
    """
    if not found.tasks:
        return [
            f"job {job} {_conditional_reason(found.why)}",
            *_resource_lines(found),
            *_policy_lines(found, unnamed),
            *map(_effect_line, found.effects),
        ]
    counts = Counter(task.role for task in found.tasks)
    nodes: dict[str, list[str]] = {}
    for task in found.tasks:
        nodes.setdefault(task.node, []).append(task.role)
    places = "; ".join(f"{node}: {', '.join(roles)}" for node, roles in nodes.items())
    return [
        (
            f"job {job} would start now with {format_size(counts['ps'], counts['worker'])}, batch"
            f" {found.batch}"
        ),
        f"  why: {found.why}",
        f"  where: {places}",
        *_policy_lines(found, unnamed),
        *(f"  rather than {format_size(o.ps, o.workers)}: {o.why}" for o in found.alternatives),
        *map(_effect_line, found.effects),
    ]


def _conditional_reason(why: str) -> str:
    """Return the allocator's reason for a waiting job in the conditional."""
    return (
        f"would wait{why.removeprefix('waits')}"
        if why.startswith("waits")
        else f"would wait: {why}"
    )


def _resource_lines(found: Outlook) -> list[str]:
    """Return the wanted and the free resources, so that it is clear what has to be smaller."""
    if not found.free:
        return ["  free now: nothing, no node takes tasks"]
    wants = "; ".join(f"{role} {amount(getattr(found.sizes, role))}" for role in ROLES)
    most = max(found.free, key=lambda node: (node.free.cpu, node.free.memory_gib))
    whole = amount(total_of([node.free for node in found.free]))
    return [
        f"  it wants: {wants}; each task wholly on one node",
        f"  free now: {whole} in all; the most on one node {amount(most.free)} ({most.name})",
    ]


def _policy_lines(found: Outlook, unnamed: str) -> list[str]:
    """Return the policy, and the jobs with a policy that is unknown here."""
    named = "" if found.named else f" ({unnamed})"
    return [
        f"  policy: {found.policy}{named}",
        *([f"  not sure: {found.unsure}"] if found.unsure else []),
    ]


def _effect_line(effect: Effect) -> str:
    job = effect.job.replace(".", "/")
    return (
        f"job {job} would have {_format_holding(effect.beside)} instead of {_format_holding(effect.without)}:"
        f" {effect.why}"
    )


def _format_holding(has: Size | None) -> str:
    return format_size(has.ps, has.workers) if has else "nothing"
