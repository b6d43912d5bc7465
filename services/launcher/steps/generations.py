"""The pending generation, its next step, and the reason to abandon it.

The newest generation wins, with one exception: once the running generation has saved its final
checkpoint for another one, that one is locked. No other generation could continue, so it keeps its
chance until it resumes or reaches its time limit.

Law: every reason to abandon a generation is listed with the time from which it counts (0: at once).
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

MAX_REASON, HEAD_SHARE = 4_000, 1 / 8
"""Maximum characters of a reason, and the share of its head if it is cut. The head has the name of
the task; the end of a traceback has the error.
"""
AT_ONCE = 0.0
AbandonReason = tuple[float, str]
"""The time from which the reason counts, and its text."""


def pending_generation(job: Job) -> int | None:
    """Return the generation that is being prepared."""
    locked = locked_generation(job)
    if locked is not None or job.newest is None:
        return locked
    newest = job.generations[job.newest]
    if not newest.decision.tasks or newest.abandoned or not is_ahead(job, job.newest):
        return None
    return job.newest


def abandon_superseded(view: View, job: Job) -> list[GenerationAbandoned]:
    """Return the orders that abandon the generations that a newer one has superseded."""
    locked = locked_generation(job)
    orders = []
    for number, generation in sorted(job.generations.items()):
        if number in (job.newest, locked) or not is_ahead(job, number):
            continue
        if generation.decision.tasks and not generation.abandoned:
            reason = f"superseded by generation {job.newest}"
            orders.append(abandonment(view, job, number, reason))
    return orders


def abandonment(view: View, job: Job, number: int, reason: str) -> GenerationAbandoned:
    return GenerationAbandoned(
        namespace=job.namespace,
        job=job.job,
        uid=job.uid,
        generation=number,
        reason=cut_middle(reason, MAX_REASON, HEAD_SHARE),
        stood=job.generations[number].spec is not None,
        goes_on=continuing_generation(view, job),
    )


def continuing_generation(view: View, job: Job) -> int | None:
    """Return the generation that goes on training; None if there is none, or if its chief ends."""
    if job.running not in job.generations or is_paused(job):
        return None
    chief = view.existing_pods(job.uid).get(job.generations[job.running].chief)
    if chief is None or _is_ending(job, chief):
        return None
    return job.running


def _is_ending(job: Job, pod: PodFact) -> bool:
    """Return True if a pod has ended or must end. A notice about its node may be withdrawn, so it
    does not count.
    """
    if pod.has_ended or pod.terminating:
        return True
    known = job.leaving.get(pod.uid)
    return known is not None and any(why not in OF_NODE for why in known.notices)


def predecessor(job: Job) -> int | None:
    """Return the generation that a new one would take over from: the running one, unless it has
    drained and stopped.
    """
    return None if job.running == job.drained else job.running


def wanted_tasks(job: Job) -> dict[str, TaskPlan]:
    """Return the tasks with pods that must stay, by pod name: those of the running generation and
    of every later one that is not abandoned.
    """
    tasks: dict[str, TaskPlan] = {}
    if is_paused(job):
        return tasks
    for number, generation in sorted(job.generations.items()):
        if number == job.running or (is_ahead(job, number) and not generation.abandoned):
            tasks.update(generation.tasks)
    return tasks


# ---------------------------------------------------------------- next step


def next_step(
    view: View, job: Job, number: int, now: float
) -> ClusterSpecPublished | HandOverOrdered | None:
    """Return the next order for the pending generation; None if a task is not ready for it."""
    generation = job.generations[number]
    if generation.ordered_s is not None:
        return None
    if generation.spec is None:
        return cluster_spec(view, job, generation, now)
    if unprepared_pods(view, job, generation):
        return None
    return hand_over(view, job, generation.spec)


def ready_tasks(view: View, job: Job, generation: Generation) -> dict[str, TaskReady]:
    """Return the tasks with a running pod that has reported itself ready, by pod name."""
    pods = view.existing_pods(job.uid)
    ready = {}
    for name in generation.tasks:
        pod = pods.get(name)
        if pod is None or pod.phase != "Running" or pod.terminating:
            continue
        if pod.uid in job.ready:
            ready[name] = job.ready[pod.uid]
    return ready


def unprepared_pods(view: View, job: Job, generation: Generation) -> list[str]:
    """Return the names of the pods that have not prepared the generation yet."""
    pods = view.existing_pods(job.uid)
    unprepared = []
    for name in sorted(generation.tasks):
        if name not in pods or pods[name].uid not in generation.prepared:
            unprepared.append(name)
    return unprepared


def cluster_spec(
    view: View, job: Job, generation: Generation, now: float
) -> ClusterSpecPublished | None:
    """Return the cluster spec; None until every task is ready."""
    ready = ready_tasks(view, job, generation)
    if len(ready) < len(generation.tasks):
        return None
    decision = generation.decision
    running = job.generations.get(job.running) if job.running is not None else None
    running_spec = running.spec if running else None
    addresses = [
        _task_address(task, ready[name], running_spec) for name, task in generation.tasks.items()
    ]
    before = drainable_generation(view, job, predecessor(job))
    return ClusterSpecPublished(
        namespace=job.namespace,
        job=job.job,
        uid=job.uid,
        generation=decision.generation,
        revision=decision.revision,
        request=decision.request,
        tasks=tuple(addresses),
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
    """Return the generation if its chief and every ps still run, even if only for seconds.

    Otherwise return None: it applies no more updates and cannot drain, so the next generation
    begins from a checkpoint.
    """
    if number not in job.generations:
        return None
    pods = view.existing_pods(job.uid)
    needed = [n for n, task in job.generations[number].tasks.items() if task.role != "worker"]
    for name in needed:
        if name not in pods or pods[name].phase != "Running":
            return None
    return number if needed else None


def free_port(ready: TaskReady, running: ClusterSpecPublished | None) -> int:
    """Return the first of a task's ports that the running generation does not use."""
    address = running.of(ready.pod) if running else None
    for port in ready.ports:
        if address is None or port != address.port:
            return port
    return ready.ports[0]


def _task_address(
    task: TaskPlan, ready: TaskReady, running: ClusterSpecPublished | None
) -> TaskAddress:
    port = free_port(ready, running)
    return TaskAddress(
        role=task.role,
        index=task.index,
        pod=ready.pod,
        host=ready.host,
        port=port,
        memory_gib=task.resources.memory_gib,
    )


# ---------------------------------------------------------------- reasons to abandon


def due_reason(reasons: list[AbandonReason], now: float) -> str | None:
    """Return the reason with the earliest time that has passed."""
    due = [reason for reason in reasons if reason[0] <= now]
    if not due:
        return None
    return min(due, key=lambda reason: reason[0])[1]


def abandon_reasons(view: View, job: Job, number: int, rules: Settings) -> list[AbandonReason]:
    """Return every reason to abandon a generation, now or later."""
    generation = job.generations[number]
    reasons = [
        step_timeout(view, job, generation, rules),
        *drain_failures(view, job, generation, rules),
    ]
    namespaces = rules.job_namespaces
    if namespaces and job.namespace not in namespaces:
        text = f"jobs do not run in namespace {job.namespace}, but in {', '.join(namespaces)}"
        reasons.append((AT_ONCE, text))
    if (job.uid, number) in view.refused:
        reasons.append((AT_ONCE, view.refused[job.uid, number]))
    before = generation.spec.previous if generation.spec else None
    if before is not None and before != job.running:
        text = (
            f"generation {job.running} resumed meanwhile; this one was prepared to follow {before}"
        )
        reasons.append((AT_ONCE, text))
    if generation.unsaved:
        reasons.append((AT_ONCE, f"no checkpoint to begin from: {generation.unsaved}"))
    by_task = {}
    for name in sorted(generation.tasks):
        by_task[name] = _task_reasons(view, job, generation, name, rules)
    is_locked = locked_generation(job) == number
    for name in _required_tasks(generation, by_task) if is_locked else by_task:
        reasons += by_task[name]
    return reasons


def step_timeout(view: View, job: Job, generation: Generation, rules: Settings) -> AbandonReason:
    """Return the time limit of the generation's present step, and the tasks that delay it."""
    if generation.ordered_s is not None:
        limit_s = rules.resume_timeout_s + restore_time_s(job.model_bytes, rules)
        due_s = max(generation.ordered_s, view.watching_since_s) + limit_s
        return due_s, f"training not resumed within {round(limit_s, 1):g} s of the hand-over"
    if generation.spec is not None:
        limit_s = rules.prepare_timeout_s + restore_time_s(job.model_bytes, rules)
        due_s = max(generation.spec_s, view.watching_since_s) + limit_s
        unprepared = ", ".join(unprepared_pods(view, job, generation))
        return due_s, f"not prepared within {round(limit_s, 1):g} s: {unprepared}"
    began_s = max(generation.decided_s, job.settled_s, view.watching_since_s)
    unready = _describe_unready(view, job, generation)
    return (
        began_s + rules.start_timeout_s,
        f"not ready within {rules.start_timeout_s:g} s: {unready}",
    )


def restore_time_s(model_bytes: int, rules: Settings) -> float:
    """Return the time in s that a generation may need to read a checkpoint of a model of this
    size in bytes, beyond that of a small one.
    """
    extension_s = rules.restore_s_per_gb * model_bytes / 1e9
    return min(extension_s, rules.restore_extension_max_s)


def drain_failures(
    view: View, job: Job, generation: Generation, rules: Settings
) -> list[AbandonReason]:
    """Return the reason if the chief that was ordered to drain has ended before it had drained."""
    if generation.ordered_s is None or generation.drains not in job.generations:
        return []
    if job.drained == generation.drains:
        return []
    name = job.generations[generation.drains].chief
    pod = view.existing_pods(job.uid).get(name)
    if name not in job.pods_seen_alive() or (pod is not None and not pod.has_ended):
        return []
    ended_s = max(pod.ended_s if pod else 0.0, generation.ordered_s)
    text = f"{name} ended before it had drained generation {generation.drains}"
    return [(ended_s + rules.drained_s, text)]


def _describe_unready(view: View, job: Job, generation: Generation) -> str:
    ready = ready_tasks(view, job, generation)
    pods = view.existing_pods(job.uid)
    parts = []
    for name in sorted(generation.tasks):
        if name not in ready:
            pod = pods.get(name)
            state = (pod.waiting or pod.unschedulable or pod.phase) if pod else "no pod"
            if pod is not None and pod.waiting and pod.waiting_message:
                state = f"{state}: {pod.waiting_message}"
            parts.append(f"{name} ({state})")
    return ", ".join(parts)


def _required_tasks(generation: Generation, by_task: dict[str, list[AbandonReason]]) -> list[str]:
    """Return the tasks that a locked generation cannot do without: the chief, every ps, and the
    workers if all of them have a reason.
    """
    workers = [name for name in by_task if generation.tasks[name].role == "worker"]
    if all(by_task[name] for name in workers):
        return list(by_task)
    return [name for name in by_task if name not in workers]


def _task_reasons(
    view: View, job: Job, generation: Generation, name: str, rules: Settings
) -> list[AbandonReason]:
    reasons: list[AbandonReason] = []
    number = generation.decision.generation
    pod = view.existing_pods(job.uid).get(name)
    if pod is None:
        if name in job.pods_seen_alive() and name not in _awaited_pods(view, job):
            reasons.append((AT_ONCE, f"{name} is gone"))
        return reasons
    prepared = generation.prepared.get(pod.uid)
    if prepared and prepared.error is not None:
        reasons.append((AT_ONCE, f"{name}: {prepared.error}"))
    return reasons + _pod_reasons(view, job, number, pod, rules)


def _pod_reasons(
    view: View, job: Job, number: int, pod: PodFact, rules: Settings
) -> list[AbandonReason]:
    if pod.has_ended:
        due_s = pod.ended_s + rules.overtake_s if number == job.newest else AT_ONCE
        ending = f"{pod.name} ended: {pod.reason} (exit code {pod.exit_code})"
        return [(due_s, ending + _after_headline(pod.message.strip()))]
    if pod.terminating:
        deleted_s = _replacement_deadline(job, pod, number, rules)
        if locked_generation(job) == number or deleted_s is None:
            return []
        return [(deleted_s, f"{pod.name} is being deleted")]
    reasons: list[AbandonReason] = []
    lost_s = loss_time(pod, view.nodes, rules.node_lost_s)
    if lost_s is not None:
        reasons.append((lost_s, f"{pod.name} is lost: node {pod.node} is not ready"))
    if pod.unschedulable:
        due_s = pod.unschedulable_since_s + rules.unschedulable_s
        reasons.append((due_s, f"{pod.name} is unschedulable: {pod.unschedulable}"))
    return reasons


def _replacement_deadline(job: Job, pod: PodFact, number: int, rules: Settings) -> float | None:
    """Return the time in s until which the launcher waits for a decision that replaces this pod.

    Such a decision keeps the ready pods. Return None if the pod's end is not published yet. Notices
    about the node do not count, because they may be old.
    """
    if number != job.newest or pod.phase != "Running":
        return AT_ONCE
    known = job.leaving.get(pod.uid)
    notices = known.notices if known else {}
    times = [notice.at_s for why, notice in notices.items() if why not in OF_NODE]
    return min(times) + rules.overtake_s if times else None


def _after_headline(message: str) -> str:
    """Return a message to append to a headline: one line beside it, several lines below it."""
    return f"\n{message}" if "\n" in message else f" {message}".rstrip()


def _awaited_pods(view: View, job: Job) -> set[str]:
    """Return the names of the pods that are ready but not listed by Kubernetes yet, because a watch
    can be late. They are not gone.
    """
    names = set()
    for uid, pod_uid in view.awaited_pods:
        if uid == job.uid and pod_uid in job.ready:
            names.add(job.ready[pod_uid].pod)
    return names
