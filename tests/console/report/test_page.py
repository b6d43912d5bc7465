"""Tests of the report page: self-contained, well-formed, all numbers from account or facts."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from services.console.board.figures import HOUR_S
from services.console.board.job_history import JobHistory
from services.console.report import drawing
from services.console.report.account import account_job
from services.console.report.page import Contents, contents, report_page
from shared.messages import CheckpointSaved
from tests.allocator.builders import accepted, request
from tests.console.report.story import (
    EPOCHS,
    UID,
    Log,
    begun_at_ten,
    ended,
    of_digits,
    pods,
    report,
    resumed,
    whole,
)

VOID = {"meta", "link", "br", "path", "rect", "circle", "polyline", "polygon"}


class Reader(HTMLParser):
    """Parses a page, whose tags must be balanced, and collects its ids, links and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.said = list[str](), list[str](), list[str]()
        self.ids, self.refers = list[str](), list[str]()
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.refers += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).split())


def told(log: Log, *notes: str) -> Contents:
    return contents(log.board, of_digits(log.board), log.passes.seconds, 200.0, notes)


@pytest.fixture(scope="module")
def written() -> str:
    return report_page(told(whole()))


def test_the_report_is_well_formed_and_loads_nothing(written: str) -> None:
    read = Reader(written)

    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert all(reference.startswith("#") for reference in read.refers)
    assert not re.search(r"https?:|//\w|@import|url\((?!#)", written)
    assert not [name for name, _ in read.attributes if name.startswith("on")]


def test_every_reference_has_one_target(written: str) -> None:
    read = Reader(written)

    assert len(set(read.ids)) == len(read.ids)
    assert {reference[1:] for reference in read.refers} <= set(read.ids)
    assert {f"decision-{number}" for number in range(1, 5)} <= set(read.ids)


def test_the_three_main_metrics_come_first(written: str) -> None:
    log, text = whole(), Reader(written).text
    found = account_job(log.board, of_digits(log.board))

    assert (
        "Completion time 1 min 46 s 10.0 s to the first update, 1 min 28 s trained, 8.31 s in 2"
        " pauses" in text
    )
    used = drawing.percent(found.utilisation)
    assert f"Utilisation of CPU {used} used of the held cores" in text
    assert (
        f"requested {drawing.percent(found.cluster_ours)}, all pods"
        f" {drawing.percent(found.cluster_all)}" in text
    )
    spans = "first update to end: pauses, last save, evaluation included"
    assert f"Throughput, examples/s 125 {spans}; 12,000 of 12,000 applied" in text
    assert "without pauses and the time after the last update" in text
    assert "Accuracy 0.9731 on evaluation(), at the end; loss 0.09120" in text
    assert (
        f"Cost, CPU-hours {drawing.number(found.parts.held_total / HOUR_S)} " in text
        and "(500 examples lost)" in text
    )


def test_a_decision_is_shown_beside_its_outcome(written: str) -> None:
    text = Reader(written).text

    assert "1 ps, 1 worker, batch 32 → 2 ps, 4 workers, batch 32" in text
    assert "saves 1 min 35 s, at 130 examples/s for a pause of 1.00 s" in text
    assert (
        "saves 2 min 9 s by its speed, 60.3 → 251 examples/s slowed 0.04 s while it was prepared"
        in text
    )
    assert "paused 0.71 s; trained 9.00 s after the decision in total saves 2 min 8 s" in text
    assert (
        "costs 3.25 s by its speed, 251 → 217 examples/s paused 7.60 s" in text
        and "in total costs 10.8 s" in text
    )
    assert "abandoned: digits-worker-7 is unschedulable" in text
    assert "no forecast: it was a start, or the change was forced" in text


def test_text_of_users_is_escaped(written: str) -> None:
    assert "<b>slower</b>" not in written and "&lt;b&gt;slower&lt;/b&gt; by a third" in written
    assert "at line &lt;3&gt;" in written


def test_failures_are_shown(written: str) -> None:
    text = Reader(written).text

    assert "ps-1 ended on n1: OOMKilled: too much" in text
    assert "no checkpoint at update 9: it is full; make room" in text
    assert "generation 4 was abandoned: digits-worker-7 is unschedulable" in text


def test_every_panel_has_units(written: str) -> None:
    text = Reader(written).text

    for said in (
        "examples a second",
        "Cores of this job",
        "Cores of the cluster",
        "seconds since submission",
        "epoch",
    ):
        assert said in text
    assert "CPU-hours core-seconds share of the held cores" in text


def test_a_running_job_has_a_report() -> None:
    text = Reader(report_page(told(begun_at_ten().say(30, report(1, 500, 60.0, 1.0))))).text

    assert "Time so far 20.0 s 10.0 s to the first update, 10.0 s trained, no pause" in text
    assert "it has not ended; the state at 1970-01-01 00:00:30 UTC is shown" in text
    assert "None. A pause is a hand-over, or the time after a crash." in text and "Loss" in text


def test_saves_that_delay_training_are_shown_beside_pauses() -> None:
    save = CheckpointSaved(
        job="digits",
        uid=UID,
        generation=1,
        step=10,
        samples=500,
        path="/c",
        seconds=0.5,
        pause_s=0.1,
        cost_s=0.17,
    )
    text = Reader(
        report_page(told(begun_at_ten().say(30, report(1, 500, 60.0, 1.0)).say(31, save)))
    ).text

    assert "Saves also stop training, but do not count as pauses: 0.17 s in total." in text


def test_the_time_with_the_cluster_off_is_shown_beside_the_pauses() -> None:
    log = (
        begun_at_ten()
        .say(30, report(1, 900, 34.0, 0.5))
        .say(700, resumed(2, 1000, pause_s=8.0, off_s=600.0))
    )
    written = report_page(told(log))
    read = Reader(written)

    assert "8.00 s in 1 pause, 10 min off" in read.text and 'class="off"' in written
    assert "The 10 min with the whole cluster off are not included." in read.text


def test_a_waiting_job_has_a_report() -> None:
    asked = request("digits", epochs=EPOCHS)
    log = (
        Log().say(0, pods(0)).say(10, asked, accepted(asked, uid=UID)).say(12, pods(0, others=1.0))
    )
    text = Reader(report_page(told(log))).text

    assert (
        "Pending: it has not ended" in text
        and f"{drawing.NOTHING} to the first update" in text
        and "no report yet" in text
    )


def test_a_failed_job_has_its_cause_with_the_lines_of_the_traceback() -> None:
    log = begun_at_ten().say(
        30, ended(outcome="failed", cause="net.py, line 3: <boom>\n  at\n    depth", metrics={})
    )
    written = report_page(told(log))

    assert "net.py, line 3: &lt;boom&gt;\n  at\n    depth" in written
    assert "Failed at 1970-01-01 00:00:30 UTC" in Reader(written).text


def test_a_purged_beginning_of_the_log_is_noted() -> None:
    assert (
        "weir-facts begins with message 7"
        in Reader(report_page(told(whole(), "weir-facts begins with message 7"))).text
    )


def test_missing_figures_are_dashes() -> None:
    """A missing figure is a dash, not a zero."""
    log = begun_at_ten()
    story: JobHistory = of_digits(log.board)
    text = Reader(report_page(contents(log.board, story, (), 30.0, ()))).text

    assert (
        f"Utilisation of CPU {drawing.NOTHING} used" in text
        and f"Throughput, examples/s {drawing.NOTHING} pauses" in text
    )
    assert "nan" not in text.lower() and "inf " not in text.lower()
