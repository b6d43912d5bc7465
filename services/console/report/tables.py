"""Tables of the report: where cores went, decisions with their outcome, and what went wrong.

Everything that belongs to one requested stop is one row: the ends of pods whose nodes or cluster are
shut down in order, and the notices of their tasks before (SIGTERM). A new stop begins if nothing of
the one before was reported for some time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from services.allocator.state.exits import SHUT_DOWN
from services.console.board.figures import HOUR_S, Outcome
from services.console.report.account import Account, DecisionResult
from services.console.report.charts import PARTS
from services.console.report.drawing import NOTHING, lasting, lines, number, percent, text, whole
from services.whatif.event_log import LogEntry
from services.whatif.explain.explanation import Holding
from shared.messages import (
    SIGTERM,
    Alternative,
    CheckpointFailed,
    CheckpointSkipped,
    GenerationAbandoned,
    Message,
    TaskExited,
    TaskLeaving,
)
from shared.text import format_saving, format_size, format_some_names, pause_preposition

NAMES_MOST = 8


def html_table(heads: Sequence[str], rows: Iterable[str], style: str = "") -> str:
    """`stacked`: where it is narrow, cells lie below each other, those with a label behind it."""
    told = "".join(f"<th>{head}</th>" for head in heads)
    own = f' class="{style}"' if style else ""
    return f"<table{own}><thead><tr>{told}</tr></thead><tbody>\n{''.join(rows)}</tbody></table>\n"


def row(*cells: str, name: str = "") -> str:
    own = f' id="{name}"' if name else ""
    return f"<tr{own}>{''.join(cells)}</tr>\n"


def cell(said: str, narrow: bool = False, label: str = "") -> str:
    own = f' data-label="{label}"' if label else ""
    return f'<td class="n"{own}>{said}</td>' if narrow else f"<td{own}>{said}</td>"


def parts(spent: Account) -> str:
    """Each part of what was held, and the whole."""
    rows = [
        row(
            cell(f'<i class="swatch {style}"></i>{said}'),
            *_amount(getattr(spent.parts, name), spent.parts.held_total),
        )
        for name, style, said in PARTS
    ]
    rows.append(row(cell("<b>held</b>"), *_amount(spent.parts.held_total, spent.parts.held_total)))
    rows.append(
        row(
            cell("of training: done again"),
            *_amount(spent.done_again_core_s, spent.parts.held_total),
        )
    )
    rows.append(row(cell("used"), *_amount(spent.used_core_s, spent.parts.held_total)))
    return html_table(
        ("cores were held for", "CPU-hours", "core-seconds", "share of what was held"),
        rows,
        "amounts",
    )


def _amount(core_s: float, held: float) -> tuple[str, str, str]:
    share = percent(core_s / held) if held else NOTHING
    return cell(number(core_s / HOUR_S), True), cell(whole(core_s), True), cell(share, True)


# ---------------------------------------------------------------- decisions


def decisions_table(came: Sequence[DecisionResult], from_s: float) -> str:
    before: Holding | None = None
    rows = []
    for one in came:
        rows.append(_decision(one, before, from_s))
        before = one.outcome.decision.gives
    return html_table(("", "after", "decided", "foreseen", "came"), rows, "stacked")


def _decision(one: DecisionResult, before: Holding | None, from_s: float) -> str:
    said = one.outcome.decision
    why = f"{_change(before, said.gives)}<br><span class='soft'>{text(said.reason)}</span>{_others(said.alternatives)}"
    return row(
        cell(f"<b>{one.number}</b>", True),
        cell(lasting(said.at_s - from_s), True, "after"),
        cell(why),
        cell(_foreseen(one), label="foreseen"),
        cell(_came(one), label="came"),
        name=f"decision-{one.number}",
    )


def _change(before: Holding | None, gives: Holding) -> str:
    now = _size(gives)
    if before is None or (before.ps, before.workers, before.batch) == (
        gives.ps,
        gives.workers,
        gives.batch,
    ):
        return now if gives.workers or gives.ps else "no tasks"
    return f"{_size(before)} → <b>{now}</b>"


def _size(gives: Holding) -> str:
    return f"{format_size(gives.ps, gives.workers)}, batch {gives.batch}"


def _others(alternatives: Sequence[Alternative]) -> str:
    if not alternatives:
        return ""
    told = "".join(
        f"<li>{format_size(a.ps, a.workers)}, batch {a.batch}: {text(a.why)}</li>"
        for a in alternatives
    )
    return f"<details><summary>alternatives that lost ({len(alternatives)})</summary><ul>{told}</ul></details>"


def _foreseen(one: DecisionResult) -> str:
    said = one.outcome.decision
    if not said.gain_s:
        return "<span class='soft'>nothing: it was a start, or had to be</span>"
    at = f", at {number(one.foreseen_speed)} examples/s" if one.foreseen_speed else ""
    saving = format_saving(said.gain_s, fine=True)
    pause = lasting(said.cost_s)
    return f"{saving}{at}{pause_preposition(said.gain_s)}<br>a pause of {pause}"


def _came(one: DecisionResult) -> str:
    found = one.outcome
    if found.decision.abandoned:
        return f"did not come to be: {text(found.decision.abandoned)}"
    if found.resumed_s is None:
        return f"<span class='soft'>{NOTHING}</span>"
    lines = [
        *_speed(one),
        f"{_cost(found)}; trained {lasting(found.reaction_s)} after the decision",
    ]
    if one.in_all_s is not None:
        lines.append(f"<b>in all {format_saving(one.in_all_s, fine=True)}</b>")
    return "<br>".join(lines)


def _speed(one: DecisionResult) -> list[str]:
    """What it is worth that it is as fast as it is now."""
    after = one.outcome.after
    if one.saved_s is not None:
        saving = format_saving(one.saved_s, fine=True)
        return [f"{saving} by its speed, {number(one.outcome.before)} → {number(after)} examples/s"]
    return [f"{number(after)} examples/s"] if after else []


def _cost(found: Outcome) -> str:
    paused = f"paused {lasting(found.pause_s)}" if found.pause_s is not None else "no pause"
    return (
        f"slowed {lasting(found.slowed_s)} while it was prepared, {paused}"
        if found.slowed_s
        else paused
    )


# ---------------------------------------------------------------- what went wrong


def incidents_table(told: Sequence[LogEntry], from_s: float) -> str:
    rows = [
        row(cell(lasting(one[0].at_s - from_s), True), cell(_event(one)))
        for one in group_stops(told)
    ]
    return html_table(("after", "what"), rows)


def _event(stop: Stop) -> str:
    if len(stop) == 1:
        return _wrong(stop[0].message)
    names = format_some_names([said.task() for said in end_sentence(stop)], "task", NAMES_MOST)
    each = "".join(f"<li>{_wrong(one.message)}</li>" for one in stop)
    return f"was stopped with its cluster or its nodes: {names}<details><summary>each</summary><ul>{each}</ul></details>"


def _wrong(said: Message) -> str:
    if isinstance(said, TaskExited):
        why = text(said.reason or "without a reason")
        return f"{said.task()} ended on {text(said.node)}: {why}{_behind(said.message)}"
    if isinstance(said, TaskLeaving):
        return (
            f"{said.task()} has to leave {text(said.node)}: {text(said.why)}{_behind(said.message)}"
        )
    if isinstance(said, GenerationAbandoned):
        return f"generation {said.generation} was given up{_behind(said.reason)}"
    if isinstance(said, CheckpointFailed):
        return f"no checkpoint at update {said.step:,}: {text(said.cause)}; {text(said.remedy)}"
    if isinstance(said, CheckpointSkipped):
        return f"checkpoint {text(said.path)} was skipped: {text(said.cause)}"
    return text(type(said).__name__)


def _behind(message: str) -> str:
    """The first line can be read alone; the rest can be opened."""
    first, _, rest = message.strip().partition("\n")
    more = (
        f"<details><summary>all of it</summary><pre>{lines(rest)}</pre></details>"
        if rest.strip()
        else ""
    )
    return (f": {text(first)}" if first else "") + more


APART_S = 120.0
"""Longer than a stop gives pods to end."""
Stop = tuple[LogEntry, ...]


def group_stops(marks: Sequence[LogEntry]) -> list[Stop]:
    """In order; what is of no stop stands by itself."""
    shut = {said.pod_uid for said in end_sentence(marks)}
    found: list[Stop] = []
    last: int | None = None  # where the newest stop stands
    for one in marks:
        if not _is_of_stop(one.message, shut):
            found.append((one,))
        elif last is not None and one.at_s - found[last][-1].at_s <= APART_S:
            found[last] = (*found[last], one)
        else:
            last = len(found)
            found.append((one,))
    return found


def end_sentence(told: Sequence[LogEntry]) -> Iterator[TaskExited]:
    """Of those that were shut down."""
    messages = (one.message for one in told)
    return (said for said in messages if isinstance(said, TaskExited) and said.reason in SHUT_DOWN)


def _is_of_stop(said: Message, shut: set[str]) -> bool:
    if isinstance(said, TaskLeaving):
        return said.why == SIGTERM and said.pod_uid in shut
    return isinstance(said, TaskExited) and said.reason in SHUT_DOWN
