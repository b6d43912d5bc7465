"""What was asked, counted."""

from __future__ import annotations

from shared.kube.limiter import Requests, between, counted, measures, waited
from shared.runtime.metrics import exposed
from tests.shared.metric_lint import problems


def test_requests_are_counted_by_verb_and_status() -> None:
    requests = Requests()
    for verb, status in (("list", 200), ("watch", 410), ("list", 200), ("create", 0)):
        requests = counted(requests, verb, status)
    assert (
        requests.counts == {"list 200": 2, "watch 410": 1, "create 0": 1} and requests.total() == 4
    )


def test_what_came_since_the_last_time_is_told_and_nothing_else() -> None:
    before = waited(counted(Requests(), "list", 200), 0.5)
    after = waited(counted(counted(before, "get", 404), "get", 404), 0.25)
    assert between(before, after) == Requests(counts={"get 404": 2}, waited_s=0.25)
    assert between(after, after) == Requests()


def test_what_was_asked_is_told_by_verb_and_status() -> None:
    requests = waited(
        counted(counted(counted(Requests(), "list", 200), "list", 200), "watch", 0), 1.5
    )
    asked, waiting = measures(requests)

    assert asked.series == {("list", "200"): 2, ("watch", "0"): 1}
    assert waiting.series == {(): 1.5}
    assert problems(exposed([asked, waiting])) == []
