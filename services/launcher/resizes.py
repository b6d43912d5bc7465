"""Which pods change their cpu or memory in place, and of which it can be said that they have.

A pod that the running generation still uses may only grow for the next one; it shrinks once that
one runs.
"""

from __future__ import annotations

from services.launcher.actions import Action, ResizePod, Say
from services.launcher.facts import PodFact
from services.launcher.jobs import Job, ahead
from services.launcher.quantities import grows, same
from services.launcher.view import View
from shared.messages import AllocationDecided, Resources, TaskPlan, TaskUpdated


def resizes(view: View, job: Job) -> list[Action]:
    if job.newest is None or (job.generations[job.newest].abandoned and ahead(job, job.newest)):
        return []
    generation, pods = job.generations[job.newest], view.standing(job.uid)
    alive = [(task, pods[name]) for name, task in generation.tasks.items() if name in pods]
    steps = (
        _step(job, generation.decision, task, pod)
        for task, pod in alive
        if not (pod.leaving or pod.over)
    )
    return [step for step in steps if step is not None]


def _step(job: Job, decision: AllocationDecided, task: TaskPlan, pod: PodFact) -> Action | None:
    if not same(pod.resources, task.resources):
        if ahead(job, decision.generation) and not grows(pod.resources, task.resources):
            return None
        return _resize(decision, task, pod)
    if same(_last_said(job, pod), task.resources) or not same(
        pod.actual or pod.resources, task.resources
    ):
        return None
    return Say(message=_updated(job, decision, task, pod))


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
    return said.resources if said else pod.made_with


def _updated(job: Job, decision: AllocationDecided, task: TaskPlan, pod: PodFact) -> TaskUpdated:
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
