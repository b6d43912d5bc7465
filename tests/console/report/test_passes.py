"""Epochs end between the reports around them, in proportion to the examples; a pause is never
shared out.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.console.report.passes import Passes, heard
from tests.allocator.builders import accepted, request
from tests.console.report.story import EPOCHS, UID, Log, begun_at_ten, report, resumed, whole


def test_an_epoch_ends_where_its_last_example_lies_between_two_reports() -> None:
    log = (
        begun_at_ten()
        .say(30, report(1, 1_900, 60))
        .say(32, report(1, 2_100, 60))
        .say(40, report(1, 4_000, 60))
    )

    assert log.passes.seconds == [11, 9]  # from 20, the first update, to 31; to 40


def test_several_between_two_reports_are_as_long_as_each_other() -> None:
    log = begun_at_ten().say(20, report(1, 100, 60)).say(40, report(1, 8_100, 60))

    assert log.passes.seconds == pytest.approx([4.75, 5, 5, 5])


def test_what_passes_in_a_pause_belongs_to_the_epoch_in_which_it_lies_and_moves_no_end() -> None:
    log = (
        begun_at_ten()
        .say(30, report(1, 1_900, 60))
        .say(90, resumed(2, 1_950))
        .say(92, report(2, 2_050, 60))
    )

    assert log.passes.seconds == [71]


def test_one_that_ended_behind_the_last_report_ended_before_the_pause() -> None:
    log = begun_at_ten().say(30, report(1, 1_900, 60)).say(50, resumed(2, 2_100, pause_s=18.0))

    assert log.passes.seconds == [11]  # at 31: half of the way from 30 to 32, when the pause began


def test_one_that_was_rolled_back_ends_when_it_is_complete_again() -> None:
    log = begun_at_ten().say(30, report(1, 2_100, 60)).say(35, resumed(2, 1_800))
    assert log.passes.seconds == []

    assert log.say(37, report(2, 2_200, 60)).passes.seconds == [16]


def test_all_epochs_of_a_life_lie_between_its_first_update_and_its_last_report() -> None:
    seconds = whole().passes.seconds

    assert len(seconds) == EPOCHS and min(seconds) > 0
    assert 20 + sum(seconds) <= 115


def test_a_later_job_of_the_same_name_begins_anew_and_an_earlier_one_is_not_heard_any_more() -> (
    None
):
    log = (
        begun_at_ten()
        .say(30, report(1, 2_100, 60))
        .say(50, accepted(request("digits", epochs=3), uid=9))
    )
    log.say(51, replace(report(1, 2_200, 60), uid=UID))
    assert log.passes == Passes(9, 3)

    assert log.say(60, replace(resumed(1, 32), uid=9)).passes.began_s == 60


def test_before_the_job_is_known_nothing_is_counted() -> None:
    assert heard(Passes(), Log().say(0, resumed(1, 32)).told[0]) == Passes()
