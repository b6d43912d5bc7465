"""What else has to be read."""

from __future__ import annotations

from services.console.why.known import Known
from services.console.why.lacking import Lack, lacks
from tests.console.why.story import SMALL, Growth, Job


def test_of_a_job_its_facts_and_of_a_node_what_was_before() -> None:
    grown = Growth()

    assert lacks([grown.spec1], grown.log.known()) == {Lack("job", "default.digits")}
    assert lacks([grown.freed], grown.log.known()) == {Lack("node", "n1", grown.freed.stored_s)}


def test_a_cause_that_is_known_lacks_nothing_more() -> None:
    grown = Growth()
    orders = Known([e for e in grown.log.entries if e is not grown.freed])

    assert lacks([grown.second], grown.log.known()) == {Lack("job", "default.digits")}
    assert lacks([grown.second], orders) == {
        Lack("job", "default.digits"),
        Lack("nodes", at_s=grown.second.stored_s),
    }


def test_a_cause_of_another_job_is_looked_for_among_its_facts() -> None:
    grown = Growth()
    other = Job(grown.log, "clicks")
    decided = other.decided(1, SMALL, "1.training.progress.2.-.80")
    known = Known([e for e in grown.log.entries if e not in grown.reports2])

    assert lacks([decided], known) == {Lack("job", "default.clicks"), Lack("job", "default.digits")}
