"""When a generation's cluster spec can be published and when its hand-over can be ordered, and what
they say.
"""

from __future__ import annotations

from services.launcher.facts import PodFact
from services.launcher.generations import previous
from services.launcher.jobs import Generation, Job
from services.launcher.view import View
from shared.messages import ClusterSpecPublished, HandOverOrdered, TaskAddress, TaskPlan, TaskReady


def next_step(
    view: View, job: Job, number: int, now: float
) -> ClusterSpecPublished | HandOverOrdered | None:
    """What can be said of a generation that is being brought up; None: somebody is waited for."""
    generation = job.generations[number]
    if generation.ordered_s is not None:
        return None
    if generation.spec is None:
        return cluster_spec(view, job, generation, now)
    return None if unprepared(view, job, generation) else hand_over(view, job, generation.spec)


def ready_tasks(view: View, job: Job, generation: Generation) -> dict[str, TaskReady]:
    """The tasks whose pod runs and has itself said that it is ready, by pod name."""
    pods = view.standing(job.uid)
    alive = (pods[name] for name in generation.tasks if name in pods)
    return {pod.name: job.ready[pod.uid] for pod in alive if _runs(pod) and pod.uid in job.ready}


def unprepared(view: View, job: Job, generation: Generation) -> list[str]:
    """Who has not prepared the generation yet."""
    pods = view.standing(job.uid)
    return [
        n
        for n in sorted(generation.tasks)
        if n not in pods or pods[n].uid not in generation.prepared
    ]


def cluster_spec(
    view: View, job: Job, generation: Generation, now: float
) -> ClusterSpecPublished | None:
    ready, decision = ready_tasks(view, job, generation), generation.decision
    if len(ready) < len(generation.tasks):
        return None
    running = job.generations.get(job.running) if job.running is not None else None
    before = able(view, job, previous(job))
    taken = running.spec if running else None
    return ClusterSpecPublished(
        namespace=job.namespace,
        job=job.job,
        uid=job.uid,
        generation=decision.generation,
        revision=decision.revision,
        request=decision.request,
        tasks=tuple(_address(task, ready[name], taken) for name, task in generation.tasks.items()),
        batch=max(1, decision.batch),
        previous=before,
        off_s=decision.off_s if before is None else 0.0,
        published_s=now,
        decided_s=generation.decided_s,
    )


def hand_over(view: View, job: Job, spec: ClusterSpecPublished) -> HandOverOrdered:
    return HandOverOrdered(
        namespace=spec.namespace,
        job=spec.job,
        uid=spec.uid,
        generation=spec.generation,
        previous=able(view, job, spec.previous),
    )


def able(view: View, job: Job, number: int | None) -> int | None:
    """The generation, if the pods of its chief and of every ps still run (be it for their last
    seconds); else it applies nothing more, and nobody can drain it: the next begins from a
    checkpoint.
    """
    generation = job.generations.get(-1 if number is None else number)
    needed = [n for n, t in generation.tasks.items() if t.role != "worker"] if generation else []
    pods = view.standing(job.uid)
    return (
        number if needed and all(n in pods and pods[n].phase == "Running" for n in needed) else None
    )


def free_port(ready: TaskReady, running: ClusterSpecPublished | None) -> int:
    """Of a task's two ports, the one that the running generation does not use."""
    used = running.of(ready.pod) if running else None
    return next((port for port in ready.ports if used is None or port != used.port), ready.ports[0])


def _address(task: TaskPlan, ready: TaskReady, running: ClusterSpecPublished | None) -> TaskAddress:
    port = free_port(ready, running)
    return TaskAddress(role=task.role, index=task.index, pod=ready.pod, host=ready.host, port=port)


def _runs(pod: PodFact) -> bool:
    return pod.phase == "Running" and not pod.leaving
