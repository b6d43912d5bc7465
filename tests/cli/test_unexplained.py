"""Why there is nothing to explain."""

from __future__ import annotations

from datetime import UTC

from msgspec.structs import replace

from services.allocator.state.state import State, apply
from services.cli.unexplained import unexplained
from services.whatif.event_log import Moment
from shared.messages import JobRejected
from tests.allocator.builders import Story, accepted, node, request

KEY = "default.mnist"


def there(state: State, at_s: float = 1000.0) -> Moment:
    return Moment(state, at_s, {}, {}, None)


def test_a_job_that_nobody_answered_waits_for_the_allocator() -> None:
    asked = apply(State(), request(), "weir", 1, 960.0)
    told = unexplained(there(asked), KEY, None, UTC)
    assert (
        told
        == "job default/mnist, asked for at 1970-01-01 00:16:00, was not answered yet: is the allocator running?"
    )


def test_a_refused_job_is_told_why_in_one_clean_line() -> None:
    no = JobRejected(job="mnist", uid=1, reasons=("policy: \x1b[31mno", "ps: no"))
    told = unexplained(replace(there(State()), rejected=no), KEY, None, UTC)
    assert told == "job default/mnist was refused: policy: [31mno; ps: no"


def test_of_a_later_job_is_told_when_it_came() -> None:
    told = unexplained(there(State()), KEY, replace(accepted(), accepted_s=1060.0), UTC)
    assert told == (
        "there was no job default/mnist at 1970-01-01 00:16:40: it was accepted at 1970-01-01 00:17:40"
    )


def test_of_an_unknown_one_is_told_who_there_is() -> None:
    jobs = [accepted(request(f"job-{n}"), uid=n + 1) for n in range(12)]
    told = unexplained(there(Story().hear(node(), *jobs).state), KEY, None, UTC)
    assert told.startswith(
        "the log tells of no job default/mnist up to 1970-01-01 00:16:40; it tells of default/job-0,"
    )
    assert told.endswith("default/job-9 and 2 more")
    assert unexplained(there(State()), KEY, None, UTC).endswith(
        "nor of any other; `weir submit FILE` asks for one"
    )
