"""The tables' own choices: which nodes, in which order, and how numbers are written."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.console.top.cells import cores, gib, loss, percent, size, speed, time_left
from services.console.top.job_table import columns, in_order, job_table
from services.console.top.node_table import shown_first
from tests.console.top.drawn import shown
from tests.console.top.scenery import Scenery, large, scenery


def test_nodes_are_in_the_order_in_which_people_count() -> None:
    nodes = large(12, 1).nodes.values()

    assert [node.name for node in shown_first(nodes, 99)] == [
        f"node-{number}" for number in range(12)
    ]


def test_of_too_many_nodes_those_are_shown_on_which_our_jobs_hold_most() -> None:
    s = Scenery()
    job = s.asks("digits")
    for number, pods in enumerate((0, 3, 1, 2)):
        s.node(f"node-{number}", [(job, pods)])

    assert [node.name for node in shown_first(s.board.nodes.values(), 2)] == ["node-1", "node-3"]


def test_jobs_that_go_on_come_before_those_that_are_over() -> None:
    names = [job.key.partition(".")[2] for job in in_order(scenery().board.jobs.values())]

    assert names == ["digits", "clicks", "sentiment", "click-rate-of-the-second-season", "warm-up"]


def test_more_room_shows_more() -> None:
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
def test_the_longest_numbers_leave_the_right_edge_whole(
    width: int, value: float, wanted_ps: int
) -> None:
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


def test_the_curve_is_shorter_where_the_loss_is_long_and_gone_where_that_is_not_enough() -> None:
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
def test_numbers_are_short_and_what_is_not_known_is_a_dash(written: str, expected: str) -> None:
    assert written == expected


def test_beside_short_names_the_reason_has_the_room() -> None:
    job = next(job for job in scenery().board.jobs.values() if job.key == "default.digits")
    why = "all 12 cores of the cluster are held"

    heading, line = shown(job_table([replace(job, view=replace(job.view, why=why))], {}, 160), 160)

    assert heading.index("PHASE") <= 20 and line.endswith(why)
