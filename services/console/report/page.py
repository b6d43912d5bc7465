"""The report as one HTML page without scripts or requests: first the result, then the details."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from services.console.board.board import Board
from services.console.board.figures import HOUR_S
from services.console.board.job_history import JobHistory
from services.console.report import charts, drawing, tables
from services.console.report.account import Account, DecisionResult, account_job, decision_results
from services.console.report.charts import draw_core_hours, draw_epochs, draw_pauses, draw_timeline
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
    results: tuple[DecisionResult, ...]
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
        results=tuple(decision_results(story)),
        epochs=tuple(epochs),
        written_s=written_s,
        notes=tuple(notes),
    )


def report_page(report: Contents) -> str:
    title = f"Weir: job {text(report.story.request.job)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        '<svg width="0" height="0" style="position:absolute"'
        f' aria-hidden="true"><defs>{HATCHES}</defs></svg>\n'
        f"<main>\n{''.join(_sections(report))}</main>\n</body>\n</html>\n"
    )


def _sections(report: Contents) -> Iterable[str]:
    story, account = report.story, report.account

    def timeline(width: float) -> str:
        return draw_timeline(report.board, story, account, report.results, width)

    yield _head(report)
    yield _cards(report)
    yield _section("Over time", TIMELINE, _drawings(timeline))
    if report.epochs:
        first, last = lasting(report.epochs[0]), lasting(report.epochs[-1])
        lead = f"{EPOCH} The first took {first}, the last {last}."
        yield _section("Each epoch", lead, _drawings(partial(draw_epochs, report.epochs)))
    yield _pause_section(report)
    held = _drawings(partial(draw_core_hours, account.parts))
    yield _section("Cost", _cost(account), held, tables.parts(account))
    if report.results:
        rows = tables.decisions_table(report.results, account.from_s)
        yield _section("Decisions: forecast and result", FORECAST, rows)
    if story.marks:
        rows = tables.incidents_table(story.marks, account.from_s)
        yield _section("Failures and abandoned generations", "", rows)
    yield _foot(report)


TIMELINE = (
    "Shaded bands are pauses: no update was applied; in a grey one the whole cluster was off."
    " Numbers below are decisions; each links to its row further down. Long series are thinned:"
    " points are left out, never averaged."
)
EPOCH = (
    "Seconds, pauses included. An end between two reports is interpolated by the number of"
    " examples."
)
FORECAST = (
    "Forecast: the seconds saved on the remaining work, and the pause; the slowdown while the next"
    " generation is prepared is not predicted. Result, as measured: examples left at the hand-over"
    f" / speed before {MINUS} examples left / speed after. A speed is measured from the first"
    " report of a generation to its last, without pauses and the time after the last update; the"
    " speed before is measured up to the decision. Then the delay of the running generation while"
    " the next one was prepared beside it; the pause; and the total."
)


def _head(report: Contents) -> str:
    request = report.story.request
    total = report.story.view.total_samples
    size = f"{format_count(total, 'example')} to apply" if total else "no report yet"
    epochs = format_count(request.epochs, "epoch")
    policy = text(request.policy or "of the cluster")
    notes = [f'<p class="note">{text(note)}</p>' for note in report.notes]
    return (
        f"<h1>{text(request.job)} <span class='soft'>in {text(request.namespace)}</span></h1>\n"
        f'<p class="soft">{text(request.program.name)}, {epochs}, {size}; policy {policy}</p>\n'
        f"{_state(report)}{''.join(notes)}"
    )


def _state(report: Contents) -> str:
    finished, phase = report.story.finished, report.story.view.phase
    at = clock(report.account.to_s)
    if finished is None:
        return f'<p class="note">{phase}: it has not ended; the state at {at} is shown.</p>'
    cause = ""
    if finished.cause:
        cause = f"<details><summary>why</summary><pre>{lines(finished.cause)}</pre></details>"
    style = "note good" if finished.outcome == "succeeded" else "note bad"
    return f'<div class="{style}">{phase} at {at}.{cause}</div>'


# ---------------------------------------------------------------- cards of figures


def _cards(report: Contents) -> str:
    account = report.account
    name = "Completion time" if account.over else "Time so far"
    ours, everyone = percent(account.cluster_ours), percent(account.cluster_all)
    use = (
        f"used of the held cores; of the cluster's cores jobs requested {ours}, all pods {everyone}"
    )
    speed = number(account.examples_per_second)
    held = number(account.parts.held_total / HOUR_S)
    repeated = number(account.done_again_core_s / HOUR_S)
    waste = f"{repeated} of them repeated ({format_count(account.lost, 'example')} lost)"
    cards = [
        _card(name, lasting(account.completion_s), _time_split(account)),
        _card("Utilisation of CPU", percent(account.utilisation), use),
        _card("Throughput, examples/s", speed, _throughput(report)),
        _accuracy_card(report.story),
        _card("Cost, CPU-hours", held, waste),
        _staleness_card(report.story),
    ]
    return f'<div class="cards">\n{"".join(cards)}</div>\n'


def _time_split(account: Account) -> str:
    pauses = "no pause"
    if account.pauses:
        pauses = f"{lasting(account.paused_s)} in {format_count(account.pauses, 'pause')}"
    off = f", {lasting(account.off_s)} off" if account.off_s else ""
    waited, trained = lasting(account.waited_s), lasting(account.trained_s)
    return f"{waited} to the first update, {trained} trained, {pauses}{off}"


def _throughput(report: Contents) -> str:
    total = report.story.view.total_samples
    of_total = f" of {whole(total)}" if total else ""
    included = "pauses included"
    if report.account.over:
        included = "first update to end: pauses, last save, evaluation included"
    return f"{included}; {whole(report.story.applied)}{of_total} applied"


def _accuracy_card(story: JobHistory) -> str:
    """Return the final metrics of the program, or the last loss; empty if both are unknown."""
    finished, loss = story.finished, story.view.loss
    if finished and finished.metrics:
        first, *others = sorted(finished.metrics.items(), key=lambda metric: metric[0] == "loss")
        notes = [f"{text(name)} {number(value, 4)}" for name, value in others]
        note = f"on evaluation(), at the end; {', '.join(notes)}".rstrip("; ")
        return _card(text(first[0]).capitalize(), number(first[1], 4), note)
    if loss is None:
        return ""
    note = "as last reported: mean of the examples since the report before"
    return _card("Loss", number(loss, 4), note)


def _staleness_card(story: JobHistory) -> str:
    """Return the staleness of gradients over the reports; empty if none was counted."""
    found = [each.staleness for each in story.reports if each.staleness is not None]
    dropped = sum([each.dropped for each in found])
    largest = max([each.largest for each in found], default=0)
    if not largest and not dropped:
        return ""
    mean = sum([each.mean for each in found]) / len(found)
    note = f"updates applied while a gradient was computed: mean of the reports; at most {largest}"
    note += f"; {format_count(dropped, 'gradient')} dropped as too stale" if dropped else ""
    return _card("Staleness of gradients", number(mean, 1), note)


def _card(name: str, value: str, note: str) -> str:
    return f'<div class="card"><span>{name}</span><b>{value}</b><span>{note}</span></div>\n'


def _pause_section(report: Contents) -> str:
    story, account = report.story, report.account
    if not account.pauses:
        lead = f"None. A pause is a hand-over, or the time after a crash.{_save_cost(story)}"
        return _section("Pauses", lead)
    lead = (
        f"{lasting(account.paused_s)} in {format_count(account.pauses, 'pause')}, each from the"
        " last update of one generation (0 on the axis) to the first of the next, by the clocks of"
        " the ps: the number in its row. Phases are measured by the chiefs, from the order to"
        " drain on, and drawn so that they end with the pause: the part left of 0 was before the"
        " last update and does not belong to the pause. Time without a phase is waiting: for a"
        " decision, for the tasks, and until they have connected, built and traced."
    )
    if account.off_s:
        lead += f" The {lasting(account.off_s)} with the whole cluster off are not included."
    if account.pauses > charts.BARS_MOST:
        lead += f" The last {charts.BARS_MOST} are drawn."
    return _section(
        "Pauses by phase", lead, _drawings(partial(draw_pauses, story.generation_spans))
    )


def _save_cost(story: JobHistory) -> str:
    """Return the cost of saves for a job without pauses; the save of a hand-over is part of its
    pause.
    """
    if not story.save_cost_s:
        return ""
    cost = lasting(story.save_cost_s)
    return f" Saves also stop training, but do not count as pauses: {cost} in total."


def _cost(account: Account) -> str:
    held = number(account.parts.held_total / HOUR_S)
    used = number(account.used_core_s / HOUR_S)
    repeated = number(account.done_again_core_s / HOUR_S)
    return (
        f"{held} CPU-hours were held: the requests of the job's pods, while nodes listed them."
        f" {used} were used, as measured by the tasks. Of training, {repeated} CPU-hours were"
        " wasted: updates lost with a ps or a chief and done again."
    )


def _section(name: str, intro: str, *parts: str) -> str:
    lead = f'<p class="soft">{intro}</p>\n' if intro else ""
    return f"<section>\n<h2>{name}</h2>\n{lead}{''.join(parts)}</section>\n"


def _drawings(draw: Callable[[float], str]) -> str:
    """Return a drawing in two widths, one of them shown: the labels of the wide one are unreadable
    on a phone.
    """
    wide, narrow = draw(drawing.WIDE), draw(drawing.NARROW)
    return f'<div class="drawing wide">{wide}</div>\n<div class="drawing narrow">{narrow}</div>\n'


def _foot(report: Contents) -> str:
    story = report.story
    written = f"Written {clock(report.written_s)}"
    command = f"<code>weir report {text(story.request.job)}</code>"
    return (
        f"<footer>Submitted {clock(story.asked_s)}, job {story.uid} of its cluster. {written} by"
        f" {command} from the facts on the bus.</footer>\n"
    )
