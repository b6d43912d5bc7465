"""`weir change JOB`: give an open job another priority, or other bounds.

Asking for a change of an open job, and waiting for the answer to this very request. Edge.
"""

from __future__ import annotations

import re
import uuid

from services.cli import connection, job_status
from services.cli.cancel import require_open
from services.cli.command_line import (
    Arguments,
    Value,
    command,
    job_argument,
    namespace_option,
    nats_option,
    option,
    timeout_option,
)
from services.console.trouble import DONE, WRONG_USE, Trouble
from shared.bus.bus import Bus
from shared.messages import (
    MOST_OF_SPAN,
    Bounds,
    Change,
    ChangeRejected,
    ChangeRequested,
    JobChanged,
    Span,
)
from shared.text import format_count, single_line

EXAMPLES = ("weir change digits --priority 5", "weir change digits -n team-a --workers 1..8 --ps 2")
HIGHEST = 2_147_483_647
ANSWER_S = 30.0


def read_priority(text: str) -> int:
    """Read an argument."""
    if not re.fullmatch(r"-?\d{1,10}", text) or abs(int(text)) > HIGHEST:
        raise ValueError(f"{text!r} is not a whole number from -{HIGHEST} to {HIGHEST}")
    return int(text)


def read_bounds(text: str) -> Bounds:
    """Read an argument: `1..8`, or `4` for exactly so many."""
    found = re.fullmatch(r"(\d{1,7})(?:\.\.(\d{1,7}))?", text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= MOST_OF_SPAN:
        raise ValueError(f"{text!r} is not MIN..MAX, such as 1..8, or one number")
    return Bounds(min=least, max=most)


@command(EXAMPLES)
@nats_option
@namespace_option()
@job_argument
@timeout_option(ANSWER_S, "how long to wait for the answer")
@option(
    "--priority",
    type=Value(read_priority),
    metavar="N",
    help="jobs with a larger number come first",
)
@option(
    "--workers", type=Value(read_bounds), metavar="MIN..MAX", help="how many workers it may have"
)
@option("--ps", type=Value(read_bounds), metavar="MIN..MAX", help="how many ps it may have")
def run(args: Arguments) -> int:
    return connection.on_bus(args, change_job)


async def change_job(bus: Bus, args: Arguments) -> int:
    if args.priority is None and args.workers is None and args.ps is None:
        raise Trouble("what is to change? Give --priority, --workers or --ps", WRONG_USE)
    order = ChangeRequested(
        job=args.job,
        namespace=args.namespace,
        priority=args.priority,
        ps=args.ps,
        workers=args.workers,
        request_id=uuid.uuid4().hex,
    )
    now = await request_change(bus, order, args.timeout)
    name = f"{args.namespace}/{args.job}"
    print(
        f"job {name} has priority {now.priority}, {_minimum_text(now.ps)}{now.ps.max} ps and {_worker_range(now.workers)}"
    )
    return DONE


def _worker_range(span: Span) -> str:
    return f"{_minimum_text(span)}{format_count(span.max, 'worker')}"


def _minimum_text(span: Span) -> str:
    return "" if span.min == span.max else f"{span.min} to "


ANSWERS: tuple[type[JobChanged | ChangeRejected], ...] = (JobChanged, ChangeRejected)


async def request_change(bus: Bus, change: Change, within_s: float) -> JobChanged:
    """Return what the job is from now on; raise `Trouble` with every reason against it."""
    name = f"{change.namespace}/{change.job}"
    await require_open(bus, name, change.key())
    asked = await bus.request(change)
    answer = await job_status.first(
        bus, ANSWERS, asked, lambda each: _answered_request(each) == asked, within_s, change.key()
    )
    if answer is None:
        raise Trouble(
            f"no answer to request {asked} within {within_s:g} s; is the allocator running?\n"
            "The request stays stored and will be answered; `weir events` shows it."
        )
    if isinstance(answer, ChangeRejected):
        raise Trouble(
            "\n".join(
                [
                    f"job {name} is not changed:",
                    *(f"  - {single_line(each)}" for each in answer.reasons),
                ]
            )
        )
    return answer


def _answered_request(answer: JobChanged | ChangeRejected) -> int:
    """The sequence of the request that it answers."""
    return answer.answers if isinstance(answer, JobChanged) else answer.uid
