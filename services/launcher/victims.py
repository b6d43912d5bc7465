"""Which pods have to go.

Law: a victim is found by elimination: a pod that neither the running generation nor one that may
yet come wants.
"""

from __future__ import annotations

from services.launcher.actions import Action, DeletePod, DeleteService
from services.launcher.facts import PodFact
from services.launcher.generations import wanted
from services.launcher.jobs import Job
from services.launcher.view import View


def victims(view: View, job: Job) -> list[Action]:
    stays = wanted(job)
    return [
        deletion(pod)
        for name, pod in sorted(view.standing(job.uid).items())
        if name not in stays and not pod.leaving
    ]


def remains(view: View, uid: int) -> list[Action]:
    """Everything made for a job that is over: its pods by label, and the service that owns what
    else there is.
    """
    pods: list[Action] = [
        deletion(p) for _, p in sorted(view.standing(uid).items()) if not p.leaving
    ]
    service = view.services.get(uid)
    if service is None or service.leaving:
        return pods
    return [*pods, DeleteService(namespace=service.namespace, name=service.name, uid=service.uid)]


def deletion(pod: PodFact) -> DeletePod:
    """With the grace that was asked for: nothing is handed over, so what Kubernetes gives for that
    is not needed.
    """
    return DeletePod(namespace=pod.namespace, name=pod.name, uid=pod.uid, grace_s=pod.grace_s)


def orphaned_s(view: View, uid: int, orphan_s: float) -> float | None:
    """When what belongs to a job that the bus does not know is to be removed; None: not at all."""
    if uid in view.told.jobs or not orphan_s:
        return None
    names = {f"{pod.namespace}.{pod.job}" for pod in view.pods_of(uid)}
    if service := view.services.get(uid):
        names.add(f"{service.namespace}.{service.name}")
    if not names:
        return None
    return (
        0.0 if any(view.told.has_finished(name, uid) for name in names) else view.awake_s + orphan_s
    )
