"""Which tasks that work will have to go, though no decision sent them away, and by when.

Law: as with exits, only a pod that is wanted can be told to leave; so our own deletions are no
news. Each reason is said once a pod, and again when it has a time at last, or a sooner one.

A deletionTimestamp is itself the moment at which the pod is killed. Of a node it is not known,
except where whoever taints it gives a fixed notice (`doom`).
"""

from __future__ import annotations

from services.launcher.exits import about_pod, by_name
from services.launcher.facts import PodFact
from services.launcher.generations import wanted
from services.launcher.jobs import Job, sooner
from services.launcher.view import View
from shared.messages import DELETED, TaskLeaving


def notices(view: View, job: Job) -> list[TaskLeaving]:
    """What is to be said now."""
    if not job.generations:
        return []
    stays = wanted(job)
    working = [p for p in by_name(view.pods_of(job.uid)) if p.name in stays and _works(p)]
    found = [
        notice
        for pod in working
        for notice in (_of_pod(job, pod), _of_node(view, job, pod))
        if notice
    ]
    return [notice for notice in found if _is_news(job, notice)]


def _works(pod: PodFact) -> bool:
    return pod.phase == "Running" and not pod.gone


def _of_pod(job: Job, pod: PodFact) -> TaskLeaving | None:
    """Somebody else deletes or evicts it, or will in a moment: then there is a condition and no
    time yet.
    """
    if not pod.leaving and not pod.reason:
        return None
    return TaskLeaving(
        **about_pod(job, pod),
        node=pod.node,
        why=pod.reason or DELETED,
        leaves_s=pod.leaves_s,
        message=pod.message,
    )


def _of_node(view: View, job: Job, pod: PodFact) -> TaskLeaving | None:
    node = view.nodes.get(pod.node)
    if node is None or not node.doom:
        return None
    return TaskLeaving(
        **about_pod(job, pod),
        node=pod.node,
        why=node.doom,
        leaves_s=node.leaves_s,
        message=node.doomed_by,
    )


def _is_news(job: Job, notice: TaskLeaving) -> bool:
    known = job.leaving.get(notice.pod_uid)
    said = known.notices.get(notice.why) if known else None
    return said is None or sooner(notice.leaves_s, said.leaves_s)
