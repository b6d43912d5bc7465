"""Tables of the report: the use of cores, decisions with their outcome, and failures.

Everything that belongs to one requested stop is one row: the ends of pods whose nodes or cluster
are shut down in order, and the notices of their tasks before (SIGTERM). A new stop begins if
nothing of the one before was reported for some time.
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
    """Return the table of the held core-seconds: each part, the total, and the used share."""
    held = spent.parts.held_total
    rows = []
    for name, style, label in PARTS:
        swatch = cell(f'<i class="swatch {style}"></i>{label}')
        rows.append(row(swatch, *_amount_cells(getattr(spent.parts, name), held)))
    rows.append(row(cell("<b>held</b>"), *_amount_cells(held, held)))
    repeated = _amount_cells(spent.done_again_core_s, held)
    rows.append(row(cell("of training: done again"), *repeated))
    rows.append(row(cell("used"), *_amount_cells(spent.used_core_s, held)))
    heads = ("cores were held for", "CPU-hours", "core-seconds", "share of what was held")
    return html_table(heads, rows, "amounts")


def _amount_cells(core_s: float, held: float) -> tuple[str, str, str]:
    share = percent(core_s / held) if held else NOTHING
    return cell(number(core_s / HOUR_S), True), cell(whole(core_s), True), cell(share, True)


# ---------------------------------------------------------------- decisions


def decisions_table(came: Sequence[DecisionResult], from_s: float) -> str:
    before: Holding | None = None
    rows = []
    for one in came:
        rows.append(_decision_row(one, before, from_s))
        before = one.outcome.decision.gives
    return html_table(("", "after", "decided", "foreseen", "came"), rows, "stacked")


def _decision_row(one: DecisionResult, before: Holding | None, from_s: float) -> str:
    said = one.outcome.decision
    reason = f"<br><span class='soft'>{text(said.reason)}</span>"
    why = _size_change(before, said.gives) + reason + _alternatives(said.alternatives)
    return row(
        cell(f"<b>{one.number}</b>", True),
        cell(lasting(said.at_s - from_s), True, "after"),
        cell(why),
        cell(_forecast(one), label="foreseen"),
        cell(_result(one), label="came"),
        name=f"decision-{one.number}",
    )


def _size_change(before: Holding | None, gives: Holding) -> str:
    now = _size(gives)
    if before is not None and _size(before) != now:
        return f"{_size(before)} → <b>{now}</b>"
    return now if gives.workers or gives.ps else "no tasks"


def _size(gives: Holding) -> str:
    return f"{format_size(gives.ps, gives.workers)}, batch {gives.batch}"


def _alternatives(alternatives: Sequence[Alternative]) -> str:
    if not alternatives:
        return ""
    items = []
    for other in alternatives:
        size = format_size(other.ps, other.workers)
        items.append(f"<li>{size}, batch {other.batch}: {text(other.why)}</li>")
    summary = f"alternatives that lost ({len(items)})"
    return f"<details><summary>{summary}</summary><ul>{''.join(items)}</ul></details>"


def _forecast(one: DecisionResult) -> str:
    said = one.outcome.decision
    if not said.gain_s:
        return "<span class='soft'>no forecast: it was a start, or the change was forced</span>"
    at = f", at {number(one.foreseen_speed)} examples/s" if one.foreseen_speed else ""
    saving = format_saving(said.gain_s, fine=True)
    pause = lasting(said.cost_s)
    return f"{saving}{at}{pause_preposition(said.gain_s)}<br>a pause of {pause}"


def _result(one: DecisionResult) -> str:
    found = one.outcome
    if found.decision.abandoned:
        return f"abandoned: {text(found.decision.abandoned)}"
    if found.resumed_s is None:
        return f"<span class='soft'>{NOTHING}</span>"
    lines = [
        *_speed_gain(one),
        f"{_hand_over_cost(found)}; trained {lasting(found.reaction_s)} after the decision",
    ]
    if one.in_all_s is not None:
        lines.append(f"<b>in all {format_saving(one.in_all_s, fine=True)}</b>")
    return "<br>".join(lines)


def _speed_gain(one: DecisionResult) -> list[str]:
    """Return the seconds saved by the new speed alone; the speed alone if they are unknown."""
    after = one.outcome.after
    if one.saved_s is not None:
        saving = format_saving(one.saved_s, fine=True)
        return [f"{saving} by its speed, {number(one.outcome.before)} → {number(after)} examples/s"]
    return [f"{number(after)} examples/s"] if after else []


def _hand_over_cost(found: Outcome) -> str:
    paused = f"paused {lasting(found.pause_s)}" if found.pause_s is not None else "no pause"
    if not found.slowed_s:
        return paused
    return f"slowed {lasting(found.slowed_s)} while it was prepared, {paused}"


# ---------------------------------------------------------------- what went wrong


def incidents_table(told: Sequence[LogEntry], from_s: float) -> str:
    rows = []
    for stop in group_stops(told):
        rows.append(row(cell(lasting(stop[0].at_s - from_s), True), cell(_incident(stop))))
    return html_table(("after", "what"), rows)


def _incident(stop: Stop) -> str:
    if len(stop) == 1:
        return _describe_incident(stop[0].message)
    names = format_some_names([said.task() for said in shut_down_exits(stop)], "task", NAMES_MOST)
    each = "".join(f"<li>{_describe_incident(one.message)}</li>" for one in stop)
    return (
        "was stopped with its cluster or its nodes:"
        f" {names}<details><summary>each</summary><ul>{each}</ul></details>"
    )


def _describe_incident(said: Message) -> str:
    if isinstance(said, TaskExited):
        why = text(said.reason or "without a reason")
        return f"{said.task()} ended on {text(said.node)}: {why}{_message_text(said.message)}"
    if isinstance(said, TaskLeaving):
        return (
            f"{said.task()} has to leave {text(said.node)}:"
            f" {text(said.why)}{_message_text(said.message)}"
        )
    if isinstance(said, GenerationAbandoned):
        return f"generation {said.generation} was given up{_message_text(said.reason)}"
    if isinstance(said, CheckpointFailed):
        return f"no checkpoint at update {said.step:,}: {text(said.cause)}; {text(said.remedy)}"
    if isinstance(said, CheckpointSkipped):
        return f"checkpoint {text(said.path)} was skipped: {text(said.cause)}"
    return text(type(said).__name__)


def _message_text(message: str) -> str:
    """Return the first line; the rest unfolds on a click."""
    first, _, rest = message.strip().partition("\n")
    shown = f": {text(first)}" if first else ""
    if not rest.strip():
        return shown
    return f"{shown}<details><summary>all of it</summary><pre>{lines(rest)}</pre></details>"


STOP_GAP_S = 120.0
"""Longer than a stop gives pods to end."""
Stop = tuple[LogEntry, ...]


def group_stops(marks: Sequence[LogEntry]) -> list[Stop]:
    """Return the marks in order; those of one stop are one group, all others stand alone."""
    shut = {said.pod_uid for said in shut_down_exits(marks)}
    groups: list[Stop] = []
    last_stop: int | None = None
    for mark in marks:
        if not _is_of_stop(mark.message, shut):
            groups.append((mark,))
        elif last_stop is not None and mark.at_s - groups[last_stop][-1].at_s <= STOP_GAP_S:
            groups[last_stop] = (*groups[last_stop], mark)
        else:
            last_stop = len(groups)
            groups.append((mark,))
    return groups


def shut_down_exits(told: Sequence[LogEntry]) -> Iterator[TaskExited]:
    """Yield the ends of tasks whose node or cluster was shut down in order."""
    for entry in told:
        if isinstance(entry.message, TaskExited) and entry.message.reason in SHUT_DOWN:
            yield entry.message


def _is_of_stop(said: Message, shut: set[str]) -> bool:
    if isinstance(said, TaskLeaving):
        return said.why == SIGTERM and said.pod_uid in shut
    return isinstance(said, TaskExited) and said.reason in SHUT_DOWN
