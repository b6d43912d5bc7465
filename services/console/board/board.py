"""The board: all that the screens show, as one frozen value, and the fold of one more message.

The state of the allocator (`state`) is folded by the allocator's own code. The board adds the past
events and their times, which people want to see and decisions do not need. The history of a job is
kept as long as the allocator keeps the job, also after the job has ended.

    board = initial_board()    or initial_board(state, since_s), if the beginning of the log is gone
    board = apply(board, LogEntry(stored_s, stream, sequence, message))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.job_views import ENDED, JobView, closed_view, job_view
from services.allocator.placement.amounts import NO_MORE, add, subtract, total_of
from services.allocator.state.job import Job
from services.allocator.state.state import State, apply_late
from services.allocator.state.state import apply as folded
from services.allocator.state.state import with_last_fact as folded_last_fact
from services.console.board import cluster as cluster_module
from services.console.board import job_history
from services.console.board.cluster import Node, Totals, node_of, round_resources, sum_nodes
from services.console.board.job_history import Decision, JobHistory, view_while_starting
from services.whatif.event_log import LogEntry, is_cause
from shared.bounds import add_early_fact
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    CapacityFact,
    ClaimsChanged,
    GenerationAbandoned,
    JobFinished,
    JobMessage,
    JobRequested,
    Message,
    ProgressReported,
    QuotaChanged,
    Resources,
    TaskExited,
)

DECISIONS_KEPT = 100
RECENT_KEPT = 512
EVENTS_KEPT = 200


class Board(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that is shown.

    `at_s`: the time at which the newest message was stored. `recent`: the newest messages of all
    kinds; `events`: those without the kinds of `HIGH_VOLUME`. `whys`: by job, the allocator's last
    reason for its size.
    """

    state: State = State()
    at_s: float = 0.0
    nodes: dict[str, Node] = {}
    totals: Totals = Totals()
    cluster: tuple[Totals, ...] = ()
    jobs: dict[str, JobHistory] = {}
    decisions: tuple[Decision, ...] = ()
    events: tuple[LogEntry, ...] = ()
    recent: tuple[LogEntry, ...] = ()
    early: tuple[LogEntry, ...] = ()
    """Messages about unknown jobs: facts and orders come in separate streams."""
    whys: dict[str, str] = {}
    silent: frozenset[str] = frozenset()
    """The jobs that report nothing though they should train, as the allocator last found."""
    sequences: dict[str, int] = {}


def initial_board(state: State | None = None, since_s: float = 0.0) -> Board:
    """Return the board before the first message.

    `state`: the allocator's stored state, if the log begins at `since_s` only. Everything before is
    taken from it.
    """
    known = state or State()
    jobs = {}
    for key, closed in known.closed.items():
        jobs[key] = _history_from_state(closed.job, closed_view(closed))
    for key, job in known.jobs.items():
        jobs[key] = _history_from_state(job, job_view(job))
    board = Board(state=known, jobs=jobs)
    for fact in known.nodes.values():
        board = _fold_capacity(board, fact, since_s)
    return replace(board, cluster=())


def _history_from_state(job: Job, view: JobView) -> JobHistory:
    return JobHistory(
        uid=job.uid, request=job.request, asked_s=job.asked_s, view=view, beginning=None
    )


def apply(board: Board, entry: LogEntry) -> Board:
    """Return the board after one more message; the same board if the message is an old one."""
    message = entry.message
    if entry.sequence <= board.sequences.get(entry.stream, 0):
        return board
    event = _cause_event(board, message)
    events = board.events
    if not isinstance(message, HIGH_VOLUME):
        events = cluster_module.append_newest(events, entry, EVENTS_KEPT)
    board = replace(
        board,
        state=folded(board.state, message, entry.stream, entry.sequence, entry.at_s),
        at_s=max(board.at_s, entry.at_s),
        sequences=board.sequences | {entry.stream: entry.sequence},
        recent=cluster_module.append_newest(board.recent, entry, RECENT_KEPT),
        events=events,
    )
    if isinstance(message, CapacityChanged):
        return _fold_capacity(board, message, entry.at_s)
    return _fold_job_message(board, entry, event) if isinstance(message, JobMessage) else board


def with_last_fact(board: Board, fact: CapacityFact, at_s: float) -> Board:
    """Return the board with the last fact of a node or namespace that is no longer in the log."""
    board = replace(board, state=folded_last_fact(board.state, fact, at_s))
    return _fold_capacity(board, fact, at_s) if isinstance(fact, CapacityChanged) else board


HIGH_VOLUME = (CapacityChanged, ClaimsChanged, ProgressReported, QuotaChanged)
"""There are too many of these messages to list them: screens show them as load and as curves."""


def _cause_event(board: Board, message: Message) -> LogEntry | None:
    """Return the recent message that a decision names as its cause."""
    if not isinstance(message, AllocationDecided) or message.cause == "-":
        return None
    for entry in reversed(board.recent):
        if is_cause(entry.message, message.cause):
            return entry
    return None


def with_reason(board: Board, key: str, reason: str, silent: bool = False) -> Board:
    """Return the board with the allocator's reason for a job's size. `silent`: the job reports
    nothing though it should train.
    """
    known = board.jobs.get(key)
    silent_jobs = board.silent | {key} if silent else board.silent - {key}
    board = replace(board, whys=board.whys | {key: reason}, silent=silent_jobs)
    if known is None or known.finished:
        return board
    view = _shown_view(board, replace(known, view=replace(known.view, why=reason, silent=silent)))
    if view == known.view:
        return board
    return replace(board, jobs=board.jobs | {key: replace(known, view=view)})


# ---------------------------------------------------------------- nodes


def _fold_capacity(board: Board, fact: CapacityChanged, at_s: float) -> Board:
    before = board.nodes.get(fact.node)
    after = None if fact.gone else node_of(fact, at_s)
    nodes = board.nodes
    if after:
        nodes = nodes | {after.name: after}
    elif before:
        nodes = {name: node for name, node in nodes.items() if name != fact.node}
    totals = sum_nodes(board.totals, before, after, at_s)
    return replace(
        board,
        nodes=nodes,
        totals=totals,
        cluster=cluster_module.append_point(board.cluster, totals),
        jobs=_with_held_cores(board, before, after, at_s),
    )


def _with_held_cores(
    board: Board, before: Node | None, after: Node | None, at_s: float
) -> dict[str, JobHistory]:
    """Return the jobs with the resources that their pods hold now; unchanged jobs are the same
    objects.
    """
    jobs = board.jobs
    keys = set[str]()
    for node in (before, after):
        keys.update(node.load if node else ())
    for key in keys:
        had, has = _load_on(before, key), _load_on(after, key)
        known = jobs.get(key)
        if had != has and known:
            held = round_resources(subtract(add(known.held_resources, has), had))
            jobs = jobs | {key: job_history.with_held_resources(known, held, at_s)}
    return jobs


def _load_on(node: Node | None, key: str) -> Resources:
    return node.load.get(key, NO_MORE) if node else NO_MORE


# ---------------------------------------------------------------- jobs


def _fold_job_message(board: Board, entry: LogEntry, event: LogEntry | None) -> Board:
    message = entry.message
    assert isinstance(message, JobMessage)
    key = message.key()
    before = board.jobs.get(key)
    known = _job_of_message(board, message, entry.at_s)
    if known is None:
        return replace(board, early=add_early_fact(board.early, entry, lambda each: each.message))
    if before is None or before.uid != known.uid:
        known, board = _with_early_facts(known, board)
    after = job_history.fold_history(known, entry, event)
    after = replace(after, view=_shown_view(board, after))
    board = replace(board, jobs=board.jobs | {key: after})
    return BOARD_FOLDS.get(type(message), _unchanged_board)(board, before, after)


def _job_of_message(board: Board, message: JobMessage, at_s: float) -> JobHistory | None:
    """Return the history that a message belongs to; a new one for a new job. None if the job is
    gone, or its request is unknown.
    """
    key = message.key()
    known, job = board.jobs.get(key), board.state.jobs.get(key)
    if known and known.uid >= message.uid:
        return known if known.uid == message.uid else None
    request, asked_s = getattr(message, "request", None), at_s
    if job and job.uid == message.uid:
        request, asked_s = request or job.request, job.asked_s
    if not isinstance(request, JobRequested):
        return None
    view = JobView(
        job=message.job,
        namespace=message.namespace,
        uid=message.uid,
        phase="Pending",
        submitted_s=asked_s,
    )
    history = JobHistory(uid=message.uid, request=request, asked_s=asked_s, view=view)
    held = round_resources(total_of(_load_on(node, key) for node in board.nodes.values()))
    return job_history.with_held_resources(history, held, at_s)


def _with_early_facts(history: JobHistory, board: Board) -> tuple[JobHistory, Board]:
    """Fold the facts of a job that came before its first order, and drop them from the board."""
    state = board.state
    left = []
    for entry in board.early:
        fact = entry.message
        if not isinstance(fact, JobMessage) or (fact.uid, fact.key()) != (history.uid, history.key):
            left.append(entry)
            continue
        history = job_history.fold_history(history, entry)
        state = apply_late(state, fact, entry.at_s)
    if len(left) == len(board.early):
        return history, board
    return history, replace(board, state=state, early=tuple(left))


def _shown_view(board: Board, history: JobHistory) -> JobView:
    """Return the view of a job as `weir jobs` shows it."""
    key = history.key
    job, closed = board.state.jobs.get(key), board.state.closed.get(key)
    if job and job.uid == history.uid:
        view = job_view(job, board.whys.get(key, ""), key in board.silent)
        return view_while_starting(view, history.beginning)
    if closed and closed.job.uid == history.uid:
        return closed_view(closed)
    if history.finished:
        phase, finished_s = ENDED[history.finished.outcome], history.finished.finished_s
        return replace(history.view, phase=phase, finished_s=finished_s)
    return history.view


def _fold_decision(board: Board, before: JobHistory | None, after: JobHistory) -> Board:
    if not after.decisions:
        return board
    if before and before.uid == after.uid and before.decisions == after.decisions:
        return board
    newest = cluster_module.append_newest(board.decisions, after.decisions[-1], DECISIONS_KEPT)
    return replace(board, decisions=newest)


def _fold_report(board: Board, before: JobHistory | None, after: JobHistory) -> Board:
    """Sum the used resources of all jobs."""
    used = round_resources(total_of(job.used_resources for job in board.jobs.values()))
    if (used.cpu, used.memory_gib) == (board.totals.used, board.totals.used_gib):
        return board
    totals = replace(board.totals, at_s=board.at_s, used=used.cpu, used_gib=used.memory_gib)
    return replace(board, totals=totals, cluster=cluster_module.append_point(board.cluster, totals))


def _fold_end(board: Board, before: JobHistory | None, after: JobHistory) -> Board:
    """Forget the jobs that the allocator has forgotten."""
    board = _fold_report(board, before, after)
    known = board.state.jobs.keys() | board.state.closed.keys() | {after.key}
    return replace(board, jobs={key: job for key, job in board.jobs.items() if key in known})


def _unchanged_board(board: Board, before: JobHistory | None, after: JobHistory) -> Board:
    return board


def _fold_abandoned(board: Board, before: JobHistory | None, after: JobHistory) -> Board:
    """Mark an abandoned decision among the newest decisions of all jobs too."""
    own = {decision.revision: decision for decision in after.decisions}
    decisions = []
    for decision in board.decisions:
        if decision.uid == after.uid:
            decision = own.get(decision.revision, decision)
        decisions.append(decision)
    return replace(board, decisions=tuple(decisions))


BOARD_FOLDS: dict[type[Message], Callable[[Board, Any, JobHistory], Board]] = {
    AllocationDecided: _fold_decision,
    GenerationAbandoned: _fold_abandoned,
    ProgressReported: _fold_report,
    TaskExited: _fold_report,
    JobFinished: _fold_end,
}
