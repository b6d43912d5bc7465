"""The nodes on which a job's claims can be used. Pure.

A task mounts every claim of its job, so it runs only where all their volumes can be reached: in one
zone, or on one node. A claim of which nothing is told can be used everywhere; one that is bound
with its first pod is told then.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from services.allocator.job import Job
from services.allocator.placing.node_terms import fulfils_any
from services.allocator.placing.placement import Room
from services.allocator.rules import Rules
from services.allocator.state import State
from shared.checkpoints import checkpoint_location
from shared.messages import NodeTerm
from shared.text import format_names, format_some_names

NOWHERE: frozenset[str] = frozenset()
EVERYWHERE = nullcontext()
NAMED = 3
"""So many claims are named."""


class Reach:
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
            return EVERYWHERE
        return room.avoiding(outside)

    def unreachable_nodes(self, job: Job) -> frozenset[str]:
        """Return the nodes that cannot mount all of the job's volume claims. Empty if no claim of
        the job is bound to some of the nodes.
        """
        if not self.state.claims:
            return NOWHERE
        nodes = NOWHERE
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
        claims = f"{word} {format_names(names, NAMED)}"
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
