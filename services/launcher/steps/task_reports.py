"""The tasks that have started, that have ended, and that are about to leave.

Law: only a pod that a decision wants is reported as lost or leaving. So the launcher's own
deletions are no facts and need no memory, and a restart cannot mistake a deleted pod for a loss.
Each notice is published once for a pod, and again if its deadline becomes known or earlier.

A deletionTimestamp is the time at which the pod is killed. For a node that time is unknown, unless
its taint comes with a fixed notice (`facts.py`).
"""

from __future__ import annotations

from typing import Any

from services.launcher.facts import PodFact, loss_time
from services.launcher.jobs import Job, is_earlier
from services.launcher.steps.generations import wanted_tasks
from services.launcher.view import View, without_pod
from shared.kube.objects import tolerations_of
from shared.messages import DELETED, JobMessage, TaskExited, TaskLeaving, TaskStarted

NODE_LOST = "NodeLost"


# ---------------------------------------------------------------- starts


def start_reports(view: View, job: Job) -> list[TaskStarted]:
    """Return the starts that are not published yet."""
    reports = []
    for pod in _wanted_pods(view, job):
        if _is_running(pod) and pod.uid not in job.started:
            reports.append(TaskStarted(**pod_fields(job, pod), node=pod.node))
    return reports


# ---------------------------------------------------------------- exits


def exit_reports(view: View, job: Job, now: float, node_lost_s: float) -> list[TaskExited]:
    """Return the ends that are not published yet."""
    reports = [_exit_report(view, job, pod, now, node_lost_s) for pod in _wanted_pods(view, job)]
    exits = [report for report in reports if report is not None]
    exits += _missed_exits(view, job)
    return [report for report in exits if report.pod_uid not in job.exited]


def _exit_report(
    view: View, job: Job, pod: PodFact, now: float, node_lost_s: float
) -> TaskExited | None:
    if pod.has_ended or pod.deleted:
        return TaskExited(
            **pod_fields(job, pod),
            node=pod.node,
            exit_code=pod.exit_code,
            reason=pod.reason or DELETED,
            message=pod.message,
        )
    lost_s = loss_time(pod, view.nodes, node_lost_s)
    if lost_s is None or lost_s > now:
        return None
    message = f"node {pod.node} is not ready"
    return TaskExited(**pod_fields(job, pod), node=pod.node, reason=NODE_LOST, message=message)


def _missed_exits(view: View, job: Job) -> list[TaskExited]:
    """Return the ends of started pods that were deleted while no launcher was watching."""
    existing = view.pods.get(job.uid, {})
    wanted = wanted_tasks(job)
    exits = []
    for pod_uid, fact in sorted(job.started.items()):
        if pod_uid not in existing and fact.pod in wanted:
            message = "gone while the launcher was away"
            exits.append(
                TaskExited(**task_fields(fact), node=fact.node, reason=DELETED, message=message)
            )
    return exits


def drop_reported_pods(view: View, uid: int) -> View:
    """Return the view without the deleted pods of a job that need no report any more."""
    job = view.bus_state.jobs.get(uid)
    wanted = wanted_tasks(job) if job else {}
    for pod in view.pods_of(uid):
        if not pod.deleted:
            continue
        if job is None or pod.uid in job.exited or pod.name not in wanted:
            view = without_pod(view, pod)
    return view


# ---------------------------------------------------------------- notices


def leaving_notices(view: View, job: Job) -> list[TaskLeaving]:
    """Return the notices that are not published yet."""
    notices = []
    for pod in _wanted_pods(view, job):
        if not _is_running(pod):
            continue
        for notice in (_pod_notice(job, pod), _node_notice(view, job, pod)):
            if notice is not None and _is_new(job, notice):
                notices.append(notice)
    return notices


def _pod_notice(job: Job, pod: PodFact) -> TaskLeaving | None:
    """Return the notice of a pod that is deleted or evicted. Before an eviction there is a
    condition without a time.
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


def _node_notice(view: View, job: Job, pod: PodFact) -> TaskLeaving | None:
    node = view.nodes.get(pod.node)
    if node is None or not node.eviction_reason or job.newest is None:
        return None
    request = job.generations[job.newest].decision.request
    node = node.eviction_of(tolerations_of(request))
    if not node.eviction_reason:
        return None
    return TaskLeaving(
        **pod_fields(job, pod),
        node=pod.node,
        why=node.eviction_reason,
        leaves_s=node.leaves_s,
        message=node.eviction_taint,
    )


def _is_new(job: Job, notice: TaskLeaving) -> bool:
    known = job.leaving.get(notice.pod_uid)
    published = known.notices.get(notice.why) if known else None
    return published is None or is_earlier(notice.leaves_s, published.leaves_s)


# ---------------------------------------------------------------- pods


def _wanted_pods(view: View, job: Job) -> list[PodFact]:
    """Return the pods that a decision wants, also deleted ones, by name."""
    wanted = wanted_tasks(job)
    pods = [pod for pod in view.pods_of(job.uid) if pod.name in wanted]
    return sorted(pods, key=lambda pod: pod.name)


def _is_running(pod: PodFact) -> bool:
    return pod.phase == "Running" and not pod.deleted


def pod_fields(job: Job, pod: PodFact) -> dict[str, Any]:
    """Return the fields about a pod that every message about a task has."""
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
    """Return the same fields from an earlier message about the task."""
    names = ("namespace", "job", "uid", "generation", "pod", "pod_uid", "role", "serial")
    return {name: getattr(fact, name) for name in names}
