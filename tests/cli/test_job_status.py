"""Whether there is something to cancel."""

from services.cli.job_status import standing


def test_a_name_that_nobody_asked_for_is_unknown() -> None:
    assert standing(requested=0, accepted=0, rejected=0, finished=0) == "unknown"


def test_a_request_that_waits_for_its_answer_can_be_cancelled() -> None:
    assert standing(requested=4, accepted=0, rejected=0, finished=0) == "open"


def test_an_accepted_job_can_be_cancelled_until_it_is_finished() -> None:
    assert standing(requested=4, accepted=4, rejected=0, finished=0) == "open"
    assert standing(requested=4, accepted=4, rejected=0, finished=4) == "over"


def test_a_refused_request_leaves_nothing_to_cancel() -> None:
    assert standing(requested=4, accepted=0, rejected=4, finished=0) == "over"


def test_a_running_job_stays_open_when_its_name_is_asked_for_again_in_vain() -> None:
    assert standing(requested=9, accepted=4, rejected=9, finished=0) == "open"


def test_a_name_that_is_used_again_is_open_again() -> None:
    assert standing(requested=9, accepted=4, rejected=0, finished=4) == "open"
    assert standing(requested=9, accepted=9, rejected=0, finished=4) == "open"


def test_a_job_whose_request_is_purged_is_still_known() -> None:
    assert standing(requested=0, accepted=4, rejected=0, finished=0) == "open"
