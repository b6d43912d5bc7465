"""The folds of one job: the change that each message makes to a `Job`.

Each fold is a pure function of the job, the message and the time (s) at which it was stored. A
message that is repeated, or older than what is known, changes nothing. The launcher folds the same
facts (`services/launcher/jobs.py`) and comes to the same result, in whatever order each of them
reads the two streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from services.allocator.state import observations
from services.allocator.state.job import (
    LOST_ANOTHER,
    TAKEN,
    EarlyResumption,
    Exit,
    Job,
    LeavingNotice,
    is_own_fault,
    is_unexplained,
    without_key,
)
from services.allocator.state.observations import (
    RECENT_KEPT,
    TRIED_KEPT,
    curve_of,
    generations_on_ps,
    is_crowded,
    measurable_report,
    reading_of,
    update_speeds,
)
from shared.auth import permissions
from shared.kube import objects
from shared.messages import (
    ABANDONED_KEPT,
    NOT_ENOUGH_MEMORY,
    TAINTED,
    AllocationDecided,
    CapacityChanged,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    JobChanged,
    JobRequested,
    Message,
    ProgressReported,
    Resources,
    TaskExited,
    TaskLeaving,
    TaskReady,
    TaskStarted,
    TrainingResumed,
)

PAUSES_KEPT = 5
UNKNOWN_LEAVING_KEPT = 128
"""Notices of pods that no generation has: a later decision may have them. A job can name any pod.
"""
RESIZES_KEPT = 4


def _on_decision(job: Job, message: AllocationDecided, stored_s: float) -> Job:
    """Fold a decision: start, resize or suspend the job. An older revision changes nothing. A
    resumption that was read before its decision is applied now.
    """
    if message.revision <= job.revision:
        return job
    if not message.tasks:
        return _on_suspension(job, message, stored_s)
    known = _with_decision(job, message, stored_s)
    if job.early is None:
        return known
    return _on_resumption(known, job.early.resumed, job.early.stored_s)


def _on_suspension(job: Job, message: AllocationDecided, stored_s: float) -> Job:
    """Fold a suspension: the job waits again, and keeps its observations. Its pods save and end,
    and hold their capacity until then.
    """
    repeated = bool(job.suspended_s) and not job.decided
    resumes_later = job.early is not None and job.early.resumed.generation > message.generation
    return replace(
        job,
        decided={},
        given_up={},
        running=None,
        pending_generation=None,
        revision=message.revision,
        generation=max(job.generation, message.generation),
        suspended_s=job.suspended_s if repeated else stored_s,
        suspension=message,
        sent_s=stored_s,
        repeats=job.repeats + 1 if repeated else 0,
        resized_from={},
        leaving={},
        starving={},
        crowded=False,
        early=job.early if resumes_later else None,
    )


def _with_decision(job: Job, message: AllocationDecided, stored_s: float) -> Job:
    """Return the job with a decision under its generation. It is pending, unless that generation
    runs: then its tasks change in place.
    """
    before = job.decided.get(message.generation)
    repeated = before is not None and before.tasks == message.tasks
    serials = job.serials
    for task in message.tasks:
        serials = max(serials, task.serial + 1)

    return replace(
        job,
        started_s=job.started_s if job.decided else stored_s,
        reader_blocks=job.reader_blocks or reader_blocks(message.request),
        sent_s=stored_s,
        repeats=job.repeats + 1 if repeated else 0,
        decided=job.decided | {message.generation: message},
        resized_from=_resized_from(job, message),
        pending_generation=job.pending_generation
        if message.generation == job.running
        else message.generation,
        crowded=False,
        revision=message.revision,
        generation=max(job.generation, message.generation),
        serials=serials,
    )


def _resized_from(job: Job, message: AllocationDecided) -> dict[str, tuple[Resources, ...]]:
    """Return the earlier resources of the running generation's pods, before this decision and
    before the last changes in place.
    """
    if job.active_decision is None or message.generation != job.running:
        return {}

    before = {job.pod(task): task.resources for task in job.active_decision.tasks}
    found = dict(job.resized_from)
    for task in message.tasks:
        pod = job.pod(task)
        size_before = before.get(pod, task.resources)
        if size_before != task.resources:
            found[pod] = (*found.get(pod, ()), size_before)[-RESIZES_KEPT:]
    return found


def _on_resumption(job: Job, message: TrainingResumed, stored_s: float) -> Job:
    """Fold the hand-over to a generation: it runs, and older ones are dropped. One older than the
    running generation changes nothing; one without a known decision is kept for later.
    """
    now = message.generation
    if now > job.generation:
        return _keep_early_resumption(job, message, stored_s)
    known = job.given_up | job.decided
    if now not in known or now <= (job.running or 0):
        return job

    pauses = job.pauses
    if message.handover_s is not None:
        pauses = (*pauses, message.handover_s)

    decided = {now: known[now]} | _newer_than(job.decided, now)
    return replace(
        job,
        running=now,
        pending_generation=None if job.pending_generation == now else job.pending_generation,
        decided=decided,
        given_up=_newer_than(job.given_up, now),
        leaving=_notices_within(job, decided),
        resumed_s=stored_s,
        suspended_s=0.0,
        suspension=None,
        resized_from={},
        starving={},
        starved=job.starved | _nodes_left_by_starving_tasks(job, message, stored_s),
        crowded=False,
        early=None,
        pauses=pauses[-PAUSES_KEPT:],
        abandonments=0,
        unprepared=0,
        abandoned_why="",
    )


def _keep_early_resumption(job: Job, message: TrainingResumed, stored_s: float) -> Job:
    """Keep the newest resumption until its decision is read."""
    if job.early is not None and message.generation <= job.early.resumed.generation:
        return job
    return replace(job, early=EarlyResumption(message, stored_s))


def _notices_within(job: Job, decided: dict[int, AllocationDecided]) -> dict[str, LeavingNotice]:
    """Return the notices of the pods of these decisions, by pod."""
    if not job.leaving:
        return {}
    pods: set[str] = set()
    for decision in decided.values():
        pods |= job.pods(decision)
    notices = {}
    for pod, notice in job.leaving.items():
        if pod in pods:
            notices[pod] = notice
    return notices


def _newer_than(
    decisions: dict[int, AllocationDecided], generation: int
) -> dict[int, AllocationDecided]:
    """Return the decisions of later generations."""
    return {number: decided for number, decided in decisions.items() if number > generation}


def _on_checkpoint(job: Job, message: CheckpointSaved, stored_s: float) -> Job:
    return _with_training_generation(job, message, stored_s)


def _with_training_generation(
    job: Job, message: CheckpointSaved | ProgressReported, stored_s: float
) -> Job:
    """Fold a generation that saves or reports: it trains, even if its `TrainingResumed` is no
    longer in the log.
    """
    trains = TrainingResumed(
        job=message.job,
        namespace=message.namespace,
        uid=message.uid,
        generation=message.generation,
        step=message.step,
        samples=message.samples,
    )
    return _on_resumption(job, trains, stored_s)


def _nodes_left_by_starving_tasks(
    job: Job, message: TrainingResumed, stored_s: float
) -> dict[str, float]:
    """Return the nodes of starving tasks that the job no longer has, with the time (s)."""
    if job.active_decision is None or not job.starving:
        return {}
    known = job.given_up | job.decided
    staying = {task.serial for task in known[message.generation].tasks}
    left_nodes = {}
    for task in job.active_decision.tasks:
        if task.serial not in staying and task.name() in job.starving:
            left_nodes[task.node] = stored_s
    return left_nodes


def _on_abandonment(job: Job, message: GenerationAbandoned, stored_s: float) -> Job:
    """Fold the end of a generation that the launcher gave up. It is kept in `given_up`, because it
    may resume all the same; only the pending one counts as a failed try.
    """
    generation = message.generation
    if generation not in job.decided or generation == job.running:
        return job

    given_up = sorted(
        (job.given_up | {generation: job.decided[generation]}).items(), key=_generation_of
    )
    job_after = replace(
        _with_restart_handover(job, message),
        decided=without_key(job.decided, generation),
        given_up=dict(given_up[-ABANDONED_KEPT:]),
    )

    # Only the newest generation in flight counts as a failed try.
    if job.pending_generation != generation:
        return job_after
    return replace(
        job_after,
        pending_generation=None,
        abandonments=job.abandonments + 1,
        unprepared=job.unprepared + message.stood,
        abandoned_s=stored_s,
        abandoned_why=message.reason,
    )


def _generation_of(item: tuple[int, AllocationDecided]) -> int:
    return item[0]


def _with_restart_handover(job: Job, message: GenerationAbandoned) -> Job:
    """If two generations do not fit side by side into the memory, the job stops and starts again
    from now on.
    """
    if NOT_ENOUGH_MEMORY not in message.reason:
        return job
    return replace(job, request=replace(job.request, handover="restart"))


def _on_leaving_notice(job: Job, message: TaskLeaving, stored_s: float) -> Job:
    """Fold a notice that a pod has to leave its node. Of two notices for one pod the one with the
    lower rank is kept.
    """
    notice = LeavingNotice(message.why, message.leaves_s, message.node)
    known = job.leaving.get(message.pod)
    if known is not None and notice.rank >= known.rank:
        return job
    notices = job.leaving | {message.pod: notice}
    return replace(job, leaving=_drop_oldest_notices(job, notices))


def _drop_oldest_notices(job: Job, leaving: dict[str, LeavingNotice]) -> dict[str, LeavingNotice]:
    """Return the notices by pod. If there are too many about unknown pods, their oldest ones are
    dropped.
    """
    known: list[str] = []
    for decision in [*job.given_up.values(), *job.decided.values()]:
        known += [job.pod(task) for task in decision.tasks]
    if len(leaving) <= UNKNOWN_LEAVING_KEPT + len(known):
        return leaving
    unknown = [pod for pod in leaving if pod not in known]
    left = dict(leaving)
    for pod in unknown[:-UNKNOWN_LEAVING_KEPT]:
        del left[pod]
    return left


SERIAL_DIGITS = 6


def with_serial_above(job: Job, pod: str) -> Job:
    """Return the job with serials above that of an existing pod. The decision that made the pod may
    be lost.
    """
    number = pod.rpartition("-")[2]
    if not number.isdecimal() or len(number) > SERIAL_DIGITS:
        return job
    serial = int(number)
    if serial < job.serials:
        return job
    return replace(job, serials=serial + 1)


def with_node_state(job: Job, name: str, node: CapacityChanged | None) -> Job:
    """Return the job with the present state of a node in its notices about that node; None: the
    node does not exist, so it takes nothing.
    """
    closed = TAINTED
    if node is not None:
        tolerations = objects.tolerations_of(job.request)
        closed = objects.leaving_reason(node.schedulable, node.taints, tolerations)
    updated = {}
    for pod, notice in job.leaving.items():
        if notice.node == name and notice.closed != closed:
            updated[pod] = replace(notice, closed=closed)
    if not updated:
        return job
    return replace(job, leaving=job.leaving | updated)


def _on_launcher_action(
    job: Job, message: ClusterSpecPublished | TaskReady | TaskStarted, stored_s: float
) -> Job:
    """Fold a sign that the launcher acts on the pending decision, so that the decision is not
    repeated: its cluster spec, or one of its new pods.
    """
    pending = job.pending_decision
    if pending is None or job.acted_on == pending.generation:
        return job
    if isinstance(message, ClusterSpecPublished):
        acted = message.generation == pending.generation
    else:
        acted = message.pod in job.new_pods(pending)
    return replace(job, acted_on=pending.generation) if acted else job


def _on_task_exit(job: Job, message: TaskExited, stored_s: float) -> Job:
    """Fold the exit of a pod, the first one only. In the running generation, or in the pending one
    if none runs, it counts as a failure or as an unexplained kill.
    """
    if message.pod in job.exits:
        return job
    ended = Exit(message.role, message.exit_code, message.reason, message.message, stored_s)
    job = replace(job, exits=job.exits | {message.pod: ended})

    # Only exits in the running generation, or else in the pending one, count as failures.
    base = job.active_decision or job.pending_decision
    if base is None or message.pod not in job.pods(base):
        return job
    if is_own_fault(ended):
        return _with_failure(job, base.generation, stored_s)
    if is_unexplained(ended) and not _lost_taken_task(job, base, ended):
        killed = {*job.killed_generations, base.generation}
        return replace(job, killed_generations=tuple(sorted(killed)))
    return job


def _with_failure(job: Job, generation: int, stored_s: float) -> Job:
    """Return the job with one more failure by its own fault, of a task of this generation."""
    failed_s = job.failed_s | {generation: stored_s}
    generations = {*job.failed_generations, *failed_s}
    return replace(job, failed_generations=tuple(sorted(generations)), failed_s=failed_s)


def _lost_taken_task(job: Job, base: AllocationDecided, ended: Exit) -> bool:
    """Return True if a task ended because another one of its generation had been taken away."""
    if ended.code != LOST_ANOTHER:
        return False
    for task in base.tasks:
        other = job.exit_of(task)
        if other and other.reason in TAKEN:
            return True
    return False


def _on_progress(job: Job, message: ProgressReported, stored_s: float) -> Job:
    """Fold a progress report of the running generation. A newer generation that reports is taken to
    run; late and repeated reports change nothing.
    """
    if message.generation > (job.running or 0):
        job = _with_training_generation(job, message, stored_s)
    running = job.active_decision
    if running is None or message.generation != job.running:
        return job
    if job.progress and not _is_newer(message, job.progress):
        return job
    return _with_report(job, running, measurable_report(message), stored_s)


def _with_report(
    job: Job, running: AllocationDecided, message: ProgressReported, stored_s: float
) -> Job:
    """Return the job with the content of a report: speeds, use of CPU and memory, and loss.
    Progress beyond all earlier reports clears the record of unexplained kills.
    """
    message = _with_known_noise(message, job.progress)
    reading = reading_of(running, message, stored_s)
    disturbed = job.pending_generation is not None
    tried = update_speeds(job.tried, reading, by_cores=True, disturbed=disturbed)

    return replace(
        job,
        progress=message,
        starving=observations.starving_since(job.starving, message.usage, running.tasks, stored_s),
        crowded=is_crowded(running, reading, generations_on_ps(job.request, message)),
        furthest=max(job.furthest, message.samples),
        killed_generations=() if message.samples > job.furthest else job.killed_generations,
        observed=update_speeds(job.observed, reading, disturbed=disturbed),
        tried=tried[-TRIED_KEPT:],
        recent=(*job.recent, reading)[-RECENT_KEPT:],
        curve=curve_of(job.curve, message),
    )


def _with_known_noise(message: ProgressReported, last: ProgressReported | None) -> ProgressReported:
    """Return the report, with the last gradient noise that was measured if it has none. A generation
    has none at first, and the job's desired size must not change because of that.
    """
    if last is None:
        return message
    noise, bound = message.gradient_noise, message.gradient_noise_at_least
    if noise is None:
        noise = last.gradient_noise
    if bound is None:
        bound = last.gradient_noise_at_least
    return replace(message, gradient_noise=noise, gradient_noise_at_least=bound)


def _is_newer(message: ProgressReported, last: ProgressReported) -> bool:
    """Return True if a report is of a later generation, or of a later step of the same one."""
    return (message.generation, message.step) > (last.generation, last.step)


def _on_change(job: Job, message: JobChanged, stored_s: float) -> Job:
    """Fold a change by a user. A job that is resumed waits from now on."""
    resumes = job.suspended_by_user and not message.suspended
    request = replace(
        job.request,
        priority=message.priority,
        ps=message.ps,
        workers=message.workers,
    )
    return replace(
        job,
        request=request,
        changed=True,
        suspended_by_user=message.suspended,
        suspended_s=stored_s if resumes and job.suspended_s else job.suspended_s,
    )


def reader_blocks(request: JobRequested) -> int:
    """Return the number of blocks of readers in credentials that are made for this request."""
    return permissions.reader_blocks(1 + request.ps.max + request.workers.max)


JOB_FOLDS: dict[type[Message], Callable[[Job, Any, float], Job]] = {
    AllocationDecided: _on_decision,
    JobChanged: _on_change,
    TrainingResumed: _on_resumption,
    GenerationAbandoned: _on_abandonment,
    TaskLeaving: _on_leaving_notice,
    TaskExited: _on_task_exit,
    ProgressReported: _on_progress,
    CheckpointSaved: _on_checkpoint,
    ClusterSpecPublished: _on_launcher_action,
    TaskReady: _on_launcher_action,
    TaskStarted: _on_launcher_action,
}
