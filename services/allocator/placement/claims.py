"""The nodes that a job may use: by its volume claims, its request, the owner's node pools, taints.

A task mounts every claim of its job. So it runs only on nodes that can reach all their volumes: in
one zone, or on one node. A claim without a reported placement can be used everywhere; a claim that
is bound with its first pod is reported then. A node has to fulfil one node affinity term as a
whole. A term without requirements matches no node.

The `node_selector` and the `affinity` of a request are such terms, and so are the node pools of its
namespace (`pod_policy.py`). A node with a hard taint takes only tasks that tolerate all its hard
taints. Tasks that run stay where they are when labels change, as in Kubernetes.

Law: no decision puts a new task on a node that its pod may not use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from msgspec.structs import replace

from services.allocator.placement.free_capacity import hard_taints, is_open
from services.allocator.placement.room import Room
from services.allocator.pod_policy import term_of_labels
from services.allocator.policies.contract import Node
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.state import State
from shared.checkpoints import checkpoint_location
from shared.kube.objects import TAKEN_AWAY, is_tolerated, tolerations_of
from shared.messages import (
    FieldRequirement,
    LabelRequirement,
    NodeAffinity,
    NodeRequirement,
    NodeTerm,
    Taint,
    Toleration,
)
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
NO_RESTRICTION = nullcontext()
NAMES_SHOWN = 3
"""The most claims, nodes or taints that a note names."""
MOST_GROUPS = 16
"""The most groups of jobs with different nodes that are decided separately."""
Terms = tuple[NodeTerm, ...]


class ReachGroup(NamedTuple):
    """The jobs that may use the same nodes. `outside`: the nodes that they may not use; `opened`:
    those with taints that they tolerate; `own`: the keys of these jobs; `jobs`: these keys, and
    those of all other jobs that may use some of these nodes.
    """

    outside: frozenset[str]
    opened: frozenset[str]
    own: set[str]
    jobs: set[str]

    def nodes(self, cluster: Sequence[Node]) -> Sequence[Node]:
        """Return the nodes. Those that the jobs may not use are closed."""
        if not self.outside and not self.opened:
            return cluster
        found = []
        for node in cluster:
            is_usable = (node.open or node.name in self.opened) and node.name not in self.outside
            found.append(node if node.open == is_usable else replace(node, open=is_usable))
        return found


class ReachableNodes:
    """The nodes that each job of one state may use. The nodes of each term, and of each list of
    tolerations, are found once in a pass.
    """

    def __init__(self, state: State, rules: Rules) -> None:
        self.state = state
        self.rules = rules
        self._unreachable: dict[Terms, frozenset[str]] = {}
        self._tolerated: dict[tuple[Toleration, ...], frozenset[str]] = {}
        self._tainted = _tainted_nodes(state)

    def of(self, job: Job, room: Room) -> AbstractContextManager[None]:
        """Inside the context, place new tasks only on nodes that the job may use, including those
        with taints that it tolerates.
        """
        outside = self.unreachable_nodes(job)
        opened = self.tolerated_nodes(job)
        if not outside and not opened:
            return NO_RESTRICTION
        return room.restricted(outside, opened)

    def unreachable_nodes(self, job: Job) -> frozenset[str]:
        """Return the nodes that cannot mount all of the job's volume claims, or that its request or
        its namespace's pools leave out; empty if nothing binds the job to some of the nodes.
        """
        nodes = NO_NODES
        for terms in self._constraints(job).values():
            nodes |= self._nodes_without(terms)
        return nodes

    def tolerated_nodes(self, job: Job) -> frozenset[str]:
        """Return the nodes that take tasks of this job only because it tolerates their taints."""
        if not self._tainted:
            return NO_NODES
        tolerations = tolerations_of(job.request)
        if not tolerations:
            return NO_NODES
        if tolerations not in self._tolerated:
            self._tolerated[tolerations] = self._nodes_tolerated_by(tolerations)
        return self._tolerated[tolerations] - self.unreachable_nodes(job)

    def _nodes_tolerated_by(self, tolerations: tuple[Toleration, ...]) -> frozenset[str]:
        """Return the nodes whose taints are all tolerated, of those that have taints."""
        found = set()
        for name, taints in self._tainted.items():
            if all(is_tolerated(taint, tolerations) for taint in taints):
                found.add(name)
        return frozenset(found)

    def groups(self, jobs: Mapping[str, Job]) -> list[ReachGroup]:
        """Return the jobs that may use the same nodes, each group with all jobs that may use some
        of these nodes, too.

        A policy divides capacity among its jobs. If it were asked about jobs with different nodes
        together, one job could get, on paper, the nodes that only another one may use. So it is
        asked for each group, with the nodes of the group. One group has all jobs if none is bound
        to some nodes, or if there are too many groups.
        """
        by_reach: dict[tuple[frozenset[str], frozenset[str]], set[str]] = {}
        for key, job in jobs.items():
            reach = NO_NODES, NO_NODES
            if not self._is_unbound(job):
                reach = self.unreachable_nodes(job), self.tolerated_nodes(job)
            by_reach.setdefault(reach, set()).add(key)

        groups = [ReachGroup(*reach, keys, keys) for reach, keys in by_reach.items()]
        if len(groups) > MOST_GROUPS:
            opened = NO_NODES.union(*[group.opened for group in groups])
            return [ReachGroup(NO_NODES, opened, set(jobs), set(jobs))]
        usable = [self._usable_nodes(group) for group in groups]
        found = []
        for group, nodes in zip(groups, usable, strict=True):
            keys = set(group.own)
            for other, nodes_of_other in zip(groups, usable, strict=True):
                if not nodes.isdisjoint(nodes_of_other):
                    keys |= other.own
            found.append(group._replace(jobs=keys))
        return found

    def _is_unbound(self, job: Job) -> bool:
        """Return True if a job may use every node without hard taints, and no other one."""
        request = job.request
        if self.state.claims or request.node_selector or request.affinity is not None:
            return False
        if self._tainted and tolerations_of(request):
            return False
        return not self.rules.pod_rules.pool_terms(request.namespace)

    def _usable_nodes(self, group: ReachGroup) -> set[str]:
        names = set(group.opened)
        for name, node in self.state.nodes.items():
            if is_open(node) and name not in group.outside:
                names.add(name)
        return names

    # ------------------------------------------------------------ in words

    def note(self, job: Job) -> str:
        """Return a note on everything that keeps the job from some of the nodes; empty: nothing
        does.
        """
        notes = [self._note_on_constraints(job), self._note_on_taints(job)]
        return "; ".join([note for note in notes if note])

    def _note_on_constraints(self, job: Job) -> str:
        outside = self.unreachable_nodes(job)
        if not outside:
            return ""
        limits = self._limiting_constraints(job)
        names = format_names(limits, NAMES_SHOWN)
        reached = sorted(self.state.nodes.keys() - outside)
        bound_by_claims = limits[-1].startswith(CLAIM)
        if bound_by_claims:
            claims = [limit.removeprefix(CLAIM) for limit in limits]
            word = "claim" if len(claims) == 1 else "claims"
            names = f"{word} {format_names(claims, NAMES_SHOWN)}"
        if not reached and bound_by_claims:
            return f"its {names} cannot be used on any node"
        if not reached:
            return f"no node matches its {names}"
        nodes = format_some_names(reached, "node")
        if bound_by_claims:
            return f"its {names} can only be used on {nodes}"
        return f"it may only use {nodes}, because of its {names}"

    def _note_on_taints(self, job: Job) -> str:
        """Return a note on the taints, if they close every node that the job could use
        otherwise.
        """
        reached = self.state.nodes.keys() - self.unreachable_nodes(job)
        if not reached & self._tainted.keys() or self.tolerated_nodes(job):
            return ""
        if any([is_open(self.state.nodes[name]) for name in reached]):
            return ""
        tolerations = tolerations_of(job.request)
        texts = []
        for name in sorted(reached & self._tainted.keys()):
            taints = self._tainted[name]
            taint = next(each for each in taints if not is_tolerated(each, tolerations))
            value = f"={taint.value}" if taint.value else ""
            texts.append(f"{taint.key}{value}:{taint.effect} on {name}")
        return f"it does not tolerate {format_names(texts, NAMES_SHOWN)}"

    # ------------------------------------------------------------ the constraints of a job

    def _limiting_constraints(self, job: Job) -> list[str]:
        """Return the names of the constraints that leave some nodes out, claims first."""
        names = []
        for name, terms in self._constraints(job).items():
            if self._nodes_without(terms):
                names.append(name)
        return names

    def _constraints(self, job: Job) -> dict[str, Terms]:
        """Return the node terms of everything that binds the job to some nodes, by its name: a
        task's node has to fulfil one term of each.
        """
        found = {}
        if self.state.claims:
            for claim, terms in self._bound_claims(job).items():
                found[f"{CLAIM}{claim}"] = terms
        request = job.request
        if request.node_selector:
            labels = [f"{key}={value}" for key, value in request.node_selector.items()]
            name = f"node_selector {format_names(labels, NAMES_SHOWN)}"
            found[name] = (term_of_labels(request.node_selector),)
        if request.affinity is not None and request.affinity.node_affinity is not None:
            found["affinity"] = affinity_terms(request.affinity.node_affinity)
        pools = self.rules.pod_rules.pool_terms(request.namespace)
        if pools:
            found[f"namespace's node pools {_describe_pools(pools)}"] = pools
        return found

    def _bound_claims(self, job: Job) -> dict[str, Terms]:
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

    def _nodes_without(self, terms: Terms) -> frozenset[str]:
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


CLAIM = "claim "
"""The beginning of the name of a constraint by a claim."""


def affinity_terms(affinity: NodeAffinity) -> Terms:
    """Return the terms of a request's node affinity."""
    selector = affinity.required_during_scheduling_ignored_during_execution
    return tuple(
        [
            NodeTerm(
                labels=_requirements(term.match_expressions),
                fields=_requirements(term.match_fields),
            )
            for term in selector.node_selector_terms
        ]
    )


def _requirements(
    wanted: Sequence[LabelRequirement] | Sequence[FieldRequirement],
) -> tuple[NodeRequirement, ...]:
    return tuple(
        [
            NodeRequirement(key=each.key, operator=each.operator, values=each.values)
            for each in wanted
        ]
    )


def _describe_pools(pools: Terms) -> str:
    texts = []
    for pool in pools:
        texts.append(",".join([f"{each.key}={each.values[0]}" for each in pool.labels]))
    return format_names(texts, NAMES_SHOWN)


def _tainted_nodes(state: State) -> dict[str, list[Taint]]:
    """Return the hard taints of the nodes that would take tasks without them. A node that is about
    to be removed is not among them.
    """
    found = {}
    for name, node in state.nodes.items():
        if not node.taints or not node.ready or not node.schedulable:
            continue
        taints = hard_taints(node)
        if taints and not any([taint.key in TAKEN_AWAY for taint in taints]):
            found[name] = taints
    return found


def claims_of(job: Job, rules: Rules) -> tuple[str, ...]:
    """Return the claims that every task of the job mounts, as the launcher makes its pods."""
    claims = [volume.claim for volume in job.request.volumes if volume.claim]
    own_folder = checkpoint_location(job.request, job.uid, job.checkpoint_folder)
    first_folder = job.request.checkpoint.continue_from or own_folder
    is_remote = "://" in own_folder and "://" in first_folder
    if rules.checkpoint_claim and not is_remote:
        claims.append(rules.checkpoint_claim)
    return tuple(dict.fromkeys(claims))
