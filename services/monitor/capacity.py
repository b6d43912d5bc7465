"""What one node can still hold.

Law: free = allocatable less the effective requests of every pod bound to the node that has not
ended, ours or not. A pod that terminates still holds what it has; only its disappearance frees it.
Judge a node by its Ready condition and a pod by its deletion, never by phase alone: on a dead node
pods stay `Running` for minutes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from services.monitor.facts import NodeFact, PodFact
from services.monitor.quantities import total
from shared.messages import CapacityChanged, OwnPod, Resources


def node_capacity(
    node: NodeFact, pods: Iterable[PodFact], revision: str, now: float
) -> CapacityChanged:
    """The fact to tell of a node. `revision` is the API's, of the newest event that this picture
    rests on.
    """
    holding = [p for p in pods if not p.ended]
    free = node.allocatable.less(total(p.requests for p in holding))
    told = CapacityChanged(
        node=node.name,
        node_uid=node.uid,
        seen="",
        allocatable=node.allocatable.resources(),
        free=free.resources(),
        ready=node.ready,
        schedulable=node.schedulable,
        taints=node.taints,
        own=tuple(sorted((_own(p) for p in holding if p.job), key=lambda o: (o.namespace, o.pod))),
        labels=node.labels,
        observed_s=now,
    )
    return msgspec.structs.replace(told, seen=digest(told, revision))


def node_gone(last: CapacityChanged, revision: str, now: float) -> CapacityChanged:
    """The fact to tell of a node that was deleted."""
    told = CapacityChanged(
        node=last.node,
        node_uid=last.node_uid,
        seen="",
        allocatable=Resources(),
        free=Resources(),
        ready=False,
        schedulable=False,
        gone=True,
        observed_s=now,
    )
    return msgspec.structs.replace(told, seen=digest(told, revision))


def same_picture(one: CapacityChanged | None, other: CapacityChanged) -> bool:
    """Do two facts say the same, whenever and however it was seen?"""
    return one is not None and _plain(one) == _plain(other)


def digest(told: CapacityChanged, revision: str) -> str:
    """Of the picture and of the revision it was seen at: a node that returns to an old picture
    tells a new fact.
    """
    return hashlib.sha256(revision.encode() + msgspec.json.encode(_plain(told))).hexdigest()[:16]


def _plain(told: CapacityChanged) -> CapacityChanged:
    return msgspec.structs.replace(told, seen="", observed_s=0.0)


def _own(pod: PodFact) -> OwnPod:
    return OwnPod(
        namespace=pod.namespace,
        job=pod.job,
        pod=pod.name,
        resources=pod.requests.resources(),
        terminating=pod.terminating,
    )
