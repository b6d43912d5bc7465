"""Which checkpoints stay: those that the ledger names, and what may be named yet."""

from __future__ import annotations

import pytest

from services.trainer.retention import generation, goes, over

KEPT = ("/c/gen-2/ckpt-30", "/c/gen-1/ckpt-20")


@pytest.mark.parametrize(
    "name", ["ckpt-10.index", "ckpt-10.data-00000-of-00002", "ckpt-10_temp", "ckpt-10.index.tmp7"]
)
def test_what_the_ledger_names_no_more_goes_with_every_part(name: str) -> None:
    assert goes(1, name, KEPT)


@pytest.mark.parametrize(
    ("number", "name"), [(1, "ckpt-20.index"), (2, "ckpt-30.data-00000-of-00001")]
)
def test_what_the_ledger_names_stays(number: int, name: str) -> None:
    assert not goes(number, name, KEPT)


def test_a_step_whose_number_begins_like_another_is_not_mistaken_for_it() -> None:
    assert goes(2, "ckpt-3.index", KEPT) and not goes(2, "ckpt-30.index", KEPT)


@pytest.mark.parametrize(
    ("number", "name"), [(2, "ckpt-31_temp"), (2, "ckpt-300.index"), (3, "ckpt-1.index")]
)
def test_what_is_later_than_all_that_is_named_may_be_under_way_and_stays(
    number: int, name: str
) -> None:
    assert not goes(number, name, KEPT)


def test_a_half_written_one_that_was_given_up_goes_once_a_later_one_is_named() -> None:
    assert goes(2, "ckpt-25_temp", KEPT)


@pytest.mark.parametrize(
    "name", ["export.keras", "ckpt-x.index", "rehearsal.index", "my-ckpt-10.index"]
)
def test_what_is_not_weirs_stays(name: str) -> None:
    assert not goes(1, name, KEPT)


def test_where_nothing_is_named_nothing_goes() -> None:
    assert not goes(1, "ckpt-10.index", ()) and not over(1, ())


def test_only_folders_of_generations_before_that_of_the_newest_are_over() -> None:
    assert [over(number, KEPT) for number in (1, 2, 3)] == [True, False, False]


def test_only_a_generations_folder_is_one() -> None:
    assert [generation(name) for name in ("gen-12", "gen-x", "gen-1.old", "notes")] == [
        12,
        None,
        None,
        None,
    ]
