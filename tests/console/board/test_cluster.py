"""Tests of bounded series: they span their whole time and contain only real points."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.console.board.cluster import append_newest, append_point, appended_points, point_at
from services.console.board.job_history import Held

MOST = 16


def grown(times: list[float]) -> tuple[tuple[Held, ...], list[Held]]:
    points, said = tuple[Held, ...](), []
    for number, at_s in enumerate(sorted(times)):
        said.append(Held(at_s, float(number)))
        points = append_point(points, said[-1], MOST)
    return points, said


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200))
def test_a_thinned_series_is_bounded_and_keeps_both_ends_and_only_real_points(
    times: list[float],
) -> None:
    points, said = grown(times)

    assert len(points) <= MOST
    assert points[0] is said[0] and points[-1] is said[-1]
    order = [said.index(point) for point in points]
    assert order == sorted(order)


def test_evenly_spaced_reports_give_an_even_series() -> None:
    points, _ = grown([float(second) for second in range(1000)])

    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(points[:-1])]
    assert max(gaps) <= 4 * 1000 / MOST


def test_new_points_are_the_tail_unless_the_series_was_thinned() -> None:
    before = tuple(Held(float(second), 0.0) for second in range(3))
    later = (*before, Held(3.0, 1.0))

    assert appended_points(before, later) == later[3:] and appended_points((), later) == later
    assert appended_points(before, (before[0], before[2])) is None
    assert appended_points(before, tuple(Held(p.at_s, p.cpu) for p in later)) is None, (
        "another series"
    )


def test_a_step_series_has_its_last_value_at_any_time() -> None:
    points = (Held(1.0, 2.0), Held(5.0, 3.0))

    assert (
        point_at(points, 0.5) is None
        and point_at(points, 4.9) == points[0]
        and point_at(points, 5.0) == points[1]
    )


def test_the_newest_entries_of_a_list_are_kept() -> None:
    assert append_newest((1, 2, 3), 4, 3) == (2, 3, 4) and append_newest((), 1, 3) == (1,)
