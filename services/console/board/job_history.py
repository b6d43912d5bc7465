"""One job from its acceptance to its end: its events, and the step that it waits for while it
starts.

Beside the view that `weir jobs` shows, a history has the events over time: every decision with
its reason, its alternatives and its forecast (`gain_s`, `cost_s`); every generation that trained,
with the phases of its pause and its first and last report; reports and held cores as thinned
series; and exact sums (core-seconds, pauses, examples applied and lost).

A job that starts waits for the first of these steps that is not done:

    AllocationDecided      its pods are planned              TaskStarted, TaskReady   a pod runs; a pod is ready
    ClusterSpecPublished   the chief builds and traces       GenerationPrepared       one task is prepared
    HandOverOrdered        the generation may begin          TrainingResumed          the first update is applied

Facts and orders come in separate streams, so a fact about a pod may come before its order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.job_views import TRAINS, JobView
from services.console.board import cluster
from services.whatif.event_log import LogEntry
from services.whatif.explain.explanation import Holding, tasks_held
from shared.messages import (
    AllocationDecided,
    Alternative,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    ClusterSpecPublished,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobFinished,
    JobMessage,
    JobRequested,
    Message,
    Phases,
    ProgressReported,
    Resources,
    Staleness,
    TaskExited,
    TaskLeaving,
    TaskReady,
    TaskStarted,
    TrainingResumed,
)
from shared.text import format_count

Names = frozenset[str]


class StartProgress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The steps of a start that are done.

    `wanted`: the names of all pods, the chief's included. `prepared`, `published` and `ordered`
    have the newest generation for which that step was reported.
    """

    generation: int = 0
    wanted: Names = frozenset()
    chief: str = ""
    running: Names = frozenset()
    ready: Names = frozenset()
    published: int = 0
    prepared: tuple[int, Names] = (0, frozenset())
    ordered: int = 0


def fold_start(known: StartProgress, message: Message) -> StartProgress:
    """Return the progress after one more message of the job."""
    fold = START_FOLDS.get(type(message))
    return fold(known, message) if fold else known


def _decided_start(known: StartProgress, message: AllocationDecided) -> StartProgress:
    if message.generation < known.generation:
        return known
    pods, chief = set[str](), ""
    for task in message.tasks:
        pod = task.pod(message.job)
        pods.add(pod)
        if task.role == "chief":
            chief = pod
    return replace(known, generation=message.generation, wanted=frozenset(pods), chief=chief)


def _started_task(known: StartProgress, message: TaskStarted) -> StartProgress:
    return replace(known, running=known.running | {message.pod})


def _ready_task(known: StartProgress, message: TaskReady) -> StartProgress:
    return replace(known, running=known.running | {message.pod}, ready=known.ready | {message.pod})


def _exited_task(known: StartProgress, message: TaskExited) -> StartProgress:
    return replace(known, running=known.running - {message.pod}, ready=known.ready - {message.pod})


def _published_spec(known: StartProgress, message: ClusterSpecPublished) -> StartProgress:
    return replace(known, published=max(known.published, message.generation))


def _prepared_task(known: StartProgress, message: GenerationPrepared) -> StartProgress:
    newest, pods = known.prepared
    if message.error is not None or message.generation < newest:
        return known
    if message.generation > newest:
        pods = frozenset()
    return replace(known, prepared=(message.generation, pods | {message.pod}))


def _ordered_hand_over(known: StartProgress, message: HandOverOrdered) -> StartProgress:
    return replace(known, ordered=max(known.ordered, message.generation))


START_FOLDS: dict[type[Message], Callable[[StartProgress, Any], StartProgress]] = {
    AllocationDecided: _decided_start,
    TaskStarted: _started_task,
    TaskReady: _ready_task,
    TaskExited: _exited_task,
    ClusterSpecPublished: _published_spec,
    GenerationPrepared: _prepared_task,
    HandOverOrdered: _ordered_hand_over,
}


# ---------------------------------------------------------------- the awaited step as text


def view_while_starting(view: JobView, known: StartProgress | None) -> JobView:
    """Return the view with the awaited step as its reason while the job starts. None: the first
    messages of the job are unknown.
    """
    if view.phase != "Starting" or not known or not known.wanted:
        return view
    return replace(view, why=awaited_step(known))


def awaited_step(known: StartProgress) -> str:
    """Return the first step that is not done."""
    number = len(known.wanted)
    pods = format_count(number, "pod")
    if known.wanted - known.ready:
        running = len(known.wanted & known.running)
        ready = len(known.wanted & known.ready)
        return f"waits for {pods}: {running} of {number} run, {ready} ready"
    if known.published < known.generation:
        return f"all {pods} are ready; waits for its cluster spec"
    if known.ordered >= known.generation:
        return "all tasks are prepared; waits for the first update"
    newest, prepared = known.prepared
    done = known.wanted & prepared if newest == known.generation else frozenset()
    if known.chief in done:
        return f"waits for tasks: {len(done)} of {number} prepared"
    return f"all {pods} are ready; the chief connects, builds the model and traces a step"


DECISIONS_KEPT = 128
GENERATION_SPANS_KEPT = 256
MARKS_KEPT = 128


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decision, its reason and its forecast: `gain_s` seconds saved, `cost_s` seconds paused.

    `event`: the fact that led to it, if it was recent; `cause`: its id. `abandoned`: the reason for
    which its generation was given up.
    """

    at_s: float
    job: str
    namespace: str
    uid: int
    revision: int
    gives: Holding
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    gain_s: float = 0.0
    cost_s: float = 0.0
    cause: str = "-"
    event: LogEntry | None = None
    abandoned: str = ""

    @property
    def generation(self) -> int:
        return self.gives.generation


class Report(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored `ProgressReported`. `cpu`: cores that the tasks used, mean since the report before;
    `memory_gib`: their resident memory; `staleness`: of gradients. None: not measured.
    """

    at_s: float
    generation: int
    step: int
    epoch: int
    samples: int
    samples_per_second: float
    loss: float | None = None
    cpu: float | None = None
    memory_gib: float | None = None
    staleness: Staleness | None = None


class GenerationSpan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A generation that trained from `resumed_s` to `ended_s` (None: it still trains).

    `pause_s`: the pause before it; `off_s`: the time for which the whole cluster was off besides.
    `lost`: examples that had been applied and were not in its checkpoint. `gives`: the decided
    tasks; None if the decision is unknown.
    """

    generation: int
    resumed_s: float
    previous: int | None = None
    gives: Holding | None = None
    pause_s: float | None = None
    off_s: float = 0.0
    phases: Phases = Phases()
    learning_rate: float | None = None
    lost: int = 0
    first: Report | None = None
    last: Report | None = None
    ended_s: float | None = None


class Held(msgspec.Struct, frozen=True, gc=False):
    """The cores and GiB that the job's pods hold from a time on: requests, as in the facts of the
    nodes.
    """

    at_s: float
    cpu: float
    memory_gib: float = 0.0


class JobHistory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The history of one job.

    `applied`: the newest number of applied examples. `core_s`: core-seconds held up to the last
    change of the held cores; `used_core_s`: core-seconds used, from reports. `marks`: failures and
    abandoned generations. `beginning`: None if the start is no longer in the log.
    """

    uid: int
    request: JobRequested
    asked_s: float
    view: JobView
    decisions: tuple[Decision, ...] = ()
    generation_spans: tuple[GenerationSpan, ...] = ()
    reports: tuple[Report, ...] = ()
    held: tuple[Held, ...] = ()
    marks: tuple[LogEntry, ...] = ()
    applied: int = 0
    core_s: float = 0.0
    used_core_s: float = 0.0
    paused_s: float = 0.0
    off_s: float = 0.0
    lost: int = 0
    saves: int = 0
    save_cost_s: float = 0.0
    finished: JobFinished | None = None
    beginning: StartProgress | None = StartProgress()

    @property
    def key(self) -> str:
        return self.request.key()

    @property
    def last_generation(self) -> GenerationSpan | None:
        """The generation that trains, or trained last."""
        return self.generation_spans[-1] if self.generation_spans else None

    @property
    def used_resources(self) -> Resources:
        """The last reported use; zero while the job does not train."""
        if not self.reports or self.finished is not None or self.view.phase not in TRAINS:
            return Resources()
        last = self.reports[-1]
        return Resources(cpu=last.cpu or 0.0, memory_gib=last.memory_gib or 0.0)

    @property
    def held_resources(self) -> Resources:
        """The requests of the job's pods now."""
        if not self.held:
            return Resources()
        return Resources(cpu=self.held[-1].cpu, memory_gib=self.held[-1].memory_gib)

    @property
    def held_cpu(self) -> float:
        """The requested cores of the job's pods now."""
        return self.held[-1].cpu if self.held else 0.0


def fold_history(history: JobHistory, entry: LogEntry, event: LogEntry | None = None) -> JobHistory:
    """Return the history after one more message of its job; the same object if the message is old.
    `event`: the cause of a decision.
    """
    message = entry.message
    if not isinstance(message, JobMessage) or message.uid != history.uid:
        return history
    if history.beginning:
        beginning = fold_start(history.beginning, message)
        if beginning is not history.beginning:
            history = replace(history, beginning=beginning)
    if type(message) not in HISTORY_FOLDS:
        return history
    if isinstance(message, AllocationDecided):
        return _fold_decision(history, message, entry.at_s, event)
    history = HISTORY_FOLDS[type(message)](history, message, entry.at_s)
    if isinstance(message, MARKS):
        history = replace(history, marks=cluster.append_newest(history.marks, entry, MARKS_KEPT))
    return history


def with_held_resources(history: JobHistory, held: Resources, at_s: float) -> JobHistory:
    """Return the history of a job whose pods hold these resources from now on."""
    if (held.cpu, held.memory_gib) == (
        history.held_resources.cpu,
        history.held_resources.memory_gib,
    ):
        return history
    since_s = history.held[-1].at_s if history.held else at_s
    core_s = history.core_s + history.held_cpu * max(at_s - since_s, 0.0)
    points = cluster.append_point(history.held, Held(at_s, held.cpu, held.memory_gib))
    return replace(history, core_s=core_s, held=points)


# ---------------------------------------------------------------- decisions and generations


def _fold_decision(
    history: JobHistory, message: AllocationDecided, at_s: float, event: LogEntry | None
) -> JobHistory:
    """Return the history with a newer decision. The decision gives its generation its size."""
    if history.decisions and message.revision <= history.decisions[-1].revision:
        return history
    decision = Decision(
        at_s=at_s,
        job=message.job,
        namespace=message.namespace,
        uid=message.uid,
        revision=message.revision,
        gives=tasks_held(message),
        reason=message.reason,
        alternatives=message.alternatives,
        gain_s=message.gain_s,
        cost_s=message.cost_s,
        cause=message.cause,
        event=event,
    )
    decided = replace(
        history, decisions=cluster.append_newest(history.decisions, decision, DECISIONS_KEPT)
    )
    return replace(decided, generation_spans=_with_size(history.generation_spans, decision))


def _with_size(
    generation_spans: tuple[GenerationSpan, ...], decision: Decision
) -> tuple[GenerationSpan, ...]:
    """Add the decided tasks to a generation that resumed before its decision was read: facts and
    orders come in separate streams.
    """
    if not generation_spans:
        return generation_spans
    last = generation_spans[-1]
    if last.gives is not None or last.generation != decision.generation:
        return generation_spans
    return (*generation_spans[:-1], replace(last, gives=decision.gives))


def _fold_abandoned(history: JobHistory, message: GenerationAbandoned, at_s: float) -> JobHistory:
    if history.last_generation and history.last_generation.generation >= message.generation:
        return history
    decisions = []
    for decision in history.decisions:
        if decision.generation == message.generation and not decision.abandoned:
            decision = replace(decision, abandoned=message.reason)
        decisions.append(decision)
    return replace(history, decisions=tuple(decisions))


def _fold_resumed(history: JobHistory, message: TrainingResumed, at_s: float) -> JobHistory:
    before = history.last_generation
    if before and message.generation <= before.generation:
        return history
    pause_s = message.pause_s or 0.0
    lost = max(history.applied - message.samples, 0)
    generation = GenerationSpan(
        generation=message.generation,
        resumed_s=at_s,
        previous=message.previous,
        gives=_decided_tasks(history, message.generation),
        pause_s=message.pause_s,
        off_s=message.off_s,
        phases=message.phases,
        learning_rate=message.learning_rate,
        lost=lost,
    )
    ended = _close_generation(history, at_s - pause_s - message.off_s)
    return replace(
        ended,
        generation_spans=cluster.append_newest(
            ended.generation_spans, generation, GENERATION_SPANS_KEPT
        ),
        applied=message.samples,
        paused_s=history.paused_s + pause_s,
        off_s=history.off_s + message.off_s,
        lost=history.lost + lost,
    )


def _decided_tasks(history: JobHistory, generation: int) -> Holding | None:
    """Return the tasks of a generation's last decision; None if it is unknown."""
    for decision in reversed(history.decisions):
        if decision.generation == generation:
            return decision.gives
    return None


def _close_generation(history: JobHistory, at_s: float) -> JobHistory:
    """End the generation that trained."""
    last = history.last_generation
    if last is None or last.ended_s is not None:
        return history
    ended = replace(last, ended_s=max(at_s, last.resumed_s))
    return replace(history, generation_spans=(*history.generation_spans[:-1], ended))


# ---------------------------------------------------------------- progress


def _fold_progress(history: JobHistory, message: ProgressReported, at_s: float) -> JobHistory:
    generation = history.last_generation
    last = history.reports[-1] if history.reports else None
    if generation and message.generation < generation.generation:
        return history
    if last and (message.generation, message.step) <= (last.generation, last.step):
        return history
    report = _report_of(message, at_s)
    since_s = at_s
    if last and last.generation == message.generation:
        since_s = last.at_s
    elif generation:
        since_s = generation.resumed_s
    return replace(
        history,
        reports=cluster.append_point(history.reports, report),
        generation_spans=_add_report(history.generation_spans, report),
        applied=message.samples,
        used_core_s=history.used_core_s + (report.cpu or 0.0) * max(at_s - since_s, 0.0),
    )


def _report_of(message: ProgressReported, at_s: float) -> Report:
    cpu = memory_gib = None
    if message.usage:
        cpu = round(sum(task.cpu for task in message.usage), 6)
        memory_gib = round(sum(task.memory_gib for task in message.usage), 6)
    return Report(
        at_s=at_s,
        generation=message.generation,
        step=message.step,
        epoch=message.epoch,
        samples=message.samples,
        samples_per_second=message.samples_per_second,
        loss=message.loss,
        cpu=cpu,
        memory_gib=memory_gib,
        staleness=message.staleness,
    )


def _add_report(
    generation_spans: tuple[GenerationSpan, ...], report: Report
) -> tuple[GenerationSpan, ...]:
    if not generation_spans or generation_spans[-1].generation != report.generation:
        return generation_spans
    current = generation_spans[-1]
    return (*generation_spans[:-1], replace(current, first=current.first or report, last=report))


def _fold_saved(history: JobHistory, message: CheckpointSaved, at_s: float) -> JobHistory:
    stale = (
        history.last_generation is not None
        and message.generation < history.last_generation.generation
    )
    applied = history.applied if stale else max(history.applied, message.samples)
    return replace(
        history,
        applied=applied,
        saves=history.saves + 1,
        save_cost_s=history.save_cost_s + message.cost_s,
    )


def _fold_finished(history: JobHistory, message: JobFinished, at_s: float) -> JobHistory:
    return replace(_close_generation(history, at_s), finished=message)


def _unchanged_history(history: JobHistory, message: Message, at_s: float) -> JobHistory:
    return history


HISTORY_FOLDS: dict[type[Message], Callable[[JobHistory, Any, float], JobHistory]] = {
    GenerationAbandoned: _fold_abandoned,
    TrainingResumed: _fold_resumed,
    ProgressReported: _fold_progress,
    CheckpointSaved: _fold_saved,
    CheckpointFailed: _unchanged_history,
    CheckpointSkipped: _unchanged_history,
    TaskLeaving: _unchanged_history,
    TaskExited: _unchanged_history,
    JobFinished: _fold_finished,
    AllocationDecided: _unchanged_history,
}
MARKS = (GenerationAbandoned, CheckpointFailed, CheckpointSkipped, TaskLeaving, TaskExited)
