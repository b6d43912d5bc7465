"""Tests of the tables of `weir top`: which rows, in which order, which columns, number formats."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from services.allocator.job_views import JobView
from services.console.text.cells import cores, gib, loss, percent, size, speed, time_left
from services.console.top.job_tables import (
    ALL,
    BARS,
    HEADINGS,
    MORE,
    NARROW,
    ORDER,
    STALENESS,
    VERY_WIDE,
    columns,
    in_order,
    job_table,
    jobs_table,
    row,
)
from services.console.top.screen import shown_first
from tests.console.top.drawn import shown
from tests.console.top.scenery import Scenery, large, scenery


def test_nodes_are_in_natural_order() -> None:
    nodes = large(12, 1).nodes.values()

    assert [node.name for node in shown_first(nodes, 99)] == [
        f"node-{number}" for number in range(12)
    ]


def test_of_many_nodes_the_most_used_are_shown() -> None:
    s = Scenery()
    job = s.asks("digits")
    for number, pods in enumerate((0, 3, 1, 2)):
        s.node(f"node-{number}", [(job, pods)])

    assert [node.name for node in shown_first(s.board.nodes.values(), 2)] == ["node-1", "node-3"]


def test_running_jobs_come_before_finished_ones() -> None:
    names = [job.key.partition(".")[2] for job in in_order(scenery().board.jobs.values())]

    assert names == ["digits", "clicks", "sentiment", "click-rate-of-the-second-season", "warm-up"]


def test_a_wider_terminal_shows_more_columns_in_a_job_table() -> None:
    assert list(columns(80)) == [
        "PHASE",
        "PS",
        "WORKERS",
        "EXAMPLES/S",
        "LOSS",
        "CURVE",
        "DONE",
        "LEFT",
    ]
    assert (
        set(columns(80)) < set(columns(120)) < set(columns(160)) and list(columns(160))[-1] == "WHY"
    )


@pytest.mark.parametrize("width", [60, 80, 104, 120, 140])
@pytest.mark.parametrize("value", [0.55, 0.003999, 0.0001234, -0.0001234])
@pytest.mark.parametrize("wanted_ps", [1, 2, 12])
def test_the_longest_numbers_fit(width: int, value: float, wanted_ps: int) -> None:
    job = next(job for job in scenery().board.jobs.values() if job.key == "default.digits")
    told = {"loss": value, "ps": 1, "wanted_ps": wanted_ps, "mean_samples_per_second": 270.0}
    heading, line = shown(
        job_table([replace(job, view=replace(job.view, **told))], {}, width), width
    )

    assert "…" not in heading + line[:-1] and "digits" in line and "5 min 24 s" in line
    assert (
        heading.split()[-1] == ("WHY" if width >= 140 else "LEFT")
        and max(len(heading), len(line)) <= width
    )
    assert f" {value:.4g} " in line or width < 80


def test_the_curve_is_shortened_or_dropped_for_a_long_loss() -> None:
    job = next(job for job in scenery().board.jobs.values() if job.key == "default.digits")

    def heading(**told: object) -> str:
        return shown(job_table([replace(job, view=replace(job.view, **told))], {}, 80), 80)[0]

    assert "CURVE" in heading(loss=0.001234)
    assert "CURVE" not in heading(loss=0.0001234, ps=10, wanted_ps=12)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (cores(1.25), "1.25"),
        (cores(4.0), "4"),
        (cores(0.0), "0"),
        (cores(100.0), "100"),
        (gib(4.0), "4"),
        (gib(1_023.96), "1,024"),
        (gib(0.25), "0.2"),
        (speed(4_620.4), "4,620"),
        (speed(0.53), "0.5"),
        (speed(0.0), "-"),
        (percent(0.855), "86 %"),
        (percent(None), "-"),
        (time_left(200.0), "3 min 20 s"),
        (time_left(658.0), "11 min"),
        (time_left(6_240.0), "1 h 44 min"),
        (time_left(40_000.0), "11 h"),
        (time_left(None), "-"),
        (loss(0.123456), "0.1235"),
        (loss(None), "-"),
        (size(2, 2), "2"),
        (size(2, 4), "2→4"),
    ],
)
def test_numbers_are_short_and_unknown_ones_are_dashes(written: str, expected: str) -> None:
    assert written == expected


def test_short_names_leave_room_for_the_reason() -> None:
    job = next(job for job in scenery().board.jobs.values() if job.key == "default.digits")
    why = "all 12 cores of the cluster are held"

    heading, line = shown(job_table([replace(job, view=replace(job.view, why=why))], {}, 160), 160)

    assert heading.index("PHASE") <= 20 and line.endswith(why)


def view(**fields: Any) -> JobView:
    return JobView(
        **{"job": "digits", "namespace": "default", "uid": 7, "phase": "Running", **fields}
    )


def cells(seen: JobView, epochs: int = 0) -> dict[str, str]:
    return dict(zip(HEADINGS, [text.plain for text in row(seen, epochs)], strict=True))


def test_a_resizing_job_shows_both_sizes() -> None:
    shown = cells(view(phase="Scaling", ps=1, wanted_ps=2, workers=3, wanted_workers=3))

    assert (shown["PS"], shown["WORKERS"]) == ("1 -> 2", "3")


def test_progress_shows_complete_epochs() -> None:
    shown = cells(
        view(epoch=0, samples=50, total_samples=400, samples_per_second=1234.5, loss=0.25), epochs=4
    )

    assert (shown["EPOCHS"], shown["DONE"], shown["EXAMPLES/S"], shown["LOSS"]) == (
        "0/4",
        "12.5 %",
        "1,234",
        "0.2500",
    )
    assert cells(view(epoch=3, samples=350, total_samples=400))["EPOCHS"] == "3"


def test_a_finished_job_shows_its_outcome() -> None:
    over = view(
        phase="Succeeded",
        epoch=4,
        samples=4000,
        total_samples=4000,
        metrics={"loss": 0.25, "accuracy": 0.9},
    )
    timed = msgspec.structs.replace(over, submitted_s=10.0, finished_s=210.0, reason="grow")

    assert cells(over, 4)["EPOCHS"] == "4/4"
    assert (
        cells(timed)["WHY"]
        == "after 3 min 20 s, 4,000 examples, evaluation: loss 0.2500, accuracy 0.9000"
    )
    failed = msgspec.structs.replace(
        timed, phase="Failed", metrics={}, why="Traceback:\n  x\nValueError: no"
    )
    assert cells(failed)["WHY"] == "after 3 min 20 s, 4,000 examples: ValueError: no"


def test_unknown_values_are_dashes() -> None:
    unknown = ("GEN", "EPOCHS", "DONE", "LOSS", "PAUSE")

    assert {name: cells(view())[name] for name in unknown} == dict.fromkeys(unknown, "-")


def test_a_job_shows_its_last_pause_and_why_it_does_not_grow() -> None:
    shown = cells(view(pauses=(0.5, 0.75), reason="grow", why="no node is free"))

    assert (shown["PAUSE"], shown["WHY"]) == ("0.75 s", "no node is free")
    assert cells(view(pauses=(75.2,)))["PAUSE"] == "1 min 15 s", (
        "as the page and the report have it"
    )


def test_a_job_without_reports_is_shown_as_silent() -> None:
    assert cells(view(silent=True, why="no report since step 7"))["PHASE"] == "Silent"


def test_a_table_has_a_row_for_each_job_oldest_first() -> None:
    drawn = jobs_table([view(job="b", submitted_s=2.0), view(job="a", submitted_s=3.0)], {}, 200)

    assert [str(cell) for cell in drawn.columns[1].cells] == ["b", "a"]


LONG_NAME = "click-rate-of-the-second-season"
MANY = [
    view(
        job=LONG_NAME,
        phase="Scaling",
        ps=1,
        wanted_ps=2,
        workers=3,
        wanted_workers=12,
        generation=12,
        epoch=1,
        samples=50_000,
        total_samples=400_000,
        samples_per_second=123_456.0,
        loss=0.003999,
        pauses=(12.34,),
        why="no node has 2 cores and 4 GiB free, and no other job would give any of its own",
    ),
    view(
        job="warm-up",
        phase="Succeeded",
        epoch=4,
        samples=4000,
        total_samples=4000,
        metrics={"accuracy": 0.9},
    ),
]


def lines(views: list[JobView], width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(jobs_table(views, {}, width))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_on_a_narrow_terminal_no_heading_and_no_name_is_cut(width: int) -> None:
    drawn = lines(MANY, width)

    assert set(drawn[0].split()) <= set(HEADINGS) and "…" not in "\n".join(drawn)
    assert any(line.startswith(LONG_NAME) or f" {LONG_NAME} " in line for line in drawn)
    assert all(len(line) <= width for line in drawn)


def test_a_wider_terminal_shows_more_columns_most_important_first() -> None:
    at = {width: lines(MANY, width)[0].split() for width in (80, 120, 200)}

    assert at[80] == ["JOB", "PHASE", "PS", "WORKERS", "DONE", "EXAMPLES/S"]
    assert at[120] == ["JOB", "PHASE", "PS", "WORKERS", "GEN", "DONE", "EXAMPLES/S", "LOSS", "WHY"]
    assert at[200] == list(HEADINGS)


def test_a_namespace_other_than_the_default_is_always_shown() -> None:
    assert lines([view(), view(namespace="team-a", why="no node is free")], 80)[0].startswith(
        "NAMESPACE  JOB"
    )


def test_a_name_wider_than_the_terminal_is_wrapped() -> None:
    drawn = lines([view(job="j" * 63)], 40)

    assert sum(line.count("j") for line in drawn) == 63 and all(len(line) <= 40 for line in drawn)


def test_every_column_has_a_place_in_the_order() -> None:
    assert {*NARROW, *MORE, *BARS, *ALL, *STALENESS} == set(ORDER)
    assert list(columns(VERY_WIDE)) == list(ORDER)
