"""Which objects of a job are created, resized and deleted.

Order of creation for a generation: the service that owns everything, the NetworkPolicy, the
credentials of the trainers if the bus asks for any, then the missing pods.

Law: a name is used by one pod at a time, and never again by another generation. If a pod of an
earlier job of the same name still has a name, the new pod waits.

Law: a pod is deleted only if neither the running generation nor one that is being prepared wants
it. A pod that the running generation uses may only grow for the next one; it shrinks once that one
runs.

TensorFlow's ports have no authentication. So a NetworkPolicy lets only the pods of a job reach each
other, where the network of the cluster enforces it. What they may reach is left open, because their
data may be anywhere. A policy that somebody has changed is left as it is.
"""

from __future__ import annotations

from typing import Any

from services.launcher.actions import (
    Action,
    CreatePod,
    CreatePolicy,
    CreateSecret,
    CreateService,
    DeletePod,
    DeleteService,
    Publish,
    ResizePod,
)
from services.launcher.facts import PodFact
from services.launcher.jobs import Job, is_ahead
from services.launcher.pods import is_growth, is_same_size
from services.launcher.settings import Settings
from services.launcher.steps.generations import wanted_tasks
from services.launcher.view import View
from shared.kube import eviction, labels
from shared.messages import AllocationDecided, Resources, TaskPlan, TaskUpdated

Body = dict[str, Any]


def missing_policy(view: View, job: Job, rules: Settings) -> list[Action]:
    """Unless the cluster has refused it: then it is asked for again with the next generation."""
    service, newest = view.services.get(job.uid), job.newest
    if has_network_policy(view, job, rules) or service is None or service.terminating:
        return []
    if newest is None or (job.uid, newest) in view.refused:
        return []
    return [CreatePolicy(decision=job.generations[newest].decision, owner_uid=service.uid)]


def has_network_policy(view: View, job: Job, rules: Settings) -> bool:
    """Whether pods may be made."""
    return not rules.network_policies or job.uid in view.policies


def policy_manifest(order: CreatePolicy) -> Body:
    decision = order.decision
    own = {
        "podSelector": {"matchLabels": {labels.JOB: decision.job, labels.UID: str(decision.uid)}}
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": decision.job,
            "namespace": decision.namespace,
            "labels": labels.job_labels(decision.job, decision.uid),
            "ownerReferences": [labels.owner(decision.job, order.owner_uid)],
        },
        "spec": {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]},
    }


def creations(view: View, job: Job, number: int, rules: Settings) -> list[Action]:
    generation, service = job.generations[number], view.services.get(job.uid)
    if service is None or service.terminating:
        free = service is None and not view.is_service_name_taken(job)
        return [CreateService(decision=generation.decision)] if free else []
    if rules.signing_key and service.uid not in view.services_with_credentials:
        return [CreateSecret(decision=generation.decision, owner_uid=service.uid)]
    if not has_network_policy(view, job, rules):
        return []
    there = {*view.existing_pods(job.uid), *job.pods_seen_alive(), *view.taken_names(job)}
    most_s = rules.grace_most_s
    grace_s = eviction.grace_period(
        generation.decision.request.grace_s, job.changes_s or (most_s,), most_s
    )
    return [
        CreatePod(
            decision=generation.decision,
            task=task,
            name=name,
            owner_uid=service.uid,
            grace_s=grace_s,
        )
        for name, task in generation.tasks.items()
        if name not in there
    ]


def unwanted_pods(view: View, job: Job) -> list[Action]:
    stays = wanted_tasks(job)
    return [
        delete_pod(pod)
        for name, pod in sorted(view.existing_pods(job.uid).items())
        if name not in stays and not pod.terminating
    ]


def remove_job(view: View, uid: int) -> list[Action]:
    """Everything made for a job that is over: its pods by label, and the service that owns what
    else there is.
    """
    pods: list[Action] = [
        delete_pod(p) for _, p in sorted(view.existing_pods(uid).items()) if not p.terminating
    ]
    service = view.services.get(uid)
    if service is None or service.terminating:
        return pods
    return [*pods, DeleteService(namespace=service.namespace, name=service.name, uid=service.uid)]


def delete_pod(pod: PodFact) -> DeletePod:
    """With the grace that was asked for: nothing is handed over, so what Kubernetes gives for that
    is not needed.
    """
    return DeletePod(namespace=pod.namespace, name=pod.name, uid=pod.uid, grace_s=pod.grace_s)


def removal_time(view: View, uid: int, orphan_s: float) -> float | None:
    """When what belongs to a job that the bus does not know is to be removed; None: not at all."""
    if uid in view.bus_state.jobs or not orphan_s:
        return None
    names = {f"{pod.namespace}.{pod.job}" for pod in view.pods_of(uid)}
    if service := view.services.get(uid):
        names.add(f"{service.namespace}.{service.name}")
    if not names:
        return None
    return (
        0.0
        if any(view.bus_state.has_finished(name, uid) for name in names)
        else view.watching_since_s + orphan_s
    )


def resizes(view: View, job: Job) -> list[Action]:
    if job.newest is None or (job.generations[job.newest].abandoned and is_ahead(job, job.newest)):
        return []
    generation, pods = job.generations[job.newest], view.existing_pods(job.uid)
    alive = [(task, pods[name]) for name, task in generation.tasks.items() if name in pods]
    steps = (
        _step(job, generation.decision, task, pod)
        for task, pod in alive
        if not (pod.terminating or pod.ended)
    )
    return [step for step in steps if step is not None]


def _step(job: Job, decision: AllocationDecided, task: TaskPlan, pod: PodFact) -> Action | None:
    if not is_same_size(pod.resources, task.resources):
        if is_ahead(job, decision.generation) and not is_growth(pod.resources, task.resources):
            return None
        return _resize(decision, task, pod)
    if is_same_size(_last_said(job, pod), task.resources) or not is_same_size(
        pod.allocated or pod.resources, task.resources
    ):
        return None
    return Publish(message=_task_update(job, decision, task, pod))


def _resize(decision: AllocationDecided, task: TaskPlan, pod: PodFact) -> ResizePod:
    return ResizePod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        task=task,
        revision=decision.revision,
        cpu_limits=decision.request.cpu_limits,
    )


def _last_said(job: Job, pod: PodFact) -> Resources:
    said = job.updated.get(pod.uid)
    return said.resources if said else pod.created_with


def _task_update(
    job: Job, decision: AllocationDecided, task: TaskPlan, pod: PodFact
) -> TaskUpdated:
    return TaskUpdated(
        namespace=job.namespace,
        job=job.job,
        uid=job.uid,
        generation=decision.generation,
        pod=pod.name,
        pod_uid=pod.uid,
        role=task.role,
        serial=task.serial,
        resources=task.resources,
        revision=decision.revision,
    )
