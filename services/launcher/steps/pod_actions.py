"""The objects of a job that are created, resized and deleted.

Order of creation for a generation: the service that owns everything, the NetworkPolicy, the
credentials of the trainers if the bus requires any, then the missing pods.

Law: a name is used by one pod at a time, and never again by another generation. If a pod of an
earlier job of the same name still has a name, the new pod waits.

Law: all pods of a job run one image, so one version of the trainer. Chief and workers agree on
private details, which another version changes. After an upgrade a running job keeps its image until
none of its pods runs.

Law: a pod is deleted only if neither the running generation nor a pending one wants it. A pod that
the running generation uses may only grow for the next one; it shrinks once that one runs.

TensorFlow's ports have no authentication. So a NetworkPolicy lets only the pods of a job reach each
other, if the network of the cluster enforces it. Their own connections are not restricted, because
their data can be anywhere. A policy that has been edited is left as it is.
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
from shared.kube import objects
from shared.messages import AllocationDecided, TaskPlan, TaskUpdated

Body = dict[str, Any]


# ---------------------------------------------------------------- create


def missing_policy(view: View, job: Job, rules: Settings) -> list[Action]:
    """Return the creation of a missing network policy. After a refusal it waits for the next
    generation.
    """
    service, newest = view.services.get(job.uid), job.newest
    if has_network_policy(view, job, rules) or service is None or service.terminating:
        return []
    if newest is None or (job.uid, newest) in view.refused:
        return []
    return [CreatePolicy(decision=job.generations[newest].decision, owner_uid=service.uid)]


def has_network_policy(view: View, job: Job, rules: Settings) -> bool:
    """Return True if the job has its network policy, or needs none."""
    return not rules.network_policies or job.uid in view.policies


def policy_manifest(order: CreatePolicy) -> Body:
    decision = order.decision
    selected = {objects.JOB_LABEL: decision.job, objects.UID_LABEL: str(decision.uid)}
    own_pods = {"podSelector": {"matchLabels": selected}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": decision.job,
            "namespace": decision.namespace,
            "labels": objects.job_labels(decision.job, decision.uid),
            "ownerReferences": [objects.owner(decision.job, order.owner_uid)],
        },
        "spec": {**own_pods, "policyTypes": ["Ingress"], "ingress": [{"from": [own_pods]}]},
    }


def creations(view: View, job: Job, number: int, rules: Settings) -> list[Action]:
    """Return the creation of the objects that a generation lacks, one kind after the other."""
    generation = job.generations[number]
    decision = generation.decision
    service = view.services.get(job.uid)
    if service is None and not view.is_service_name_taken(job):
        return [CreateService(decision=decision)]
    if service is None or service.terminating:
        return []
    if rules.signing_key and service.uid not in view.services_with_credentials:
        return [CreateSecret(decision=decision, owner_uid=service.uid)]
    if not has_network_policy(view, job, rules):
        return []
    used_names = {*view.existing_pods(job.uid), *job.pods_seen_alive(), *view.taken_names(job)}
    most_s = rules.grace_most_s
    changes_s = job.changes_s or (most_s,)
    grace_s = objects.grace_period(decision.request.grace_s, changes_s, most_s)
    image = running_image(view, job)
    actions: list[Action] = []
    for name, task in generation.tasks.items():
        if name not in used_names:
            actions.append(
                CreatePod(
                    decision=decision,
                    task=task,
                    name=name,
                    owner_uid=service.uid,
                    grace_s=grace_s,
                    image=image,
                )
            )
    return actions


def running_image(view: View, job: Job) -> str:
    """Return the image of the job's oldest running pod; empty if none runs."""
    running = [pod for pod in view.existing_pods(job.uid).values() if pod.phase == "Running"]
    if not running:
        return ""
    return min(running, key=lambda pod: (pod.generation, pod.name)).image


# ---------------------------------------------------------------- delete


def unwanted_pods(view: View, job: Job) -> list[Action]:
    """Return the deletion of the pods that no generation wants."""
    wanted = wanted_tasks(job)
    return [pod for pod in _delete_pods(view, job.uid) if pod.name not in wanted]


def remove_job(view: View, uid: int) -> list[Action]:
    """Return the deletion of a job's pods, and of the service that owns all other objects."""
    actions: list[Action] = [*_delete_pods(view, uid)]
    service = view.services.get(uid)
    if service is not None and not service.terminating:
        actions.append(
            DeleteService(namespace=service.namespace, name=service.name, uid=service.uid)
        )
    return actions


def _delete_pods(view: View, uid: int) -> list[DeletePod]:
    """Return the deletion of every pod of a job that is not being deleted already."""
    pods = sorted(view.existing_pods(uid).items())
    return [delete_pod(pod) for _, pod in pods if not pod.terminating]


def delete_pod(pod: PodFact) -> DeletePod:
    """Return the deletion of a pod with the grace period of the request.

    The pod's own, longer grace period is for hand-overs, and this is none.
    """
    return DeletePod(namespace=pod.namespace, name=pod.name, uid=pod.uid, grace_s=pod.grace_s)


def removal_time(view: View, uid: int, orphan_s: float) -> float | None:
    """Return the time from which the objects of a job that is not on the bus are deleted: at once
    if the job has finished; None: never.
    """
    if uid in view.bus_state.jobs or not orphan_s:
        return None
    names = {f"{pod.namespace}.{pod.job}" for pod in view.pods_of(uid)}
    if service := view.services.get(uid):
        names.add(f"{service.namespace}.{service.name}")
    if not names:
        return None
    if any(view.bus_state.has_finished(name, uid) for name in names):
        return 0.0
    return view.watching_since_s + orphan_s


# ---------------------------------------------------------------- resize


def resizes(view: View, job: Job) -> list[Action]:
    """Return the resizes of the newest generation's pods, and the reports of completed ones."""
    if job.newest is None:
        return []
    generation = job.generations[job.newest]
    if generation.abandoned and is_ahead(job, job.newest):
        return []
    pods = view.existing_pods(job.uid)
    actions = []
    for name, task in generation.tasks.items():
        pod = pods.get(name)
        if pod is None or pod.terminating or pod.has_ended:
            continue
        action = _resize_step(job, generation.decision, task, pod)
        if action is not None:
            actions.append(action)
    return actions


def _resize_step(
    job: Job, decision: AllocationDecided, task: TaskPlan, pod: PodFact
) -> Action | None:
    """Return the resize of a pod, or the report once its node has done it."""
    wanted = task.resources
    if not is_same_size(pod.resources, wanted):
        if is_ahead(job, decision.generation) and not is_growth(pod.resources, wanted):
            return None
        return ResizePod(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            task=task,
            revision=decision.revision,
            cpu_limits=decision.request.cpu_limits,
        )
    reported = job.updated.get(pod.uid)
    if is_same_size(reported.resources if reported else pod.created_with, wanted):
        return None
    if not is_same_size(pod.allocated or pod.resources, wanted):
        return None
    return Publish(message=_task_update(job, decision, task, pod))


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
