"""One job's story as a browser draws it on a time axis, and of it only what is new. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from services.cli.sentences import sentence
from services.console.board import derived, series
from services.console.board.story import Report, Story, Stretch
from services.console.page.rows import DecisionRow, decision_row
from shared.messages import Phases

T = TypeVar("T")


class Rows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Points of a series; `fresh`: all of it, else what came at its end."""

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
    """What came of a decision: see `services/console/board/derived.py`. Speeds in examples a second."""

    revision: int
    reaction_s: float | None = None
    pause_s: float | None = None
    slowed_s: float | None = None
    speed_before: float | None = None
    speed_after: float | None = None


class Detail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """`reports`: (time, examples a second, loss, cores used, generation, examples applied); `held`:
    (time, cores); `marks`: (time, sentence). What is None has not changed since it was sent.
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


def detail(before: Story | None, after: Story, now_s: float) -> Detail:
    """`before`: what this browser has of it already."""
    old = before if before and before.uid == after.uid else None
    decided = old is None or old.decisions is not after.decisions
    moved = decided or old is None or old.stretches is not after.stretches
    return Detail(
        key=after.key,
        uid=after.uid,
        reports=_rows(old.reports if old else None, after.reports, _report),
        held=_rows(old.held if old else None, after.held, lambda held: (held.at_s, held.cpu)),
        cpu_hours=derived.cpu_hours(after, now_s),
        used_cpu_hours=after.used_core_s / derived.HOUR_S,
        off_s=after.off_s,
        lost=after.lost,
        saves=after.saves,
        save_cost_s=after.save_cost_s,
        stretches=[*map(_stretch, after.stretches)] if moved else None,
        decisions=[*map(decision_row, after.decisions)] if decided else None,
        outcomes=_came(after) if moved else None,
        marks=_marks(after) if old is None or old.marks is not after.marks else None,
    )


def _rows(before: Sequence[T] | None, after: Sequence[T], row: Any) -> Rows:
    new = None if before is None else series.come(before, after)
    return Rows(fresh=new is None, rows=[row(one) for one in (after if new is None else new)])


def _report(report: Report) -> tuple[Any, ...]:
    return (
        report.at_s,
        report.samples_per_second,
        report.loss,
        report.cpu,
        report.generation,
        report.samples,
    )


def _stretch(stretch: Stretch) -> StretchRow:
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
        speed=derived.speed(stretch),
    )


def _came(story: Story) -> list[Outcome]:
    return [
        Outcome(
            revision=came.decision.revision,
            reaction_s=came.reaction_s,
            pause_s=came.pause_s,
            slowed_s=came.slowed_s,
            speed_before=came.before,
            speed_after=came.after,
        )
        for came in derived.outcomes(story)
        if came.resumed_s is not None
    ]


def _marks(story: Story) -> list[tuple[float, str]]:
    return [(told.at_s, sentence(told.message)) for told in story.marks]
