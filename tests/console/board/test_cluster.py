"""A series is short however long it grows, spread over its whole time, and holds nothing that was
not said.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.console.board.cluster import append_point, at, come, newest
from services.console.board.job_history import Held

MOST = 16


def grown(times: list[float]) -> tuple[tuple[Held, ...], list[Held]]:
    points, said = tuple[Held, ...](), []
    for number, at_s in enumerate(sorted(times)):
        said.append(Held(at_s, float(number)))
        points = append_point(points, said[-1], MOST)
    return points, said


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200))
def test_it_is_bounded_begins_and_ends_as_it_did_and_invents_nothing(times: list[float]) -> None:
    points, said = grown(times)

    assert len(points) <= MOST
    assert points[0] is said[0] and points[-1] is said[-1]
    order = [said.index(point) for point in points]
    assert order == sorted(order)


def test_even_reports_leave_an_even_series() -> None:
    points, _ = grown([float(second) for second in range(1000)])

    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(points[:-1])]
    assert max(gaps) <= 4 * 1000 / MOST


def test_what_came_is_the_tail_unless_it_was_thinned_meanwhile() -> None:
    before = tuple(Held(float(second), 0.0) for second in range(3))
    later = (*before, Held(3.0, 1.0))

    assert come(before, later) == later[3:] and come((), later) == later
    assert come(before, (before[0], before[2])) is None
    assert come(before, tuple(Held(p.at_s, p.cpu) for p in later)) is None, "another series"


def test_a_series_of_steps_is_at_any_time_what_it_was_last() -> None:
    points = (Held(1.0, 2.0), Held(5.0, 3.0))

    assert at(points, 0.5) is None and at(points, 4.9) == points[0] and at(points, 5.0) == points[1]


def test_of_a_list_of_news_the_newest_stay() -> None:
    assert newest((1, 2, 3), 4, 3) == (2, 3, 4) and newest((), 1, 3) == (1,)
