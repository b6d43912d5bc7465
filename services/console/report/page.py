"""The report as one HTML page, from the answer to the details, without scripts or requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from services.console.board.board import Board
from services.console.board.figures import HOUR_S
from services.console.board.job_history import JobHistory
from services.console.report import charts, drawing, tables
from services.console.report.account import Account, DecisionResult, account_job, foresights
from services.console.report.charts import draw_timeline
from services.console.report.drawing import (
    HATCHES,
    STYLE,
    clock,
    lasting,
    lines,
    number,
    percent,
    text,
    whole,
)
from shared.text import MINUS, format_count


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the page. `notes`: the parts that are no longer in the log."""

    board: Board
    story: JobHistory
    account: Account
    came: tuple[DecisionResult, ...]
    epochs: tuple[float, ...]
    written_s: float
    notes: tuple[str, ...] = ()


def contents(
    board: Board, story: JobHistory, epochs: Sequence[float], written_s: float, notes: Sequence[str]
) -> Contents:
    return Contents(
        board=board,
        story=story,
        account=account_job(board, story),
        came=tuple(foresights(story)),
        epochs=tuple(epochs),
        written_s=written_s,
        notes=tuple(notes),
    )


def report_page(told: Contents) -> str:
    title = f"Weir: job {text(told.story.request.job)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        '<svg width="0" height="0" style="position:absolute"'
        f' aria-hidden="true"><defs>{HATCHES}</defs></svg>\n'
        f"<main>\n{''.join(_sections(told))}</main>\n</body>\n</html>\n"
    )


def _sections(told: Contents) -> Iterable[str]:
    yield _head(told)
    yield _cards(told)
    over_time = _drawings(
        lambda width: draw_timeline(told.board, told.story, told.account, told.came, width)
    )
    yield _section("Over time", TIMELINE, over_time)
    if told.epochs:
        longest = f"The first took {lasting(told.epochs[0])}, the last {lasting(told.epochs[-1])}."
        yield _section(
            "Each epoch",
            f"{EPOCH} {longest}",
            _drawings(lambda width: charts.draw_epochs(told.epochs, width)),
        )
    yield _pause_section(told)
    held = _drawings(lambda width: charts.draw_core_hours(told.account.parts, width))
    yield _section("What it cost", _cost(told), held, tables.parts(told.account))
    if told.came:
        yield _section(
            "Decisions: forecast and result",
            FORESEEN,
            tables.decisions_table(told.came, told.account.from_s),
        )
    if told.story.marks:
        yield _section(
            "What went wrong, or was given up",
            "",
            tables.incidents_table(told.story.marks, told.account.from_s),
        )
    yield _foot(told)


TIMELINE = (
    "Shaded bands are pauses: no update was applied; in a grey one the whole cluster was off."
    " Numbers below are decisions; each leads to its row further down. What lies between two points"
    " of a series that was long is left out, never averaged."
)
EPOCH = (
    "Seconds, pauses in it included; an end between two reports is placed by the examples that they"
    " tell of."
)
FORESEEN = (
    "Foreseen: seconds saved on the work that was left, and the pause that it would cost; what its"
    " preparation slows is not foreseen. Came, as measured: examples left at the hand-over / speed"
    f" before {MINUS} examples left / speed after, each from the first report of a generation to"
    " its last, so without pauses and what follows the last update; the speed before is that up to"
    " the decision; by how much what trained got behind from then on, while the next generation"
    " was prepared beside it; the pause; and in all."
)


def _head(told: Contents) -> str:
    story, view = told.story, told.story.view
    size = (
        f"{format_count(view.total_samples, 'example')} to apply"
        if view.total_samples
        else "no report yet"
    )
    asked = story.request
    policy = text(asked.policy or "of the cluster")
    line = (
        f"{text(asked.program.name)}, {format_count(asked.epochs, 'epoch')}, {size}; policy"
        f" {policy}"
    )
    notes = "".join(f'<p class="note">{text(note)}</p>' for note in told.notes)
    return (
        f"<h1>{text(asked.job)} <span class='soft'>in {text(asked.namespace)}</span></h1>\n"
        f'<p class="soft">{line}</p>\n{_state(told)}{notes}'
    )


def _state(told: Contents) -> str:
    finished, phase = told.story.finished, told.story.view.phase
    if finished is None:
        return (
            f'<p class="note">{phase}: not over; this is how it stood at'
            f" {clock(told.account.to_s)}.</p>"
        )
    cause = (
        f"<details><summary>why</summary><pre>{lines(finished.cause)}</pre></details>"
        if finished.cause
        else ""
    )
    style = "note good" if finished.outcome == "succeeded" else "note bad"
    return f'<div class="{style}">{phase} at {clock(told.account.to_s)}.{cause}</div>'


# ---------------------------------------------------------------- the seeds' three metrics, and the cost


def _cards(told: Contents) -> str:
    spent = told.account
    name = "Completion time" if spent.over else "Time so far"
    split = f"{lasting(spent.waited_s)} to the first update, {lasting(spent.trained_s)} trained, "
    split += (
        f"{lasting(spent.paused_s)} in {format_count(spent.pauses, 'pause')}"
        if spent.pauses
        else "no pause"
    )
    split += f", {lasting(spent.off_s)} off" if spent.off_s else ""
    cluster = (
        f"of the cluster's cores jobs requested {percent(spent.cluster_ours)}, all pods"
        f" {percent(spent.cluster_all)}"
    )
    held = number(spent.parts.held_total / HOUR_S)
    waste = (
        f"{number(spent.done_again_core_s / HOUR_S)} of them done again"
        f" ({format_count(spent.lost, 'example')} lost)"
    )
    return _grid(
        _card(name, lasting(spent.completion_s), split),
        _card(
            "Utilisation of CPU", percent(spent.utilisation), f"used, of what it held; {cluster}"
        ),
        _card("Throughput, examples/s", number(spent.examples_per_second), _throughput(told)),
        *_accuracy(told),
        _card("Cost, CPU-hours", held, waste),
    )


def _throughput(told: Contents) -> str:
    view = told.story.view
    of = f" of {whole(view.total_samples)}" if view.total_samples else ""
    spans = (
        "first update to end: pauses, last save, evaluation included"
        if told.account.over
        else "pauses included"
    )
    return f"{spans}; {whole(told.story.applied)}{of} applied"


def _accuracy(told: Contents) -> list[str]:
    """Return the final metrics of the program; otherwise the last loss."""
    finished, view = told.story.finished, told.story.view
    if finished and finished.metrics:
        first, *others = sorted(finished.metrics.items(), key=lambda metric: metric[0] == "loss")
        beside = ", ".join(f"{text(name)} {number(value, 4)}" for name, value in others)
        return [
            _card(
                text(first[0]).capitalize(),
                number(first[1], 4),
                f"on evaluation(), at the end; {beside}".rstrip("; "),
            )
        ]
    if view.loss is not None:
        return [
            _card(
                "Loss",
                number(view.loss, 4),
                "as last reported: mean of the examples since the report before",
            )
        ]
    return []


def _grid(*cards: str) -> str:
    return f'<div class="cards">\n{"".join(cards)}</div>\n'


def _card(name: str, value: str, said: str) -> str:
    return f'<div class="card"><span>{name}</span><b>{value}</b><span>{said}</span></div>\n'


def _pause_section(told: Contents) -> str:
    """Nothing, where it never paused."""
    paused = [one for one in told.story.stretches if one.pause_s is not None]
    if not paused:
        return _section(
            "Pauses", f"None: a pause is of a hand-over, or after a crash.{_saves(told.story)}"
        )
    said = (
        f"{lasting(told.account.paused_s)} in {format_count(len(paused), 'pause')}, each from the"
        " last update of one generation (0 on the axis) to the first of the next, by the ps'"
        " clocks: the number in its row. Phases are measured by the chiefs, from the order to"
        " drain on, and drawn so that they end with the pause: what lies left of 0 was before the"
        " last update, and is no part of the pause. What is in none was waiting: for a decision,"
        " for its tasks, and for these to connect, to build and to trace."
    )
    if told.account.off_s:
        said += (
            f" The {lasting(told.account.off_s)} for which the whole cluster was off are in none of"
            " them."
        )
    if len(paused) > charts.BARS_MOST:
        said += f" The last {charts.BARS_MOST} are drawn."
    return _section(
        "Pauses by phase",
        said,
        _drawings(lambda width: charts.draw_pauses(told.story.stretches, width)),
    )


def _saves(story: JobHistory) -> str:
    """Return the cost of saves for a job without pauses; the save of a hand-over is part of its
    pause.
    """
    if not story.save_cost_s:
        return ""
    return (
        f" To save holds training, too, and is no pause: it cost {lasting(story.save_cost_s)} in"
        " all."
    )


def _cost(told: Contents) -> str:
    spent = told.account
    return (
        f"{number(spent.parts.held_total / HOUR_S)} CPU-hours were held: the requests of its pods,"
        f" for as long as nodes listed them. {number(spent.used_core_s / HOUR_S)} were used, as far"
        f" as tasks measured it. Of training, {number(spent.done_again_core_s / HOUR_S)} CPU-hours"
        " were wasted: updates lost with a ps or a chief and done again."
    )


def _section(name: str, said: str, *parts: str) -> str:
    lead = f'<p class="soft">{said}</p>\n' if said else ""
    return f"<section>\n<h2>{name}</h2>\n{lead}{''.join(parts)}</section>\n"


def _drawings(drawn: Callable[[float], str]) -> str:
    """Return a drawing in two widths, one of them shown: the labels of the wide one are unreadable
    on a phone.
    """
    sizes = (("wide", drawing.WIDE), ("narrow", drawing.NARROW))
    return "".join(f'<div class="drawing {name}">{drawn(width)}</div>\n' for name, width in sizes)


def _foot(told: Contents) -> str:
    asked = told.story
    return (
        f"<footer>Submitted {clock(asked.asked_s)}, job {asked.uid} of its cluster. Written"
        f" {clock(told.written_s)} by <code>weir report {text(asked.request.job)}</code> from the"
        " facts on the bus.</footer>\n"
    )
