"""The rows that a browser gets: the board and its changes, and the history of one job on a time
axis.

Times are seconds since 1970; amounts are cores and GiB (`*_gib`); speeds are examples a second.
Nothing is computed here that `services/console/board` has not computed. A browser gets only what it
does not have yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from services.console.board import cluster, figures
from services.console.board.board import Board
from services.console.board.cluster import Node, Totals
from services.console.board.figures import Stack, board_changes
from services.console.board.job_history import Decision, GenerationSpan, Held, JobHistory, Report
from services.console.text.sentences import sentence
from shared.messages import Alternative, Phases


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of an update; empty fields are left out."""


class NodeRow(Row, frozen=True, kw_only=True):
    """A node. `load`: cores by job; `others`: cores of pods of others; `ours_gib`: held by all
    jobs.
    """

    name: str
    at_s: float
    cpu: float
    memory_gib: float
    gpu: int = 0
    free: float = 0.0
    free_gib: float = 0.0
    ours_gib: float = 0.0
    others_gib: float = 0.0
    others: float = 0.0
    load: dict[str, float] = {}
    closed: str = ""


class JobRow(Row, frozen=True, kw_only=True):
    """A job as in `weir jobs`, with cores and memory held and used, the last losses and the time
    left. `pauses`: their number; `paused_s`: their sum; `pause_s`: the last one. `metrics`: of the
    final evaluation; `loss`: of training.
    """

    key: str
    job: str
    namespace: str
    uid: int
    phase: str
    policy: str = ""
    priority: int = 0
    ps: int = 0
    workers: int = 0
    wanted_ps: int = 0
    wanted_workers: int = 0
    batch: int = 0
    generation: int = 0
    step: int = 0
    epoch: int = 0
    epochs: int = 0
    samples: int = 0
    total: int = 0
    share: float | None = None
    left_s: float | None = None
    speed: float = 0.0
    loss: float | None = None
    losses: list[float] = []
    held: float = 0.0
    used: float = 0.0
    held_gib: float = 0.0
    used_gib: float = 0.0
    pause_s: float | None = None
    pauses: int = 0
    paused_s: float = 0.0
    why: str = ""
    asked_s: float = 0.0
    finished_s: float = 0.0
    metrics: dict[str, float] = {}


class DecisionRow(Row, frozen=True, kw_only=True):
    """A decision. `event`: the fact that led to it, as a sentence."""

    at_s: float
    key: str
    uid: int
    revision: int
    generation: int
    ps: int
    workers: int
    batch: int
    cpu: float
    reason: str
    nodes: dict[str, tuple[str, ...]] = {}
    alternatives: tuple[Alternative, ...] = ()
    gain_s: float = 0.0
    cost_s: float = 0.0
    event: str = ""
    abandoned: str = ""


class TotalsRow(Row, frozen=True, kw_only=True):
    nodes: int = 0
    allocatable: float = 0.0
    ours: float = 0.0
    others: float = 0.0
    free: float = 0.0
    closed: float = 0.0
    used: float = 0.0
    allocatable_gib: float = 0.0
    ours_gib: float = 0.0
    others_gib: float = 0.0
    free_gib: float = 0.0
    used_gib: float = 0.0
    held_share: float | None = None
    used_share: float | None = None
    held_gib_share: float | None = None
    used_gib_share: float | None = None


def node_row(node: Node) -> NodeRow:
    return NodeRow(
        name=node.name,
        at_s=node.at_s,
        cpu=node.allocatable.cpu,
        memory_gib=node.allocatable.memory_gib,
        gpu=node.allocatable.gpu,
        free=node.free.cpu,
        free_gib=node.free.memory_gib,
        ours_gib=node.ours.memory_gib,
        others_gib=node.others.memory_gib,
        others=node.others.cpu,
        load={key: held.cpu for key, held in node.load.items()},
        closed=node.closed,
    )


def totals_row(totals: Totals) -> TotalsRow:
    sums = {}
    for name in TotalsRow.__struct_fields__:
        if hasattr(totals, name):
            sums[name] = getattr(totals, name)
    return TotalsRow(
        **sums,
        held_share=figures.utilisation(totals),
        used_share=figures.use(totals),
        held_gib_share=figures.memory_share(totals),
        used_gib_share=figures.memory_use(totals),
    )


def job_row(history: JobHistory) -> JobRow:
    view = history.view
    return JobRow(
        key=history.key,
        job=view.job,
        namespace=view.namespace,
        uid=history.uid,
        phase=view.shown_phase,
        policy=history.request.policy or "",
        priority=history.request.priority,
        ps=view.ps,
        workers=view.workers,
        wanted_ps=view.wanted_ps,
        wanted_workers=view.wanted_workers,
        batch=view.batch,
        generation=view.generation,
        step=view.step,
        epoch=view.epoch,
        epochs=history.request.epochs,
        samples=view.samples,
        total=view.total_samples,
        share=figures.share_done(view),
        left_s=figures.time_left_s(view),
        speed=view.samples_per_second,
        loss=view.loss,
        losses=figures.recent_losses(history),
        held=history.held_cpu,
        used=history.used_resources.cpu,
        held_gib=history.held_resources.memory_gib,
        used_gib=history.used_resources.memory_gib,
        pause_s=figures.last_pause_s(history),
        pauses=len(figures.pauses_s(history)),
        paused_s=history.paused_s,
        why=view.why or view.reason,
        asked_s=history.asked_s,
        finished_s=view.finished_s,
        metrics=view.metrics,
    )


def decision_row(decision: Decision) -> DecisionRow:
    gives = decision.gives
    event = ""
    if decision.event:
        message = decision.event.message
        event = f"{message.key().replace('.', '/', 1)} {sentence(message)}"
    return DecisionRow(
        at_s=decision.at_s,
        key=f"{decision.namespace}.{decision.job}",
        uid=decision.uid,
        revision=decision.revision,
        generation=gives.generation,
        ps=gives.ps,
        workers=gives.workers,
        batch=gives.batch,
        cpu=gives.cpu,
        nodes=gives.nodes,
        reason=decision.reason,
        alternatives=decision.alternatives,
        gain_s=decision.gain_s,
        cost_s=decision.cost_s,
        event=event,
        abandoned=decision.abandoned,
    )


T = TypeVar("T")


class Rows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Points of a series. `fresh`: all of them; otherwise those appended since the last update."""

    fresh: bool = False
    rows: list[tuple[Any, ...]] = []


class StretchRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A generation that trained, and the pause before it. `speed`: mean between its first and its
    last report.
    """

    generation: int
    resumed_s: float
    ended_s: float | None = None
    ps: int | None = None
    workers: int | None = None
    batch: int | None = None
    pause_s: float | None = None
    phases: Phases = Phases()
    lost: int = 0
    speed: float | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The result of a decision, see `services/console/board/figures.py`. Speeds are examples a
    second.
    """

    revision: int
    reaction_s: float | None = None
    pause_s: float | None = None
    slowed_s: float | None = None
    speed_before: float | None = None
    speed_after: float | None = None


class Detail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The history of one job. `reports`: (time, examples a second, loss, cores used, generation,
    examples applied); `held`: (time, cores); `marks`: (time, sentence). None in a field: not
    changed since it was sent.
    """

    key: str
    uid: int
    reports: Rows
    held: Rows
    cpu_hours: float
    used_cpu_hours: float
    off_s: float = 0.0
    lost: int
    saves: int
    save_cost_s: float
    stretches: list[StretchRow] | None = None
    decisions: list[DecisionRow] | None = None
    outcomes: list[Outcome] | None = None
    marks: list[tuple[float, str]] | None = None


def job_detail(before: JobHistory | None, after: JobHistory, now_s: float) -> Detail:
    """Return the update of one job. `before`: the history that this browser has."""
    known = before if before and before.uid == after.uid else None
    detail = Detail(
        key=after.key,
        uid=after.uid,
        reports=_rows(known.reports if known else None, after.reports, _report_row),
        held=_rows(known.held if known else None, after.held, _held_row),
        cpu_hours=figures.cpu_hours(after, now_s),
        used_cpu_hours=after.used_core_s / figures.HOUR_S,
        off_s=after.off_s,
        lost=after.lost,
        saves=after.saves,
        save_cost_s=after.save_cost_s,
    )
    if known is None or known.marks is not after.marks:
        detail = replace(detail, marks=_marks(after))
    decisions_changed = known is None or known.decisions is not after.decisions
    if decisions_changed:
        detail = replace(detail, decisions=list(map(decision_row, after.decisions)))
    if decisions_changed or known is None or known.generation_spans is not after.generation_spans:
        stretches = list(map(_stretch_row, after.generation_spans))
        detail = replace(detail, stretches=stretches, outcomes=_outcomes(after))
    return detail


def _rows(
    before: Sequence[T] | None, after: Sequence[T], row_of: Callable[[T], tuple[Any, ...]]
) -> Rows:
    new = None if before is None else cluster.appended_points(before, after)
    if new is None:
        return Rows(fresh=True, rows=list(map(row_of, after)))
    return Rows(rows=list(map(row_of, new)))


def _held_row(held: Held) -> tuple[Any, ...]:
    return (held.at_s, held.cpu)


def _report_row(report: Report) -> tuple[Any, ...]:
    return (
        report.at_s,
        report.samples_per_second,
        report.loss,
        report.cpu,
        report.generation,
        report.samples,
    )


def _stretch_row(stretch: GenerationSpan) -> StretchRow:
    gives = stretch.gives
    return StretchRow(
        generation=stretch.generation,
        resumed_s=stretch.resumed_s,
        ended_s=stretch.ended_s,
        ps=gives.ps if gives else None,
        workers=gives.workers if gives else None,
        batch=gives.batch if gives else None,
        pause_s=stretch.pause_s,
        phases=stretch.phases,
        lost=stretch.lost,
        speed=figures.generation_speed(stretch),
    )


def _outcomes(history: JobHistory) -> list[Outcome]:
    rows = []
    for outcome in figures.decision_outcomes(history):
        if outcome.resumed_s is None:
            continue
        row = Outcome(
            revision=outcome.decision.revision,
            reaction_s=outcome.reaction_s,
            pause_s=outcome.pause_s,
            slowed_s=outcome.slowed_s,
            speed_before=outcome.before,
            speed_after=outcome.after,
        )
        rows.append(row)
    return rows


def _marks(history: JobHistory) -> list[tuple[float, str]]:
    return [(entry.at_s, sentence(entry.message)) for entry in history.marks]


class News(Row, frozen=True, kw_only=True):
    """An update for one browser. `whole`: the browser drops all earlier updates. `cut_s`: the time
    at which the connection to the bus was lost; `at_s`: the time of the newest stored message;
    `number`: counts the updates of a browser.
    """

    now_s: float
    at_s: float
    number: int
    whole: bool = False
    reading: bool = False
    cut_s: float | None = None
    totals: TotalsRow | None = None
    nodes: list[NodeRow] = []
    gone_nodes: tuple[str, ...] = ()
    jobs: list[JobRow] = []
    gone_jobs: tuple[str, ...] = ()
    decisions: list[DecisionRow] = []
    stack: Stack | None = None
    detail: Detail | None = None


def changed_fields(before: Board | None, after: Board) -> dict[str, object]:
    """Return the changed fields of `News`; all fields if there is no earlier board."""
    changes = board_changes(before or Board(), after)
    fields: dict[str, object] = {
        "nodes": list(map(node_row, changes.nodes)),
        "gone_nodes": changes.gone_nodes,
        "jobs": list(map(job_row, changes.jobs)),
        "gone_jobs": changes.gone_jobs,
        "decisions": list(map(decision_row, changes.decisions)),
    }
    if before is None or after.totals is not before.totals:
        fields["totals"] = totals_row(after.totals)
    return fields


def has_to_restart(before: Board | None, after: Board) -> bool:
    """Return True if a browser has to start again: it is new, or a stream was created again."""
    if before is None:
        return True
    sequences = after.sequences
    return any(sequences.get(stream, 0) < last for stream, last in before.sequences.items())
