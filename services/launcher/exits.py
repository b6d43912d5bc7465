"""Which tasks have started, which have ended, and why.

Law: only a pod that is wanted can be lost. What a decision sent away is no news, so no memory of
our own deletions is needed, and a restart cannot mistake a victim for a loss.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from services.launcher.facts import NodeFact, PodFact
from services.launcher.generations import wanted
from services.launcher.jobs import Job
from services.launcher.view import View, pod_forgotten
from shared.messages import DELETED, JobMessage, TaskExited, TaskStarted

NODE_LOST = "NodeLost"


def lost_s(pod: PodFact, nodes: dict[str, NodeFact], node_lost_s: float) -> float | None:
    """When a pod counts as lost with its node; None while the node is ready."""
    node = nodes.get(pod.node)
    if node is None or node.ready or pod.over or pod.gone:
        return None
    return node.since_s if pod.leaving else node.since_s + node_lost_s


def starts(view: View, job: Job) -> list[TaskStarted]:
    stays = wanted(job)
    return [
        TaskStarted(**about_pod(job, pod), node=pod.node)
        for pod in by_name(view.pods_of(job.uid))
        if pod.phase == "Running"
        and not pod.gone
        and pod.name in stays
        and pod.uid not in job.started
    ]


def exits(view: View, job: Job, now: float, node_lost_s: float) -> list[TaskExited]:
    stays = wanted(job)
    found = [
        _exit(job, pod, view.nodes, now, node_lost_s) for pod in by_name(view.pods_of(job.uid))
    ]
    said = [fact for fact in [*found, *_vanished(view, job)] if fact is not None]
    return [fact for fact in said if fact.pod in stays and fact.pod_uid not in job.exited]


def forget(view: View, uid: int) -> View:
    """Without the pods that are gone and of which nothing more has to be said."""
    job = view.told.jobs.get(uid)
    stays: Container[str] = wanted(job) if job else ()
    for pod in view.pods_of(uid):
        if pod.gone and (job is None or pod.uid in job.exited or pod.name not in stays):
            view = pod_forgotten(view, pod)
    return view


def _exit(
    job: Job, pod: PodFact, nodes: dict[str, NodeFact], now: float, node_lost_s: float
) -> TaskExited | None:
    if pod.over or pod.gone:
        reason = pod.reason or DELETED
        ending: dict[str, Any] = {
            "exit_code": pod.exit_code,
            "reason": reason,
            "message": pod.message,
        }
        return TaskExited(**about_pod(job, pod), node=pod.node, **ending)
    lost = lost_s(pod, nodes, node_lost_s)
    if lost is None or lost > now:
        return None
    message = f"node {pod.node} is not ready"
    return TaskExited(**about_pod(job, pod), node=pod.node, reason=NODE_LOST, message=message)


def _vanished(view: View, job: Job) -> Iterable[TaskExited]:
    """Pods that were seen alive and went while nobody looked."""
    there = view.pods.get(job.uid, {})
    return (
        TaskExited(
            **about(fact),
            node=fact.node,
            reason=DELETED,
            message="gone while the launcher was away",
        )
        for uid, fact in sorted(job.started.items())
        if uid not in there
    )


def about_pod(job: Job, pod: PodFact) -> dict[str, Any]:
    return {
        "namespace": job.namespace,
        "job": job.job,
        "uid": job.uid,
        "generation": pod.generation,
        "pod": pod.name,
        "pod_uid": pod.uid,
        "role": pod.role,
        "serial": pod.serial,
    }


def about(fact: JobMessage) -> dict[str, Any]:
    names = ("namespace", "job", "uid", "generation", "pod", "pod_uid", "role", "serial")
    return {name: getattr(fact, name) for name in names}


def by_name(pods: Iterable[PodFact]) -> list[PodFact]:
    return sorted(pods, key=lambda pod: pod.name)
