"""Tests of the save interval, and of the choice of checkpoints to keep.

The interval is Young's optimum of a measured cost and a failure rate that is learned. The
checkpoints that the ledger names, or may still name, are kept.
"""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.checkpoint_policy import (
    DELTA_SHARE,
    FIRST_INTERVAL_S,
    MAX_DELTA_S,
    MAX_SAVE_SHARE,
    MEASUREMENTS,
    MIN_DELTA_S,
    MIN_INTERVAL_S,
    PRIOR_S,
    REDO_S,
    SaveHistory,
    checkpoint_ages,
    delta_interval,
    generation_of_folder,
    is_generation_closed,
    is_obsolete,
    max_repeated_s,
    mean_time_between_failures,
    record_failure,
    record_save,
    save_cost,
    save_interval,
    young_interval,
)


def waste(interval_s: float, cost_s: float, between_s: float) -> float:
    """Return the share of time that is lost to saves, and to half an interval for each failure."""
    return cost_s / interval_s + interval_s / (2 * between_s)


@given(st.floats(0.01, 30), st.floats(600, 1e6), st.floats(0.2, 5))
def test_the_save_interval_is_optimal(cost_s: float, m: float, other: float) -> None:
    best = young_interval(cost_s, m)
    assert waste(best, cost_s, m) <= waste(best * other, cost_s, m) * (1 + 1e-9)


def test_before_a_measurement_the_interval_is_the_initial_one() -> None:
    assert save_interval(SaveHistory()) == FIRST_INTERVAL_S


def test_the_interval_grows_with_the_cost_of_a_save() -> None:
    assert save_interval(SaveHistory(cost_s=0.1)) == pytest.approx(sqrt(2 * 0.1 * PRIOR_S))
    assert save_interval(SaveHistory(cost_s=0.4)) == pytest.approx(
        2 * save_interval(SaveHistory(cost_s=0.1))
    )


def test_the_interval_shrinks_with_the_failure_rate() -> None:
    calm = SaveHistory(cost_s=0.1)
    assert (
        save_interval(record_failure(record_failure(calm)))
        < save_interval(calm)
        < save_interval(record_save(calm, 7200.0, 0.1))
    )


def test_the_prior_is_one_failure_per_hour() -> None:
    assert mean_time_between_failures(SaveHistory()) == PRIOR_S
    assert mean_time_between_failures(SaveHistory(ran_s=PRIOR_S, failures=1)) == PRIOR_S
    assert mean_time_between_failures(SaveHistory(ran_s=99 * PRIOR_S, failures=9)) == 10 * PRIOR_S


@given(st.floats(0, 1e6), st.integers(0, 1000), st.floats(0, 1e5))
def test_the_save_interval_is_bounded(ran_s: float, failures: int, cost_s: float) -> None:
    past = SaveHistory(ran_s=ran_s, failures=failures, cost_s=cost_s)
    assert MIN_INTERVAL_S <= save_interval(past) <= max(REDO_S, cost_s * (1 / MAX_SAVE_SHARE - 1))


SECOND = st.floats(0.001, 100)


@given(st.lists(st.tuples(SECOND, SECOND), min_size=1, max_size=9), st.floats(1, 600))
def test_the_allowed_repetition_bounds_the_interval_up_to_a_tenth_of_the_time(
    saves: list[tuple[float, float]], redo_s: float
) -> None:
    past = SaveHistory()
    for cost_s, took_s in saves:
        past = record_save(past, 30.0, cost_s, took_s)
    interval_s, cost_s = save_interval(past, redo_s), past.cost_s or 0.0

    if interval_s > MIN_INTERVAL_S and max_repeated_s(past, interval_s) > redo_s + 1e-6:
        assert cost_s / (cost_s + interval_s) >= MAX_SAVE_SHARE - 1e-9


def test_one_slow_save_does_not_change_the_interval() -> None:
    """Regression: three saves of 0.1 s, one of 4 s during a node drain, then none for 175 s."""
    past = SaveHistory()
    for _ in range(3):
        past = record_save(past, 27.0, 0.1, 0.3)
    before_s = save_interval(past, 600.0)
    past = record_save(past, 27.0, 4.0, 4.2)

    assert save_interval(past, 600.0) <= before_s * 1.05
    assert max_repeated_s(past, save_interval(past)) <= REDO_S


def test_saves_that_stay_slow_count() -> None:
    past = record_save(SaveHistory(), 27.0, 0.1, 0.3)
    for _ in range(MEASUREMENTS):
        past = record_save(past, 27.0, 4.0, 4.2)
    assert past.cost_s == 4.0 and save_interval(past, 600.0) > 150.0


def test_an_unscheduled_save_is_no_measurement() -> None:
    past = record_save(record_save(SaveHistory(), 60.0, 4.0, 5.0), 60.0, 2.0, 3.0)
    assert past == SaveHistory(ran_s=120.0, cost_s=2.0, costs_s=(4.0, 2.0), took_s=(5.0, 3.0))
    assert record_save(past, 30.0, None, 9.0) == SaveHistory(
        ran_s=150.0, cost_s=2.0, costs_s=(4.0, 2.0), took_s=(5.0, 3.0)
    )


def test_the_cost_stored_by_an_older_version_counts_as_a_measurement() -> None:
    assert record_save(SaveHistory(cost_s=0.5), 30.0, 9.0, 9.0).cost_s == 0.5


def test_a_save_beside_training_costs_its_pause_and_what_it_slowed() -> None:
    assert save_cost(0.1, 2.0, did=150, speed=100) == pytest.approx(0.1 + 0.5)
    assert save_cost(0.1, 2.0, did=250, speed=100) == pytest.approx(0.1), "it never earns time"
    assert save_cost(0.1, 2.0, did=0, speed=0.0) == pytest.approx(2.1), (
        "what is not known is not assumed"
    )


KEPT = checkpoint_ages(["/c/gen-2/ckpt-30", "/c/gen-1/ckpt-20"])


@pytest.mark.parametrize(
    "name", ["ckpt-10.index", "ckpt-10.data-00000-of-00002", "ckpt-10_temp", "ckpt-10.index.tmp7"]
)
def test_every_file_of_an_uncommitted_checkpoint_is_obsolete(name: str) -> None:
    assert is_obsolete(1, name, KEPT)


@pytest.mark.parametrize(
    ("number", "name"), [(1, "ckpt-20.index"), (2, "ckpt-30.data-00000-of-00001")]
)
def test_committed_checkpoints_are_not_obsolete(number: int, name: str) -> None:
    assert not is_obsolete(number, name, KEPT)


def test_step_numbers_with_a_common_prefix_are_distinguished() -> None:
    assert is_obsolete(2, "ckpt-3.index", KEPT) and not is_obsolete(2, "ckpt-30.index", KEPT)


@pytest.mark.parametrize(
    ("number", "name"), [(2, "ckpt-31_temp"), (2, "ckpt-300.index"), (3, "ckpt-1.index")]
)
def test_files_later_than_every_committed_checkpoint_are_kept(number: int, name: str) -> None:
    assert not is_obsolete(number, name, KEPT)


def test_an_incomplete_checkpoint_is_obsolete_after_a_later_commit() -> None:
    assert is_obsolete(2, "ckpt-25_temp", KEPT)


@pytest.mark.parametrize("name", ["rehearsal.index", "rehearsal_temp"])
def test_files_of_a_rehearsal_are_obsolete_once_their_generation_is_over(name: str) -> None:
    assert is_obsolete(1, name, KEPT)
    assert not is_obsolete(2, name, KEPT) and not is_obsolete(1, name, frozenset())


@pytest.mark.parametrize("name", ["export.keras", "ckpt-x.index", "my-ckpt-10.index"])
def test_other_files_are_not_obsolete(name: str) -> None:
    assert not is_obsolete(1, name, KEPT)


def test_without_a_commit_nothing_is_obsolete() -> None:
    assert not is_obsolete(1, "ckpt-10.index", frozenset()) and not is_generation_closed(
        1, frozenset()
    )


def test_only_folders_before_the_newest_generation_are_closed() -> None:
    assert [is_generation_closed(number, KEPT) for number in (1, 2, 3)] == [True, False, False]


def test_only_generation_folders_are_recognised() -> None:
    assert [generation_of_folder(name) for name in ("gen-12", "gen-x", "gen-1.old", "notes")] == [
        12,
        None,
        None,
        None,
    ]


def test_saves_of_changed_rows_are_as_frequent_as_their_cost_allows() -> None:
    assert delta_interval(SaveHistory()) == MIN_DELTA_S
    assert delta_interval(SaveHistory(cost_s=0.01)) == MIN_DELTA_S
    cost_s = 0.2
    between_s = delta_interval(SaveHistory(cost_s=cost_s))
    assert cost_s / (cost_s + between_s) == pytest.approx(DELTA_SHARE)
    assert delta_interval(SaveHistory(cost_s=0.5)) == MAX_DELTA_S
    assert delta_interval(SaveHistory(cost_s=2.0)) == MAX_DELTA_S, "it may be the first, slow one"
    slow = SaveHistory(cost_s=2.0, costs_s=(2.0, 2.0, 2.0))
    assert delta_interval(slow) == 2.0 * (1 / MAX_SAVE_SHARE - 1)
