"""The board: everything that is shown, as one frozen value, and the fold of one more message into it.

The allocator's own code folds what the allocator knows (`state`). Beside it the board has what
people ask for and a decision does not need: what happened, and when. The history of a job is kept
as long as the allocator keeps the job, after its end too.

    board = begun()            or begun(state, since_s), if the beginning of the log is gone
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
    """`at_s`: when the newest message was stored. `recent`: the newest messages of all kinds;
    `events`: those of them that a person wants to read one by one. `whys`: by job, why it is, or is
    not, growing: the allocator's last word.
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
    """What was said of jobs that we have not heard of, or not any more: facts and orders come in
    separate streams.
    """
    whys: dict[str, str] = {}
    silent: frozenset[str] = frozenset()
    """The jobs that, by the allocator's last word, report nothing though they should train."""
    sequences: dict[str, int] = {}


def initial_board(state: State | None = None, since_s: float = 0.0) -> Board:
    """Before any message was heard.

    `state`: what the allocator has stored, where the log does not tell it from its beginning any
    more, but since `since_s`; what was before is then taken to be as it is in that state.
    """
    known = state or State()
    jobs = {key: _begun(one.job, closed_view(one)) for key, one in known.closed.items()}
    jobs |= {key: _begun(job, job_view(job)) for key, job in known.jobs.items()}
    board = Board(state=known, jobs=jobs)
    for fact in known.nodes.values():
        board = _capacity(board, fact, since_s)
    return replace(board, cluster=())


def _begun(job: Job, view: JobView) -> JobHistory:
    return JobHistory(
        uid=job.uid, request=job.request, asked_s=job.asked_s, view=view, beginning=None
    )


def apply(board: Board, told: LogEntry) -> Board:
    """The board after one more message; the same board, if it has heard that one."""
    if told.sequence <= board.sequences.get(told.stream, 0):
        return board
    state = folded(board.state, told.message, told.stream, told.sequence, told.at_s)
    event = _event(board, told.message)
    board = replace(
        board,
        state=state,
        at_s=max(board.at_s, told.at_s),
        sequences=board.sequences | {told.stream: told.sequence},
        recent=cluster_module.append_newest(board.recent, told, RECENT_KEPT),
        events=board.events
        if isinstance(told.message, HIGH_VOLUME)
        else _newest(board.events, told),
    )
    if isinstance(told.message, CapacityChanged):
        return _capacity(board, told.message, told.at_s)
    return _of_job(board, told, event) if isinstance(told.message, JobMessage) else board


def with_last_fact(board: Board, fact: CapacityFact, at_s: float) -> Board:
    """The board with the last fact of a node or namespace that the log does not tell any more."""
    board = replace(board, state=folded_last_fact(board.state, fact, at_s))
    return _capacity(board, fact, at_s) if isinstance(fact, CapacityChanged) else board


HIGH_VOLUME = (CapacityChanged, ClaimsChanged, ProgressReported, QuotaChanged)
"""Too many to be read one by one: they are seen as load and as curves."""


def _newest(events: tuple[LogEntry, ...], told: LogEntry) -> tuple[LogEntry, ...]:
    return cluster_module.append_newest(events, told, EVENTS_KEPT)


def _event(board: Board, said: Message) -> LogEntry | None:
    """What led to a decision."""
    if not isinstance(said, AllocationDecided) or said.cause == "-":
        return None
    return next(
        (told for told in reversed(board.recent) if is_cause(told.message, said.cause)), None
    )


def with_reason(board: Board, key: str, said: str, silent: bool = False) -> Board:
    """The board with the allocator's word of why a job is, or is not, growing, and whether it is
    silent.
    """
    known = board.jobs.get(key)
    others = board.silent - {key}
    board = replace(
        board, whys=board.whys | {key: said}, silent=others | {key} if silent else others
    )
    if known is None or known.finished:
        return board
    view = _view(board, replace(known, view=replace(known.view, why=said, silent=silent)))
    return (
        board
        if view == known.view
        else replace(board, jobs=board.jobs | {key: replace(known, view=view)})
    )


# ---------------------------------------------------------------- nodes


def _capacity(board: Board, fact: CapacityChanged, at_s: float) -> Board:
    gone, come = board.nodes.get(fact.node), None if fact.gone else node_of(fact, at_s)
    left = (
        {name: node for name, node in board.nodes.items() if name != fact.node}
        if fact.gone
        else board.nodes
    )
    totals = sum_nodes(board.totals, gone, come, at_s)
    return replace(
        board,
        nodes=left | {come.name: come} if come else left,
        totals=totals,
        cluster=cluster_module.append_point(board.cluster, totals),
        jobs=_with_held_cores(board, gone, come, at_s),
    )


def _with_held_cores(
    board: Board, gone: Node | None, come: Node | None, at_s: float
) -> dict[str, JobHistory]:
    """The jobs, with what their pods hold now; the very same ones where nothing changed."""
    jobs = board.jobs
    for key in (gone.load if gone else {}).keys() | (come.load if come else {}).keys():
        had, has = _load(gone, key), _load(come, key)
        if had != has and (known := jobs.get(key)):
            held = round_resources(subtract(add(known.held_resources, has), had))
            jobs = jobs | {key: job_history.with_held_resources(known, held, at_s)}
    return jobs


def _load(node: Node | None, key: str) -> Resources:
    return node.load.get(key, NO_MORE) if node else NO_MORE


# ---------------------------------------------------------------- jobs


def _of_job(board: Board, told: LogEntry, event: LogEntry | None) -> Board:
    said = told.message
    assert isinstance(said, JobMessage)
    key = said.key()
    before = board.jobs.get(key)
    known = _job_of_message(board, said, told.at_s)
    if known is None:
        return replace(board, early=add_early_fact(board.early, told, lambda each: each.message))
    if before is None or before.uid != known.uid:
        known, board = _what_came_early(known, board)
    after = job_history.fold_history(known, told, event)
    after = replace(after, view=_view(board, after))
    board = replace(board, jobs=board.jobs | {key: after})
    return BOARD_FOLDS.get(type(said), _as_it_is)(board, before, after)


def _job_of_message(board: Board, said: JobMessage, at_s: float) -> JobHistory | None:
    """The story that a message belongs to, begun with it if need be; None: of a job that is no
    more, or of which we do not know what was asked.
    """
    key = said.key()
    known, job = board.jobs.get(key), board.state.jobs.get(key)
    if known and known.uid >= said.uid:
        return known if known.uid == said.uid else None
    request = getattr(said, "request", None) or (
        job.request if job and job.uid == said.uid else None
    )
    if not isinstance(request, JobRequested):
        return None
    asked_s = job.asked_s if job and job.uid == said.uid else at_s
    view = JobView(
        job=said.job, namespace=said.namespace, uid=said.uid, phase="Pending", submitted_s=asked_s
    )
    begins = JobHistory(uid=said.uid, request=request, asked_s=asked_s, view=view)
    return job_history.with_held_resources(
        begins, round_resources(total_of(_load(node, key) for node in board.nodes.values())), at_s
    )


def _what_came_early(begins: JobHistory, board: Board) -> tuple[JobHistory, Board]:
    """The story with all that was said of it before it began, and a board that waits for it no
    more.
    """
    facts = [(told, told.message) for told in board.early if isinstance(told.message, JobMessage)]
    own = [told for told, fact in facts if fact.uid == begins.uid and fact.key() == begins.key]
    state = board.state
    for told in own:
        begins, state = (
            job_history.fold_history(begins, told),
            apply_late(state, told.message, told.at_s),
        )
    left = tuple(told for told in board.early if told not in own)
    return begins, replace(board, state=state, early=left) if own else board


def _view(board: Board, told: JobHistory) -> JobView:
    """As `weir jobs` would show it."""
    key = told.key
    job, closed = board.state.jobs.get(key), board.state.closed.get(key)
    if job and job.uid == told.uid:
        return view_while_starting(
            job_view(job, board.whys.get(key, ""), key in board.silent), told.beginning
        )
    if closed and closed.job.uid == told.uid:
        return closed_view(closed)
    if told.finished:
        return replace(
            told.view, phase=ENDED[told.finished.outcome], finished_s=told.finished.finished_s
        )
    return told.view


def _fold_decision(board: Board, before: JobHistory | None, after: JobHistory) -> Board:
    if not after.decisions or (
        before and before.uid == after.uid and before.decisions == after.decisions
    ):
        return board
    return replace(
        board,
        decisions=cluster_module.append_newest(
            board.decisions, after.decisions[-1], DECISIONS_KEPT
        ),
    )


def _fold_report(board: Board, before: JobHistory | None, after: JobHistory) -> Board:
    """What is used is summed over all jobs."""
    used = round_resources(total_of(job.used_resources for job in board.jobs.values()))
    if (used.cpu, used.memory_gib) == (board.totals.used, board.totals.used_gib):
        return board
    totals = replace(board.totals, at_s=board.at_s, used=used.cpu, used_gib=used.memory_gib)
    return replace(board, totals=totals, cluster=cluster_module.append_point(board.cluster, totals))


def _fold_end(board: Board, before: JobHistory | None, after: JobHistory) -> Board:
    """Those that the allocator has forgotten are forgotten here."""
    board = _fold_report(board, before, after)
    known = board.state.jobs.keys() | board.state.closed.keys() | {after.key}
    return replace(board, jobs={key: job for key, job in board.jobs.items() if key in known})


def _as_it_is(board: Board, before: JobHistory | None, after: JobHistory) -> Board:
    return board


def _fold_abandoned(board: Board, before: JobHistory | None, after: JobHistory) -> Board:
    """What will not be is marked among the newest decisions of all jobs, too."""
    own = {decision.revision: decision for decision in after.decisions}
    marked = tuple(own.get(d.revision, d) if d.uid == after.uid else d for d in board.decisions)
    return replace(board, decisions=marked)


BOARD_FOLDS: dict[type[Message], Callable[[Board, Any, JobHistory], Board]] = {
    AllocationDecided: _fold_decision,
    GenerationAbandoned: _fold_abandoned,
    ProgressReported: _fold_report,
    TaskExited: _fold_report,
    JobFinished: _fold_end,
}
