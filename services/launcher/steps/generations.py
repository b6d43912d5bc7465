"""Which generation is being prepared, its next step, and the reason to abandon it.

The newest generation wins, with one exception: once the running generation has saved its final
checkpoint for another one, that one is `locked`. Nothing else could continue, so it keeps its
chance until it resumes or its time is up.

Law: every reason to abandon a generation is listed with the time at which it counts (0: at once).
The earliest that has passed is the reason; the earliest that has not passed is the time of the
next check. There is one list, so no timer can be forgotten.
"""

from __future__ import annotations

from services.launcher.facts import PodFact, loss_time
from services.launcher.jobs import Generation, Job, is_ahead, is_paused, locked_generation
from services.launcher.settings import Settings
from services.launcher.view import View
from shared.messages import (
    OF_NODE,
    ClusterSpecPublished,
    GenerationAbandoned,
    HandOverOrdered,
    TaskAddress,
    TaskPlan,
    TaskReady,
)
from shared.text import cut_middle

KEPT, HEAD = 4_000, 1 / 8
"""Characters of a reason, and the share of its beginning, which says who; a traceback ends with
what.
"""


def pending_generation(job: Job) -> int | None:
    """The generation that is being brought up now."""
    held = locked_generation(job)
    if held is not None or job.newest is None:
        return held
    newest = job.generations[job.newest]
    return (
        job.newest
        if newest.decision.tasks and not newest.abandoned and is_ahead(job, job.newest)
        else None
    )


def abandon_superseded(view: View, job: Job) -> list[GenerationAbandoned]:
    """What has to be said of generations that a newer one has overtaken."""
    held = locked_generation(job)
    return [
        abandonment(view, job, number, f"superseded by generation {job.newest}")
        for number, generation in sorted(job.generations.items())
        if number not in (job.newest, held) and is_ahead(job, number)
        if generation.decision.tasks and not generation.abandoned
    ]


def abandonment(view: View, job: Job, number: int, reason: str) -> GenerationAbandoned:
    return GenerationAbandoned(
        namespace=job.namespace,
        job=job.job,
        uid=job.uid,
        generation=number,
        reason=cut_middle(reason, KEPT, HEAD),
        stood=job.generations[number].spec is not None,
        goes_on=continuing_generation(view, job),
    )


def continuing_generation(view: View, job: Job) -> int | None:
    """The generation that trains meanwhile; None where nothing does, or its chief ends: with the
    whole cluster, say.
    """
    runs = job.generations.get(-1 if job.running is None else job.running)
    pod = view.existing_pods(job.uid).get(runs.chief) if runs and not is_paused(job) else None
    return job.running if pod and not _ends(job, pod) else None


def _ends(job: Job, pod: PodFact) -> bool:
    """It has, or was told to; a node may yet take its word back."""
    known = job.leaving.get(pod.uid)
    return (
        pod.ended
        or pod.terminating
        or any(why not in OF_NODE for why in (known.notices if known else ()))
    )


def predecessor(job: Job) -> int | None:
    """The generation that a new one would take over from: the one that runs, unless it has drained
    and stopped.
    """
    return None if job.running == job.drained else job.running


def wanted_tasks(job: Job) -> dict[str, TaskPlan]:
    """The tasks whose pods must stay, by name: of the running generation and of every one that may
    yet come.
    """
    if is_paused(job):
        return {}
    live = (
        g
        for n, g in sorted(job.generations.items())
        if n == job.running or (is_ahead(job, n) and not g.abandoned)
    )
    return {name: task for generation in live for name, task in generation.tasks.items()}


def next_step(
    view: View, job: Job, number: int, now: float
) -> ClusterSpecPublished | HandOverOrdered | None:
    """What can be said of a generation that is being brought up; None: somebody is waited for."""
    generation = job.generations[number]
    if generation.ordered_s is not None:
        return None
    if generation.spec is None:
        return cluster_spec(view, job, generation, now)
    return None if unprepared_pods(view, job, generation) else hand_over(view, job, generation.spec)


def ready_tasks(view: View, job: Job, generation: Generation) -> dict[str, TaskReady]:
    """The tasks whose pod runs and has itself said that it is ready, by pod name."""
    pods = view.existing_pods(job.uid)
    alive = (pods[name] for name in generation.tasks if name in pods)
    return {pod.name: job.ready[pod.uid] for pod in alive if _runs(pod) and pod.uid in job.ready}


def unprepared_pods(view: View, job: Job, generation: Generation) -> list[str]:
    """Who has not prepared the generation yet."""
    pods = view.existing_pods(job.uid)
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
    before = drainable_generation(view, job, predecessor(job))
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
        previous=drainable_generation(view, job, spec.previous),
    )


def drainable_generation(view: View, job: Job, number: int | None) -> int | None:
    """The generation, if the pods of its chief and of every ps still run (be it for their last
    seconds); else it applies nothing more, and nobody can drain it: the next begins from a
    checkpoint.
    """
    generation = job.generations.get(-1 if number is None else number)
    needed = [n for n, t in generation.tasks.items() if t.role != "worker"] if generation else []
    pods = view.existing_pods(job.uid)
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
    return pod.phase == "Running" and not pod.terminating


NOW = 0.0
Trouble = tuple[float, str]


def abandon_reasons(view: View, job: Job, number: int, rules: Settings) -> list[Trouble]:
    generation = job.generations[number]
    found = [
        step_timeout(view, job, generation, rules),
        *drain_failures(view, job, generation, rules),
    ]
    if rules.job_namespaces and job.namespace not in rules.job_namespaces:
        found.append(
            (
                NOW,
                f"jobs do not run in namespace {job.namespace}, but in {', '.join(rules.job_namespaces)}",
            )
        )
    if (job.uid, number) in view.refused:
        found.append((NOW, view.refused[job.uid, number]))
    before = generation.spec.previous if generation.spec else None
    if before is not None and before != job.running:
        found.append(
            (
                NOW,
                f"generation {job.running} resumed meanwhile, and this one was prepared to follow {before}",
            )
        )
    if generation.unsaved:
        found.append((NOW, f"nothing to begin from: {generation.unsaved}"))
    of_task = {
        name: _of_task(view, job, generation, name, rules) for name in sorted(generation.tasks)
    }
    fragile = (
        _indispensable(generation, of_task) if locked_generation(job) == number else list(of_task)
    )
    return found + [trouble for name in fragile for trouble in of_task[name]]


def due_reason(found: list[Trouble], now: float) -> str | None:
    """The first that counts by now."""
    due = sorted((t for t in found if t[0] <= now), key=lambda t: t[0])
    return due[0][1] if due else None


def step_timeout(view: View, job: Job, generation: Generation, rules: Settings) -> Trouble:
    """The time limit of the step that the generation is at, and who keeps it waiting."""
    if generation.ordered_s is not None:
        due = max(generation.ordered_s, view.watching_since_s) + rules.resume_timeout_s
        return due, f"training not resumed within {rules.resume_timeout_s:g} s of the hand-over"
    if generation.spec is not None:
        due = max(generation.spec_s, view.watching_since_s) + rules.prepare_timeout_s
        waits = ", ".join(unprepared_pods(view, job, generation))
        return due, f"not prepared within {rules.prepare_timeout_s:g} s: {waits}"
    due = max(generation.decided_s, job.settled_s, view.watching_since_s) + rules.start_timeout_s
    return due, f"not ready within {rules.start_timeout_s:g} s: {_unready(view, job, generation)}"


def drain_failures(view: View, job: Job, generation: Generation, rules: Settings) -> list[Trouble]:
    """The chief that was ordered to drain has ended before it could: nobody will say that the next
    may begin.
    """
    before = job.generations.get(-1 if generation.drains is None else generation.drains)
    if generation.ordered_s is None or before is None or job.drained == generation.drains:
        return []
    name = before.chief
    pod = view.existing_pods(job.uid).get(name)
    if name not in job.pods_seen_alive() or (pod is not None and not pod.ended):
        return []
    due = max(pod.ended_s if pod else 0.0, generation.ordered_s) + rules.drained_s
    return [(due, f"{name} ended before it had drained generation {generation.drains}")]


def _unready(view: View, job: Job, generation: Generation) -> str:
    ready, pods = ready_tasks(view, job, generation), view.existing_pods(job.uid)
    return ", ".join(
        f"{name} ({_state(pods.get(name))})"
        for name in sorted(generation.tasks)
        if name not in ready
    )


def _state(pod: PodFact | None) -> str:
    return "no pod" if pod is None else pod.waiting or pod.unschedulable or pod.phase


def _indispensable(generation: Generation, of_task: dict[str, list[Trouble]]) -> list[str]:
    """A locked generation can do without a worker; without its chief, a ps or all workers it cannot
    come to be.
    """
    workers = [name for name in of_task if generation.tasks[name].role == "worker"]
    spared = workers if any(not of_task[name] for name in workers) else []
    return [name for name in of_task if name not in spared]


def _of_task(
    view: View, job: Job, generation: Generation, name: str, rules: Settings
) -> list[Trouble]:
    pod = view.existing_pods(job.uid).get(name)
    said = generation.prepared.get(pod.uid) if pod else None
    failed = [(NOW, f"{name}: {said.error}")] if said and said.error is not None else []
    return failed + _of_pod(view, job, generation.decision.generation, name, rules)


def _overtaken_s(job: Job, pod: PodFact, number: int, rules: Settings) -> float | None:
    """Until then a generation without the pod may be decided, which keeps what stands ready. None:
    it is told now.

    What was said of its node is another matter, and may be long ago.
    """
    if number != job.newest or pod.phase != "Running":
        return NOW
    known = job.leaving.get(pod.uid)
    said = (
        [notice.at_s for why, notice in known.notices.items() if why not in OF_NODE]
        if known
        else []
    )
    return min(said) + rules.overtake_s if said else None


def _behind(message: str) -> str:
    """A line is told in the same one; a log below, so that the first line can be read alone."""
    return f"\n{message}" if "\n" in message else f" {message}".rstrip()


def _awaited_pods(view: View, job: Job) -> set[str]:
    """Pods that are ready before Kubernetes has shown them to us: a watch may be late, and they are
    not gone.
    """
    return {
        job.ready[pod_uid].pod
        for uid, pod_uid in view.awaited_pods
        if uid == job.uid and pod_uid in job.ready
    }


def _of_pod(view: View, job: Job, number: int, name: str, rules: Settings) -> list[Trouble]:
    pod = view.existing_pods(job.uid).get(name)
    if pod is None:
        return (
            [(NOW, f"{name} is gone")]
            if name in job.pods_seen_alive() and name not in _awaited_pods(view, job)
            else []
        )
    if pod.ended:
        due = pod.ended_s + rules.overtake_s if number == job.newest else NOW
        return [
            (
                due,
                f"{name} ended: {pod.reason} (exit code {pod.exit_code}){_behind(pod.message.strip())}",
            )
        ]
    if pod.terminating:
        until_s = (
            None if locked_generation(job) == number else _overtaken_s(job, pod, number, rules)
        )
        return [] if until_s is None else [(until_s, f"{name} is being deleted")]
    lost = loss_time(pod, view.nodes, rules.node_lost_s)
    found = [] if lost is None else [(lost, f"{name} is lost: node {pod.node} is not ready")]
    if pod.unschedulable:
        found.append(
            (
                pod.unschedulable_since_s + rules.unschedulable_s,
                f"{name} is unschedulable: {pod.unschedulable}",
            )
        )
    return found
