"""Which tasks have started, which have ended and why, and which are about to leave.

Law: only a pod that a decision wants can be lost, or be told to leave. So the launcher's own
deletions are no news, need no memory, and a restart cannot mistake a deleted pod for a loss. Each
notice is published once for a pod, and again when its deadline becomes known or earlier.

A deletionTimestamp is the time at which the pod is killed. For a node that time is unknown, unless
its taint comes with a fixed notice (`facts.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from services.launcher.facts import NodeFact, PodFact, loss_time
from services.launcher.jobs import Job, is_earlier
from services.launcher.steps.generations import wanted_tasks
from services.launcher.view import View, without_pod
from shared.messages import DELETED, JobMessage, TaskExited, TaskLeaving, TaskStarted

NODE_LOST = "NodeLost"


def start_reports(view: View, job: Job) -> list[TaskStarted]:
    stays = wanted_tasks(job)
    return [
        TaskStarted(**pod_fields(job, pod), node=pod.node)
        for pod in by_name(view.pods_of(job.uid))
        if pod.phase == "Running"
        and not pod.deleted
        and pod.name in stays
        and pod.uid not in job.started
    ]


def exit_reports(view: View, job: Job, now: float, node_lost_s: float) -> list[TaskExited]:
    stays = wanted_tasks(job)
    found = [
        _exit(job, pod, view.nodes, now, node_lost_s) for pod in by_name(view.pods_of(job.uid))
    ]
    said = [fact for fact in [*found, *_vanished_pods(view, job)] if fact is not None]
    return [fact for fact in said if fact.pod in stays and fact.pod_uid not in job.exited]


def drop_reported_pods(view: View, uid: int) -> View:
    """Without the pods that are gone and of which nothing more has to be said."""
    job = view.bus_state.jobs.get(uid)
    stays: Container[str] = wanted_tasks(job) if job else ()
    for pod in view.pods_of(uid):
        if pod.deleted and (job is None or pod.uid in job.exited or pod.name not in stays):
            view = without_pod(view, pod)
    return view


def _exit(
    job: Job, pod: PodFact, nodes: dict[str, NodeFact], now: float, node_lost_s: float
) -> TaskExited | None:
    if pod.ended or pod.deleted:
        reason = pod.reason or DELETED
        ending: dict[str, Any] = {
            "exit_code": pod.exit_code,
            "reason": reason,
            "message": pod.message,
        }
        return TaskExited(**pod_fields(job, pod), node=pod.node, **ending)
    lost = loss_time(pod, nodes, node_lost_s)
    if lost is None or lost > now:
        return None
    message = f"node {pod.node} is not ready"
    return TaskExited(**pod_fields(job, pod), node=pod.node, reason=NODE_LOST, message=message)


def _vanished_pods(view: View, job: Job) -> Iterable[TaskExited]:
    """Pods that were seen alive and went while nobody looked."""
    there = view.pods.get(job.uid, {})
    return (
        TaskExited(
            **task_fields(fact),
            node=fact.node,
            reason=DELETED,
            message="gone while the launcher was away",
        )
        for uid, fact in sorted(job.started.items())
        if uid not in there
    )


def pod_fields(job: Job, pod: PodFact) -> dict[str, Any]:
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


def task_fields(fact: JobMessage) -> dict[str, Any]:
    names = ("namespace", "job", "uid", "generation", "pod", "pod_uid", "role", "serial")
    return {name: getattr(fact, name) for name in names}


def by_name(pods: Iterable[PodFact]) -> list[PodFact]:
    return sorted(pods, key=lambda pod: pod.name)


def leaving_notices(view: View, job: Job) -> list[TaskLeaving]:
    """What is to be said now."""
    if not job.generations:
        return []
    stays = wanted_tasks(job)
    working = [p for p in by_name(view.pods_of(job.uid)) if p.name in stays and _works(p)]
    found = [
        notice
        for pod in working
        for notice in (_of_pod(job, pod), _of_node(view, job, pod))
        if notice
    ]
    return [notice for notice in found if _is_news(job, notice)]


def _works(pod: PodFact) -> bool:
    return pod.phase == "Running" and not pod.deleted


def _of_pod(job: Job, pod: PodFact) -> TaskLeaving | None:
    """Somebody else deletes or evicts it, or will in a moment: then there is a condition and no
    time yet.
    """
    if not pod.terminating and not pod.reason:
        return None
    return TaskLeaving(
        **pod_fields(job, pod),
        node=pod.node,
        why=pod.reason or DELETED,
        leaves_s=pod.killed_s,
        message=pod.message,
    )


def _of_node(view: View, job: Job, pod: PodFact) -> TaskLeaving | None:
    node = view.nodes.get(pod.node)
    if node is None or not node.eviction_reason:
        return None
    return TaskLeaving(
        **pod_fields(job, pod),
        node=pod.node,
        why=node.eviction_reason,
        leaves_s=node.leaves_s,
        message=node.eviction_taint,
    )


def _is_news(job: Job, notice: TaskLeaving) -> bool:
    known = job.leaving.get(notice.pod_uid)
    said = known.notices.get(notice.why) if known else None
    return said is None or is_earlier(notice.leaves_s, said.leaves_s)
