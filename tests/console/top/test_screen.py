"""Tests of the screen of `weir top`."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest

from services.console.board.board import Board, initial_board, with_reason
from services.console.board.figures import share_done, time_left_s
from services.console.text.cells import letters
from services.console.top.job_tables import WIDE, WIDEST
from services.console.top.screen import HEADS, ScreenOptions, draw_screen, room
from tests.console.top.drawn import shown, svg
from tests.console.top.scenery import WHERE, Scenery, large, scenery

SIZES = [(80, 24), (100, 30), (120, 40), (200, 60)]


@pytest.fixture(scope="module")
def there() -> Scenery:
    return scenery()


def screen(
    board: Board, width: int, height: int | None, now_s: float = 0.0, cut_s: float | None = None
) -> list[str]:
    look = ScreenOptions(now_s or board.at_s, WHERE, cut_s, UTC)
    return shown(draw_screen(board, look, letters({}, board.jobs), width, height), width)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_screen_fits_the_terminal_and_shows_every_node_and_job(
    there: Scenery, width: int, height: int
) -> None:
    lines = screen(there.board, width, height)

    assert max(map(len, lines)) <= width and len(lines) < height
    nodes = sum(line.startswith("node-") for line in lines)
    assert (
        nodes == 6
        if height >= 30
        else nodes >= 4 and any("more is not shown" in line for line in lines)
    )
    assert all(any(f" {name} " in line for line in lines) for name in ("digits", "clicks"))


@pytest.mark.parametrize("width", [80, 160])
def test_a_silent_job_has_its_cause_at_any_width(there: Scenery, width: int) -> None:
    board = with_reason(
        there.board, "default.digits", "no report since step 7: its program may hang", silent=True
    )

    lines = screen(board, width, None)

    assert any(" digits " in line and " Silent " in line for line in lines)
    assert any("no report since step 7" in line for line in lines)
    assert width < 160 or any("1 silent" in line for line in lines)
    assert not any(
        " Silent " in line for line in screen(with_reason(board, "default.digits", ""), width, None)
    )


def test_each_job_is_shown_with_its_last_facts(there: Scenery) -> None:
    line = next(x for x in screen(there.board, 160, None) if " digits " in x and " Running " in x)
    view = there.board.jobs["default.digits"].view

    done, left = share_done(view), time_left_s(view)
    assert (view.samples, view.samples_per_second, view.loss) == (512_400, 4_620.0, 0.55)
    assert done == 512_400 / 600_000 and left == (600_000 - 512_400) / 4_620.0
    for cell in (
        "Running",
        " 2 ",
        " 3 ",
        " 9 ",
        " 4,620 ",
        " 0.55 ",
        "85 %",
        "19 s",
        "2 ps and 3 workers is what pays",
    ):
        assert cell in line, (cell, line)


def test_each_node_is_shown_with_its_last_fact(there: Scenery) -> None:
    lines = screen(there.board, 120, 40)

    of_3, of_5 = (next(x for x in lines if x.startswith(f"node-{n} ")) for n in (3, 5))
    assert of_3.split()[-5:] == ["3", "2.5", "2.5", "8", "6/64"]
    assert of_5.split()[-6:] == ["2", "4", "2", "8", "4/64", "cordoned"]
    assert "░" in of_3 and "·" in of_3
    heading = next(line for line in lines if line.startswith("NODE "))
    assert all(
        line.index("/64") + len("/64") == heading.index("ALL ") + 3 + len(" GIB JOBS/ALL")
        for line in (of_3, of_5)
    )


@pytest.mark.parametrize("width", [80, 100, 104, 119, 120, 139, 140, 170, 200])
def test_columns_are_aligned_with_their_headings_at_every_width(there: Scenery, width: int) -> None:
    lines = screen(there.board, width, None)
    at = next(n for n, line in enumerate(lines) if line.split()[:1] == ["JOB"])
    heading, digits = lines[at], next(line for line in lines[at:] if " digits " in line)

    assert heading.split()[-1] == ("WHY" if width >= WIDEST else "LEFT") and "…" not in heading
    assert digits[: heading.index("LEFT") + 4].endswith("19 s"), (heading, digits)
    assert digits[: heading.index("EXAMPLES/S") + 10].endswith(" 4,620")
    if width >= WIDE:
        assert digits[: heading.index("GIB") + 3].endswith(" 18"), "nine pods of 2 GiB"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_waiting_job_shows_the_missing_resource(there: Scenery, width: int) -> None:
    text = "\n".join(screen(there.board, width, None))

    assert "waits for room (too little memory) for a chief, 1 ps and 1 worker" in text


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_starting_job_shows_the_awaited_step(width: int) -> None:
    s = Scenery()
    s.decides(s.asks("digits"), 1, 1, ["node-1"], "it is new, and there is room")

    assert "waits for 3 pods: 0 of 3 run, 0 ready" in "\n".join(screen(s.board, width, None))


def test_the_totals_are_those_of_the_board(there: Scenery) -> None:
    totals, text = there.board.totals, " ".join(screen(there.board, 160, None))

    assert (totals.ours, totals.others, totals.free, totals.allocatable) == (
        22.0,
        7.75,
        18.25,
        48.0,
    )
    assert (
        "jobs 22, others 7.75, free 18.25 of 48 cores; used 7.5" in text
        and "6 nodes, 46 % of the cores held by jobs" in text
    )
    assert (totals.ours_gib, totals.others_gib, totals.free_gib, totals.allocatable_gib) == (
        44.0,
        148.0,
        192.0,
        384.0,
    )
    assert "jobs 44, others 148, free 192 of 384 GiB; used 3" in text


def test_the_last_decisions_are_shown_newest_first_with_their_prediction(there: Scenery) -> None:
    lines = screen(there.board, 160, None)
    below = lines[lines.index("last decisions") + 2 :]

    assert [line.split()[2] for line in below] == [
        "clicks",
        "digits",
        "sentiment",
        "clicks",
        "digits",
    ]
    assert "2 ps, 3 workers, batch 128, 3 nodes" in below[1]
    assert "37 % faster with 2 more workers (saves 1 min 14 s for 1.10 s)" in below[1]


def test_a_bus_outage_is_shown_with_its_duration(there: Scenery) -> None:
    now_s = there.board.at_s + 75

    assert " live " in screen(there.board, 120, 40)[0]
    assert (
        "NO CONNECTION to the bus for 1 min 15 s"
        in screen(there.board, 120, 40, now_s, now_s - 75)[0]
    )


def test_the_screen_shows_that_the_log_is_being_read(there: Scenery) -> None:
    look = ScreenOptions(there.board.at_s, WHERE, None, UTC, reading=True)

    first = shown(draw_screen(there.board, look, {}, 120, 40), 120)[0]

    assert "reading the log" in first and "live" not in first


def test_nothing_is_absent_before_the_log_is_read() -> None:
    look = ScreenOptions(1.0, WHERE, None, UTC, reading=True)

    lines = shown(draw_screen(initial_board(), look, {}, 100, 24), 100)

    assert sum("reading the log …" in line for line in lines) == 4, "the heading and three parts"
    text = "\n".join(lines)
    assert not any(claim in text for claim in ("monitor running", "none", "0 nodes", "of 0 cores"))


def test_an_empty_cluster_has_hints() -> None:
    text = "\n".join(screen(initial_board(), 100, 24))

    assert (
        "is the monitor running?" in text
        and "`weir submit FILE` submits one" in text
        and "last decisions: none" in text
    )


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_rows_that_do_not_fit_are_counted(width: int, height: int) -> None:
    lines = screen(large(1_000, 200), width, height)

    assert len(lines) < height and max(map(len, lines)) <= width
    left = [line for line in lines if "more are not shown" in line]
    assert (
        len(left) == 2
        and sum(line.startswith("node-") for line in lines) + sum(" job-" in x for x in lines)
        > height / 3
    )


@pytest.mark.parametrize("height", [1, 10, 24, 60])
def test_row_counts_are_within_bounds(height: int) -> None:
    for nodes, jobs, decisions in (
        (0, 0, 0),
        (3, 1, 0),
        (1_000, 1, 9),
        (2, 500, 9),
        (1_000, 500, 9),
    ):
        given = room(nodes, jobs, decisions, height)
        assert min(given) >= min(1, nodes) and given.nodes <= max(nodes, 1)
        assert sum(min(*pair) for pair in zip(given, (nodes, jobs, decisions), strict=True)) <= max(
            height - HEADS, 3
        )


@pytest.mark.parametrize(
    ("width", "title"), [(120, "weir-top"), (80, "weir-top-narrow"), (170, "weir-top-wide")]
)
def test_the_screen_can_be_saved_as_svg(
    there: Scenery, tmp_path: Path, width: int, title: str
) -> None:
    look = ScreenOptions(there.board.at_s + 2, WHERE, None, UTC)
    marks = letters({}, [key for key in there.board.jobs if key != "default.warm-up"])

    file = svg(
        draw_screen(there.board, look, marks, width, 40 if width > 80 else 24),
        width,
        title,
        tmp_path,
    )

    text = file.read_text()
    assert text.startswith("<svg") and "digits" in text and "#56b4e9" in text.lower()
