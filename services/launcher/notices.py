"""Which tasks that work will have to go, though no decision sent them away, and by when.

Law: as with exits, only a pod that is wanted can be told to leave; so our own deletions are no news. Each reason is
said once a pod, with the time that is known for it: a later one may come sooner.

A deletionTimestamp is itself the moment at which the pod is killed. Of a node it is not known, except where whoever
taints it gives a fixed notice (`doom`).
"""

from __future__ import annotations

from services.launcher.exits import about_pod, by_name
from services.launcher.facts import PodFact
from services.launcher.generations import wanted
from services.launcher.jobs import Job
from services.launcher.view import View
from shared.messages import DELETED, TaskLeaving


def notices(view: View, job: Job) -> list[TaskLeaving]:
    """What is to be said now."""
    if not job.generations:
        return []
    stays = wanted(job)
    working = [p for p in by_name(view.pods_of(job.uid)) if p.name in stays and _works(p)]
    found = [notice for pod in working for notice in (_of_pod(job, pod), _of_node(view, job, pod)) if notice]
    return [notice for notice in found if notice.why not in _said(job, notice.pod_uid)]


def _works(pod: PodFact) -> bool:
    return pod.phase == "Running" and not pod.gone


def _of_pod(job: Job, pod: PodFact) -> TaskLeaving | None:
    """Somebody else deletes or evicts it, or will in a moment: then there is a condition and no time yet."""
    if not pod.leaving and not pod.reason:
        return None
    return TaskLeaving(
        **about_pod(job, pod), node=pod.node, why=pod.reason or DELETED, leaves_s=pod.leaves_s, message=pod.message
    )


def _of_node(view: View, job: Job, pod: PodFact) -> TaskLeaving | None:
    node = view.nodes.get(pod.node)
    if node is None or not node.doom:
        return None
    return TaskLeaving(
        **about_pod(job, pod), node=pod.node, why=node.doom, leaves_s=node.leaves_s, message=node.doomed_by
    )


def _said(job: Job, pod_uid: str) -> tuple[str, ...]:
    known = job.leaving.get(pod_uid)
    return known.whys if known else ()
