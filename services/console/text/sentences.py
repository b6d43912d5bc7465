"""Every message as one sentence. The job or node that it is about is shown beside it.

Foreign text (the traceback of a program, a reason) is cut to its last line, without control
characters. This module also has the text for a job without pods: why there is no log, and where to
look instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from services.allocator.job_views import ENDED, JobView
from services.allocator.placement.placers import ROLES
from services.allocator.placement.trial import describe_resources as amount
from services.trainer.worker import scaling
from shared.messages import (
    CORDONED,
    DELETED,
    EVICTED,
    SIGTERM,
    TAINTED,
    AllocationDecided,
    CancelRequested,
    CapacityChanged,
    ChangeRejected,
    ChangeRequested,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    ClaimsChanged,
    ClusterSpecPublished,
    DeadLetter,
    ForgetRequested,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobAccepted,
    JobChanged,
    JobFinished,
    JobRejected,
    JobRequested,
    Message,
    PreparationParts,
    ProgressReported,
    QuotaChanged,
    ResumeRequested,
    ServiceTroubled,
    Span,
    SuspendRequested,
    TaskAddress,
    TaskExited,
    TaskLeaving,
    TaskPlan,
    TaskReady,
    TaskStarted,
    TaskUpdated,
    TrainingResumed,
)
from shared.text import (
    format_count,
    format_duration,
    format_names,
    headline,
    last_line,
    plural_form,
    single_line,
)


def sentence(message: Message | DeadLetter) -> str:
    return single_line(SENTENCES[type(message)](message))


# ---------------------------------------------------------------- requests and answers


def _describe_request(m: JobRequested) -> str:
    workers = f"{_format_span(m.workers)} {_plural_of_span(m.workers, 'worker')}"
    size = f"{_format_span(m.ps)} ps, {workers}, batch {_format_span(m.batch)}"
    return f"asks to train {m.program.name} for {format_count(m.epochs, 'epoch')} with {size}"


def _describe_cancel(m: CancelRequested) -> str:
    return "is to be cancelled: its pods are removed"


def _describe_change_request(m: ChangeRequested) -> str:
    parts = [] if m.priority is None else [f"priority {m.priority}"]
    for role, span in (("ps", m.ps), ("workers", m.workers)):
        if span:
            parts.append(f"{span.min} to {span.max} {role}")
    return f"is to be changed: {', '.join(parts) or 'no change'}"


def _describe_suspend(m: SuspendRequested) -> str:
    return "is to be suspended: it saves and releases its resources"


def _describe_resume(m: ResumeRequested) -> str:
    return "is to resume"


def _describe_forget(m: ForgetRequested) -> str:
    return "is to be forgotten: its messages are removed"


def _describe_change(m: JobChanged) -> str:
    state = "is suspended" if m.suspended else "is not suspended"
    workers = format_count(m.workers.max, "worker")
    bounds = f"{m.ps.min} to {m.ps.max} ps, {m.workers.min} to {workers}"
    return f"{state}, priority {m.priority}, {bounds}"


def _describe_refused_change(m: ChangeRejected) -> str:
    return f"is not changed: {'; '.join(m.reasons)}"


def _describe_acceptance(m: JobAccepted) -> str:
    return f"is accepted as job {m.uid}, policy {m.request.policy or 'of the cluster'}"


def _describe_rejection(m: JobRejected) -> str:
    return f"is refused: {'; '.join(m.reasons)}"


# ---------------------------------------------------------------- capacity and decisions


def _describe_capacity(m: CapacityChanged) -> str:
    if m.gone:
        return "is gone"
    parts = [f"has {amount(m.free)} free of {amount(m.allocatable)}"]
    if m.own:
        parts.append(f"{format_count(len(m.own), 'pod')} of jobs")
    if not m.ready:
        parts.append("is not ready")
    if not m.schedulable:
        parts.append("is cordoned")
    return ", ".join(parts)


def _describe_quota(m: QuotaChanged) -> str:
    parts = []
    for bound in m.bounds:
        limit = f"{bound.quota} allows {bound.hard:.6g} {bound.resource}"
        parts.append(f"{limit}, {bound.used:.6g} used")
    for bounds in m.task_bounds:
        parts.append(f"{bounds.limit_range} limits each task")
    return "; ".join(parts) or "has no quota"


def _describe_claims(m: ClaimsChanged) -> str:
    claims = sum(len(placement.claims) for placement in m.placements)
    if not claims:
        return "has no claim bound to nodes"
    return f"has {format_count(claims, 'claim')} bound to some nodes only"


def _describe_decision(m: AllocationDecided) -> str:
    if not m.tasks:
        return f"gets no tasks: {m.reason}"
    nodes = format_count(len({task.node for task in m.tasks}), "node")
    size = f"{_count_roles(m.tasks)} on {nodes}, batch {m.batch}"
    return f"gets {size}: {m.reason}{_describe_rate(m)}"


def _describe_rate(m: AllocationDecided) -> str:
    """Return the learning rate and its rules, if it differs from the program's."""
    asked, workers = m.request, sum(task.role == "worker" for task in m.tasks)
    by_batch = scaling.rate_for_batch(asked.learning_rate, m.batch, asked.batch.start)
    by_workers = scaling.rate_for_workers(asked.worker_rate_rule, workers, asked.workers.start)
    rules = []
    if by_batch != 1.0:
        rules.append(f"{asked.learning_rate}: batch {asked.batch.start} -> {m.batch}")
    if by_workers != 1.0:
        now = format_count(workers, "worker")
        rules.append(f"{asked.worker_rate_rule}: {asked.workers.start} -> {now}")
    if not rules:
        return ""
    share = by_batch * by_workers
    return f"; learning rate 1 -> {share:.3g} of the program's ({', '.join(rules)})"


# ---------------------------------------------------------------- tasks and generations


def _describe_ready(m: TaskReady) -> str:
    return f"{m.task()} is ready at {m.host}, ports {m.ports[0]} and {m.ports[1]}"


def _describe_task_start(m: TaskStarted) -> str:
    return f"{m.task()} runs on {m.node}"


def _describe_leaving(m: TaskLeaving) -> str:
    cause, remedy = LEAVES.get(m.why, (m.why, MOVES))
    if m.message:
        cause = f"{cause} ({headline(m.message)})"
    until = f", by {_format_clock(m.leaves_s)} at the latest" if m.leaves_s else ""
    return f"{m.task()} has to leave {m.node}{until}: {cause}; {remedy}"


MOVES = "it runs until another node has its replacement; the chief saves before it ends"
ENDS = (
    "it runs until another node has its replacement or, if all tasks of its job have to end, until"
    " the chief has saved"
)
LEAVES = {
    SIGTERM: ("it received SIGTERM", ENDS),
    EVICTED: ("Kubernetes evicts the pod", MOVES),
    DELETED: ("the pod is being deleted", MOVES),
    CORDONED: (
        "the node is cordoned",
        "it moves when all such tasks fit elsewhere, and stays if the node is uncordoned",
    ),
    TAINTED: ("the node is being taken away", MOVES),
}
"""Cause and remedy, by the reason."""


def _describe_exit(m: TaskExited) -> str:
    code = "without an exit code" if m.exit_code is None else f"with code {m.exit_code}"
    parts = [f"{m.task()} ended on {m.node} {code}", m.reason, last_line(m.message)]
    return ", ".join(filter(None, parts))


def _describe_spec(m: ClusterSpecPublished) -> str:
    size = f"{_count_roles(m.tasks)}, batch {m.batch}"
    before = "" if m.previous is None else f", after generation {m.previous}"
    return f"generation {m.generation} is {size}{before}"


def _describe_prepared(m: GenerationPrepared) -> str:
    if m.error is not None:
        return f"{m.task()} could not prepare generation {m.generation}: {headline(m.error)}"
    text = f"{m.task()} is prepared for generation {m.generation}"
    if not m.seconds:
        return text  # a ps or worker only starts its server, so nothing is measured
    return f"{text} after {m.seconds:.1f} s{_describe_parts(m.parts)}"


def _describe_parts(parts: PreparationParts | None) -> str:
    if parts is None:
        return ""
    seconds = [
        f"connect {parts.connect_s:.1f}",
        f"build {parts.build_s:.1f}",
        f"trace {parts.trace_s:.1f}",
        f"first step {parts.first_step_s:.1f}",
    ]
    return f" ({', '.join(seconds)}; import {parts.import_s:.1f} before)"


def _describe_hand_over(m: HandOverOrdered) -> str:
    if m.previous is None:
        return f"generation {m.generation} is to start"
    return f"generation {m.previous} is to drain and generation {m.generation} to take over"


def _describe_abandoned(m: GenerationAbandoned) -> str:
    meanwhile = "" if m.goes_on is None else f"; generation {m.goes_on} continues"
    return f"generation {m.generation} was abandoned: {headline(m.reason)}{meanwhile}"


def _describe_update(m: TaskUpdated) -> str:
    return f"{m.task()} has {amount(m.resources)} now, changed in place"


# ---------------------------------------------------------------- training and incidents


WAITED_LEAST_S = 1.0


def _describe_checkpoint(m: CheckpointSaved) -> str:
    duration = format_duration(m.seconds, fine=True)
    text = f"generation {m.generation} saved step {m.step} in {duration}"
    if m.pause_s and not m.stood and not m.final:
        text += f"; training stopped for {format_duration(m.pause_s, fine=True)}"
    if m.final:
        text += "; it makes no more updates"
    if m.stood:
        text += f"; all training stopped meanwhile: {m.stood}"
    if m.waited_s >= WAITED_LEAST_S:
        text += f"; the bus answered only after {format_duration(m.waited_s)}"
    return text


def _describe_failed_checkpoint(m: CheckpointFailed) -> str:
    given_up = (
        "" if m.successor is None else f"; generation {m.successor} is abandoned for this reason"
    )
    text = f"generation {m.generation} could not save step {m.step}"
    return f"{text}: {m.cause}; {m.remedy}{given_up}"


def _describe_skipped_checkpoint(m: CheckpointSkipped) -> str:
    instead = f"it uses {m.instead}" if m.instead else "no other is left, so it starts again"
    return f"generation {m.generation} cannot resume from {m.path}: {m.cause}; {instead}"


def _describe_resumed(m: TrainingResumed) -> str:
    at = "" if m.learning_rate is None else f", learning rate {m.learning_rate:.4g}"
    if m.pause_s is None:
        return f"generation {m.generation} trains, from step {m.step}{at}"
    p = m.phases
    off = f", off for {format_duration(m.off_s)} before" if m.off_s else ""
    waiting = f"waiting until ready and traced {p.waiting_s(m.pause_s):.2f}"
    before = f"drain {p.drain_s:.2f}, save {p.save_s:.2f}, {waiting}"
    phases = f"{before}, restore {p.restore_s:.2f}, first step {p.first_step_s:.2f}"
    pause = f"after a pause of {m.pause_s:.2f} s ({phases}){off}"
    return f"generation {m.generation} continues from step {m.step} {pause}{at}"


def _describe_progress(m: ProgressReported) -> str:
    share = 100 * m.samples / m.total_samples if m.total_samples else 0.0
    loss = "" if m.loss is None else f", loss {m.loss:.4f}"
    epochs = format_count(m.epoch, "epoch")
    speed = f"{m.samples_per_second:.0f} examples/s"
    stale = ""
    if m.staleness is not None and m.staleness.largest:
        stale = f", gradients {m.staleness.mean:.1f} updates old (p99 {m.staleness.p99})"
    if m.staleness is not None and m.staleness.dropped:
        stale += f", {format_count(m.staleness.dropped, 'gradient')} dropped as too stale"
    return f"{share:.1f} % done, {epochs} complete, {speed}{loss}{stale}"


def _describe_finish(m: JobFinished) -> str:
    text = f"{m.outcome} after {format_count(m.samples, 'example')}"
    for metrics in describe_metrics(m.metrics):
        text += f", {metrics}"
    cause = headline(m.cause)
    return f"{text}: {cause}" if cause else text


def _describe_incident(m: ServiceTroubled) -> str:
    lasted = "" if m.seconds is None else f", over after {m.seconds:.1f} s"
    return f"{TROUBLES[m.what]}{lasted}: {headline(m.cause)}; {m.remedy}"


TROUBLES = {
    "no room": "a stream is full",
    "bus away": "the bus was away",
    "bus slow": "reads too slowly from the bus",
    "kubernetes away": "Kubernetes cannot be read",
    "began again": "started again",
}
"""The text of an incident, by its kind."""


def _describe_dead_letter(m: DeadLetter) -> str:
    where = f"{m.subject} (sequence {m.sequence}, published by {m.said_by})"
    return f"{where} could not be read: {m.error}; `weir dead-letters` shows all of it"


# ---------------------------------------------------------------- parts of sentences


def _format_span(span: Span) -> str:
    return str(span.start) if span.min == span.max else f"{span.start} ({span.min} to {span.max})"


def _plural_of_span(span: Span, noun: str) -> str:
    return noun if span.max == 1 else plural_form(noun)


def _count_roles(tasks: Iterable[TaskPlan | TaskAddress]) -> str:
    """Return the number of tasks of each role."""
    counts = Counter(task.role for task in tasks)
    parts = []
    for role in ROLES:
        if counts[role]:
            parts.append(format_count(counts[role], role))
    return " + ".join(parts)


def _format_clock(point_s: float) -> str:
    return datetime.fromtimestamp(point_s, UTC).strftime("%H:%M:%S UTC")


SENTENCES: dict[type[Message] | type[DeadLetter], Callable[[Any], str]] = {
    JobRequested: _describe_request,
    CancelRequested: _describe_cancel,
    ChangeRequested: _describe_change_request,
    SuspendRequested: _describe_suspend,
    ResumeRequested: _describe_resume,
    ForgetRequested: _describe_forget,
    JobAccepted: _describe_acceptance,
    JobRejected: _describe_rejection,
    JobChanged: _describe_change,
    ChangeRejected: _describe_refused_change,
    CapacityChanged: _describe_capacity,
    QuotaChanged: _describe_quota,
    ClaimsChanged: _describe_claims,
    AllocationDecided: _describe_decision,
    TaskReady: _describe_ready,
    TaskStarted: _describe_task_start,
    TaskLeaving: _describe_leaving,
    TaskExited: _describe_exit,
    ClusterSpecPublished: _describe_spec,
    GenerationPrepared: _describe_prepared,
    HandOverOrdered: _describe_hand_over,
    GenerationAbandoned: _describe_abandoned,
    TaskUpdated: _describe_update,
    CheckpointSaved: _describe_checkpoint,
    CheckpointFailed: _describe_failed_checkpoint,
    CheckpointSkipped: _describe_skipped_checkpoint,
    TrainingResumed: _describe_resumed,
    ProgressReported: _describe_progress,
    JobFinished: _describe_finish,
    ServiceTroubled: _describe_incident,
    DeadLetter: _describe_dead_letter,
}

HOW_TO_SUBMIT = "`weir submit FILE` submits one"
LISTED = 10
"""The number of jobs that are named if a job is unknown."""


def describe_missing_log(key: str, views: Mapping[str, JobView]) -> str:
    """Return the reason why the job `<namespace>.<job>` has no log. `views`: of all jobs."""
    name = key.replace(".", "/")
    view = views.get(key)
    if view is None:
        return f"there is no job {name}; {_describe_known_jobs(views)}"
    if view.phase in ENDED.values():
        events = f"`weir events -n {view.namespace} --job {view.job}`"
        more = f"{events} shows what happened, with --json the full cause"
        return f"job {name} is over ({view.phase.lower()}), its pods and logs are deleted; {more}"
    return f"job {name} has no pods yet: {view.why or view.reason or 'it is about to start'}"


def _describe_known_jobs(views: Mapping[str, JobView]) -> str:
    names = [key.replace(".", "/") for key in sorted(views)]
    if not names:
        return f"there are none; {HOW_TO_SUBMIT}"
    more = " (`weir jobs`)" if len(names) > LISTED else ""
    return f"there are {format_names(names, LISTED)}{more}"


def describe_metrics(metrics: Mapping[str, float]) -> list[str]:
    """Return the final metrics of the program's `evaluation()`, with a label, because the training
    loss is another number.
    """
    if not metrics:
        return []
    values = [f"{name} {value:.4f}" for name, value in metrics.items()]
    return [f"evaluation: {', '.join(values)}"]
