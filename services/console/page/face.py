"""What a browser is sent: what it has not been told yet. Pure."""

from __future__ import annotations

from services.console.board.board import Board
from services.console.board.changes import changes
from services.console.board.stack import Stack
from services.console.page.detail import Detail
from services.console.page.rows import (
    DecisionRow,
    JobRow,
    NodeRow,
    Row,
    TotalsRow,
    decision_row,
    job_row,
    node_row,
    totals_row,
)


class News(Row, frozen=True, kw_only=True):
    """What a browser has not been told yet. `whole`: forget what was told before. `cut_s`: since
    when we hear nothing of the bus; `at_s`: when the newest message was stored; `number`: of this
    news, for one browser.
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


def parts(before: Board | None, after: Board) -> dict[str, object]:
    """The fields of `News` that tell what changed; with nothing before, everything."""
    new = changes(before or Board(), after)
    found: dict[str, object] = {
        "nodes": [*map(node_row, new.nodes)],
        "gone_nodes": new.gone_nodes,
        "jobs": [*map(job_row, new.jobs)],
        "gone_jobs": new.gone_jobs,
        "decisions": [*map(decision_row, new.decisions)],
    }
    if before is None or after.totals is not before.totals:
        found["totals"] = totals_row(after.totals)
    return found


def anew(before: Board | None, after: Board) -> bool:
    """Whether a browser has to forget what it was told: nothing, or of streams that were made anew
    since.
    """
    return before is None or any(
        after.sequences.get(name, 0) < heard for name, heard in before.sequences.items()
    )
