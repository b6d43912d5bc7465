"""Tables of the report: the use of cores, decisions with their outcome, and failures.

Everything that belongs to one requested stop is one row: the ends of pods whose nodes or cluster
were shut down in order, and the earlier notices of their tasks (SIGTERM). A new stop begins if
nothing of the last stop was reported for `STOP_GAP_S`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from services.allocator.state.job import SHUT_DOWN
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
    """Return a table. Style `stacked`: on a narrow screen the cells of a row are below each other,
    each after its label.
    """
    cells = [f"<th>{head}</th>" for head in heads]
    attribute = f' class="{style}"' if style else ""
    return (
        f"<table{attribute}><thead><tr>{''.join(cells)}</tr></thead>"
        f"<tbody>\n{''.join(rows)}</tbody></table>\n"
    )


def row(*cells: str, name: str = "") -> str:
    attribute = f' id="{name}"' if name else ""
    return f"<tr{attribute}>{''.join(cells)}</tr>\n"


def cell(content: str, narrow: bool = False, label: str = "") -> str:
    attributes = ' class="n"' if narrow else ""
    if label:
        attributes += f' data-label="{label}"'
    return f"<td{attributes}>{content}</td>"


def parts(account: Account) -> str:
    """Return the table of the held core-seconds: each part, the total, and the used share."""
    held = account.parts.held_total
    amounts = []
    for name, style, label in PARTS:
        amounts.append((f'<i class="swatch {style}"></i>{label}', getattr(account.parts, name)))
    amounts.append(("<b>held</b>", held))
    amounts.append(("of training: repeated", account.done_again_core_s))
    amounts.append(("used", account.used_core_s))
    heads = ("cores held for", "CPU-hours", "core-seconds", "share of the held cores")
    rows = [_amount_row(label, core_s, held) for label, core_s in amounts]
    return html_table(heads, rows, "amounts")


def _amount_row(label: str, core_s: float, held: float) -> str:
    share = percent(core_s / held) if held else NOTHING
    hours = number(core_s / HOUR_S)
    return row(cell(label), cell(hours, True), cell(whole(core_s), True), cell(share, True))


# ---------------------------------------------------------------- decisions


def decisions_table(results: Sequence[DecisionResult], from_s: float) -> str:
    before: Holding | None = None
    rows = []
    for result in results:
        rows.append(_decision_row(result, before, from_s))
        before = result.outcome.decision.gives
    return html_table(("", "after", "decided", "forecast", "result"), rows, "stacked")


def _decision_row(result: DecisionResult, before: Holding | None, from_s: float) -> str:
    decision = result.outcome.decision
    change = _size_change(before, decision.gives)
    reason = f"<br><span class='soft'>{text(decision.reason)}</span>"
    return row(
        cell(f"<b>{result.number}</b>", True),
        cell(lasting(decision.at_s - from_s), True, "after"),
        cell(change + reason + _alternatives(decision.alternatives)),
        cell(_forecast(result), label="forecast"),
        cell(_result(result), label="result"),
        name=f"decision-{result.number}",
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
    summary = f"rejected alternatives ({len(items)})"
    return f"<details><summary>{summary}</summary><ul>{''.join(items)}</ul></details>"


def _forecast(result: DecisionResult) -> str:
    decision = result.outcome.decision
    if not decision.gain_s:
        return "<span class='soft'>no forecast: it was a start, or the change was forced</span>"
    at = f", at {number(result.forecast_speed)} examples/s" if result.forecast_speed else ""
    saving = format_saving(decision.gain_s, fine=True)
    pause = lasting(decision.cost_s)
    return f"{saving}{at}{pause_preposition(decision.gain_s)}<br>a pause of {pause}"


def _result(result: DecisionResult) -> str:
    outcome = result.outcome
    if outcome.decision.abandoned:
        return f"abandoned: {text(outcome.decision.abandoned)}"
    if outcome.resumed_s is None:
        return f"<span class='soft'>{NOTHING}</span>"
    lines = _speed_gain(result)
    reaction = lasting(outcome.reaction_s)
    lines.append(f"{_hand_over_cost(outcome)}; trained {reaction} after the decision")
    if result.total_saved_s is not None:
        lines.append(f"<b>in total {format_saving(result.total_saved_s, fine=True)}</b>")
    return "<br>".join(lines)


def _speed_gain(result: DecisionResult) -> list[str]:
    """Return the seconds saved by the new speed alone; the speed alone if they are unknown."""
    before, after = result.outcome.before, result.outcome.after
    if result.saved_s is not None:
        saving = format_saving(result.saved_s, fine=True)
        return [f"{saving} by its speed, {number(before)} → {number(after)} examples/s"]
    return [f"{number(after)} examples/s"] if after else []


def _hand_over_cost(outcome: Outcome) -> str:
    paused = f"paused {lasting(outcome.pause_s)}" if outcome.pause_s is not None else "no pause"
    if not outcome.slowed_s:
        return paused
    return f"slowed {lasting(outcome.slowed_s)} while it was prepared, {paused}"


# ---------------------------------------------------------------- incidents


def incidents_table(marks: Sequence[LogEntry], from_s: float) -> str:
    rows = []
    for stop in group_stops(marks):
        rows.append(row(cell(lasting(stop[0].at_s - from_s), True), cell(_incident(stop))))
    return html_table(("after", "event"), rows)


def _incident(stop: Stop) -> str:
    if len(stop) == 1:
        return _describe_incident(stop[0].message)
    tasks = [exited.task() for exited in shut_down_exits(stop)]
    names = format_some_names(tasks, "task", NAMES_MOST)
    items = [f"<li>{_describe_incident(entry.message)}</li>" for entry in stop]
    return (
        "was stopped with its cluster or its nodes:"
        f" {names}<details><summary>each</summary><ul>{''.join(items)}</ul></details>"
    )


def _describe_incident(m: Message) -> str:
    if isinstance(m, TaskExited):
        reason = text(m.reason or "without a reason")
        return f"{m.task()} ended on {text(m.node)}: {reason}{_message_text(m.message)}"
    if isinstance(m, TaskLeaving):
        return f"{m.task()} has to leave {text(m.node)}: {text(m.why)}{_message_text(m.message)}"
    if isinstance(m, GenerationAbandoned):
        return f"generation {m.generation} was abandoned{_message_text(m.reason)}"
    if isinstance(m, CheckpointFailed):
        return f"no checkpoint at update {m.step:,}: {text(m.cause)}; {text(m.remedy)}"
    if isinstance(m, CheckpointSkipped):
        return f"checkpoint {text(m.path)} was skipped: {text(m.cause)}"
    return text(type(m).__name__)


def _message_text(message: str) -> str:
    """Return the first line; the rest is shown after a click."""
    first, _, rest = message.strip().partition("\n")
    shown = f": {text(first)}" if first else ""
    if rest.strip():
        shown += f"<details><summary>more</summary><pre>{lines(rest)}</pre></details>"
    return shown


STOP_GAP_S = 120.0
"""Longer than the time that pods get to end during a stop."""
Stop = tuple[LogEntry, ...]


def group_stops(marks: Sequence[LogEntry]) -> list[Stop]:
    """Return the marks in order; the marks of one stop are one group, every other mark is one by
    itself.
    """
    pods = {exited.pod_uid for exited in shut_down_exits(marks)}
    groups: list[Stop] = []
    last_stop: int | None = None
    for mark in marks:
        if not _is_of_stop(mark.message, pods):
            groups.append((mark,))
        elif last_stop is not None and mark.at_s - groups[last_stop][-1].at_s <= STOP_GAP_S:
            groups[last_stop] = (*groups[last_stop], mark)
        else:
            last_stop = len(groups)
            groups.append((mark,))
    return groups


def shut_down_exits(marks: Sequence[LogEntry]) -> Iterator[TaskExited]:
    """Yield the ends of tasks whose node or cluster was shut down in order."""
    for mark in marks:
        if isinstance(mark.message, TaskExited) and mark.message.reason in SHUT_DOWN:
            yield mark.message


def _is_of_stop(message: Message, pods: set[str]) -> bool:
    """Return True if the message belongs to a stop. `pods`: the uids of the pods that ended with a
    stop.
    """
    if isinstance(message, TaskLeaving):
        return message.why == SIGTERM and message.pod_uid in pods
    return isinstance(message, TaskExited) and message.reason in SHUT_DOWN
