"""Epochs are as long as the reports that end them are apart."""

from __future__ import annotations

from msgspec.structs import replace

from services.report.passes import Passes, heard
from tests.report.story import Log, begun_at_ten, report, resumed


def test_an_epoch_lasts_from_the_report_that_ends_the_one_before_to_its_own() -> None:
    log = begun_at_ten().say(30, report(1, 1_999, 60)).say(31, report(1, 2_050, 60)).say(40, report(1, 4_000, 60))

    assert log.passes.seconds == [11, 9]  # the first since the first update, at 20


def test_two_that_end_between_two_reports_end_together() -> None:
    log = begun_at_ten().say(30, report(1, 4_100, 60)).say(33, report(1, 6_000, 60))

    assert log.passes.seconds == [10, 0, 3]


def test_one_that_was_rolled_back_ends_when_it_is_complete_again() -> None:
    log = begun_at_ten().say(30, report(1, 2_100, 60)).say(35, resumed(2, 1_800), report(2, 1_900, 60))
    assert log.passes.seconds == []

    assert log.say(40, report(2, 2_100, 60)).passes.seconds == [20]


def test_a_later_job_of_the_same_name_begins_anew_and_an_earlier_one_is_not_heard_any_more() -> None:
    log = begun_at_ten().say(30, report(1, 2_100, 60))
    log.say(50, replace(resumed(1, 32), uid=9), replace(report(1, 2_100, 60), uid=1, step=999))

    assert log.passes == Passes(9, 50)


def test_what_says_nothing_of_epochs_changes_nothing() -> None:
    assert heard(Passes(), Log().say(0, resumed(1, 32)).told[0]) == Passes(1, 0)
    assert begun_at_ten().passes.ends == {}
