"""Whether there is something to cancel."""

from services.cli.connection import job_standing


def test_a_job_that_was_never_requested_is_unknown() -> None:
    assert job_standing(requested=0, accepted=0, rejected=0, finished=0) == "unknown"


def test_a_request_without_an_answer_is_open() -> None:
    assert job_standing(requested=4, accepted=0, rejected=0, finished=0) == "open"


def test_an_accepted_job_is_open_until_it_is_finished() -> None:
    assert job_standing(requested=4, accepted=4, rejected=0, finished=0) == "open"
    assert job_standing(requested=4, accepted=4, rejected=0, finished=4) == "over"


def test_a_rejected_request_is_over() -> None:
    assert job_standing(requested=4, accepted=0, rejected=4, finished=0) == "over"


def test_a_running_job_stays_open_after_a_rejected_request_for_its_name() -> None:
    assert job_standing(requested=9, accepted=4, rejected=9, finished=0) == "open"


def test_a_new_request_for_a_finished_name_is_open() -> None:
    assert job_standing(requested=9, accepted=4, rejected=0, finished=4) == "open"
    assert job_standing(requested=9, accepted=9, rejected=0, finished=4) == "open"


def test_an_accepted_job_with_a_purged_request_is_open() -> None:
    assert job_standing(requested=0, accepted=4, rejected=0, finished=0) == "open"
