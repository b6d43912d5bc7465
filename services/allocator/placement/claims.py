"""The nodes that can reach the volume claims of a job.

A task mounts every claim of its job. So it runs only on nodes that can reach all their volumes: in
one zone, or on one node. A claim without a reported placement can be used everywhere; a claim that
is bound with its first pod is reported then. A node has to fulfil one node affinity term as a
whole. A term without requirements matches no node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from services.allocator.placement.room import Room
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.state import State
from shared.checkpoints import checkpoint_location
from shared.messages import NodeRequirement, NodeTerm
from shared.text import format_names, format_some_names

WHOLE_NUMBER = re.compile(r"[+-]?\d{1,18}")


def fulfils_any(name: str, labels: Mapping[str, str], terms: Sequence[NodeTerm]) -> bool:
    """Return True if the node of this name, with these labels, fulfils one of the terms."""
    return any(_fulfils(name, labels, term) for term in terms)


def _fulfils(name: str, labels: Mapping[str, str], term: NodeTerm) -> bool:
    """Return True if the node's labels and name meet all requirements of one term; no node fulfils
    an empty term.
    """
    if not term.labels and not term.fields:
        return False
    for wanted in term.labels:
        if not _is_met(labels, wanted):
            return False
    fields = {"metadata.name": name}
    return all(_is_met(fields, wanted) for wanted in term.fields)


def _is_met(values: Mapping[str, str], wanted: NodeRequirement) -> bool:
    """Return True if a requirement is met. No node meets an unknown operator: no task is put where
    its volume may be out of reach.
    """
    found = values.get(wanted.key)
    match wanted.operator:
        case "In":
            return found is not None and found in wanted.values
        case "NotIn":
            return found not in wanted.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            return _meets_bound(found, wanted)
        case _:
            return False


def _meets_bound(found: str | None, wanted: NodeRequirement) -> bool:
    """Return True if the label is above the bound, or below it; both have to be whole numbers."""
    if found is None or len(wanted.values) != 1:
        return False
    bound = wanted.values[0]
    if not WHOLE_NUMBER.fullmatch(found) or not WHOLE_NUMBER.fullmatch(bound):
        return False
    if wanted.operator == "Gt":
        return int(found) > int(bound)
    return int(found) < int(bound)


NO_NODES: frozenset[str] = frozenset()
NOTHING_AVOIDED = nullcontext()
CLAIMS_NAMED = 3
"""So many claims are named."""


class ReachableNodes:
    """The nodes within reach of each job of one state. The nodes of each term are found once in a
    pass.
    """

    def __init__(self, state: State, rules: Rules) -> None:
        self.state = state
        self.rules = rules
        self._unreachable: dict[tuple[NodeTerm, ...], frozenset[str]] = {}

    def of(self, job: Job, room: Room) -> AbstractContextManager[None]:
        """Send new tasks meanwhile only to nodes that can use the job's claims."""
        outside = self.unreachable_nodes(job)
        if not outside:
            return NOTHING_AVOIDED
        return room.avoiding(outside)

    def unreachable_nodes(self, job: Job) -> frozenset[str]:
        """Return the nodes that cannot mount all of the job's volume claims. Empty if no claim of
        the job is bound to some of the nodes.
        """
        if not self.state.claims:
            return NO_NODES
        nodes = NO_NODES
        for terms in self._bound_claims(job).values():
            nodes |= self._nodes_without(terms)
        return nodes

    def note(self, job: Job) -> str:
        """Return a note on the claims that keep the job from some of the nodes; empty: there are
        none.
        """
        outside = self.unreachable_nodes(job)
        if not outside:
            return ""
        names = self._limiting_claims(job)
        word = "claim" if len(names) == 1 else "claims"
        claims = f"{word} {format_names(names, CLAIMS_NAMED)}"
        reached = sorted(self.state.nodes.keys() - outside)
        if not reached:
            return f"no node can use its {claims}"
        return f"its {claims} can be used on {format_some_names(reached, 'node')} only"

    def _limiting_claims(self, job: Job) -> list[str]:
        """Return the job's claims that some nodes cannot use."""
        names = []
        for name, terms in self._bound_claims(job).items():
            if self._nodes_without(terms):
                names.append(name)
        return names

    def _bound_claims(self, job: Job) -> dict[str, tuple[NodeTerm, ...]]:
        """Return the node terms of each of the job's claims that is bound to some nodes."""
        fact = self.state.claims.get(job.request.namespace)
        if fact is None:
            return {}
        claims = claims_of(job, self.rules)
        bound = {}
        for each in fact.placements:
            for name in claims:
                if name in each.claims:
                    bound[name] = each.terms
        return bound

    def _nodes_without(self, terms: tuple[NodeTerm, ...]) -> frozenset[str]:
        """Return the nodes that fulfil none of these node affinity terms. Found once for equal
        terms, because many jobs share them.
        """
        if terms not in self._unreachable:
            outside = []
            for name, node in self.state.nodes.items():
                if not fulfils_any(node.node, node.labels, terms):
                    outside.append(name)
            self._unreachable[terms] = frozenset(outside)
        return self._unreachable[terms]


def claims_of(job: Job, rules: Rules) -> tuple[str, ...]:
    """Return the claims that every task of the job mounts, as the launcher makes its pods."""
    claims = [volume.claim for volume in job.request.volumes if volume.claim]
    own_folder = checkpoint_location(job.request, job.uid, job.checkpoint_folder)
    first_folder = job.request.checkpoint.continue_from or own_folder
    is_remote = "://" in own_folder and "://" in first_folder
    if rules.checkpoint_claim and not is_remote:
        claims.append(rules.checkpoint_claim)
    return tuple(dict.fromkeys(claims))
