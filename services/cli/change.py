"""`weir change JOB`: give an open job another priority, or other bounds.

It waits for the answer to its own request.
"""

from __future__ import annotations

import re
import uuid

from services.cli import connection
from services.cli.cancel import require_open
from services.cli.command_line import (
    Arguments,
    Value,
    command,
    job_request_options,
    option,
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
    """Read a priority from an argument. Raise `ValueError` if it is not one."""
    if not re.fullmatch(r"-?\d{1,10}", text) or abs(int(text)) > HIGHEST:
        raise ValueError(f"{text!r} is not a whole number from -{HIGHEST} to {HIGHEST}")
    return int(text)


def read_bounds(text: str) -> Bounds:
    """Read the bounds of a role from an argument: `1..8`, or `4` for exactly so many tasks. Raise
    `ValueError` if there are none.
    """
    match = re.fullmatch(r"(\d{1,7})(?:\.\.(\d{1,7}))?", text)
    if match:
        least = int(match[1])
        most = int(match[2] or match[1])
        if 1 <= least <= most <= MOST_OF_SPAN:
            return Bounds(min=least, max=most)
    raise ValueError(f"{text!r} is not MIN..MAX, such as 1..8, or one number")


@command(EXAMPLES)
@job_request_options(ANSWER_S, "how long to wait for the answer")
@option(
    "--priority",
    type=Value(read_priority),
    metavar="N",
    help="jobs with a larger number come first",
)
@option(
    "--workers", type=Value(read_bounds), metavar="MIN..MAX", help="the least and the most workers"
)
@option("--ps", type=Value(read_bounds), metavar="MIN..MAX", help="the least and the most ps")
def run(args: Arguments) -> int:
    return connection.on_bus(args, change_job)


async def change_job(bus: Bus, args: Arguments) -> int:
    if args.priority is None and args.workers is None and args.ps is None:
        raise Trouble("no change is given: give --priority, --workers or --ps", WRONG_USE)
    request = ChangeRequested(
        job=args.job,
        namespace=args.namespace,
        priority=args.priority,
        ps=args.ps,
        workers=args.workers,
        request_id=uuid.uuid4().hex,
    )
    job = await request_change(bus, request, args.timeout)
    ps = f"{_minimum_text(job.ps)}{job.ps.max} ps"
    workers = f"{_minimum_text(job.workers)}{format_count(job.workers.max, 'worker')}"
    print(f"job {args.namespace}/{args.job} has priority {job.priority}, {ps} and {workers}")
    return DONE


def _minimum_text(span: Span) -> str:
    return "" if span.min == span.max else f"{span.min} to "


ANSWERS: tuple[type[JobChanged | ChangeRejected], ...] = (JobChanged, ChangeRejected)


async def request_change(bus: Bus, change: Change, within_s: float) -> JobChanged:
    """Request a change and return the answer of the allocator. Raise `Trouble` with every reason if
    it refuses, or if there is no answer in time.
    """
    name = f"{change.namespace}/{change.job}"
    await require_open(bus, name, change.key())
    sequence = await bus.request(change)

    def is_answer(message: JobChanged | ChangeRejected) -> bool:
        return _answered_request(message) == sequence

    answer = await connection.first_message(
        bus, ANSWERS, sequence, is_answer, within_s, change.key()
    )
    if answer is None:
        raise Trouble(
            f"no answer to request {sequence} within {within_s:g} s; is the allocator running?\n"
            "The request stays stored and will be answered; `weir events` shows it."
        )
    if isinstance(answer, ChangeRejected):
        reasons = [f"  - {single_line(reason)}" for reason in answer.reasons]
        raise Trouble("\n".join([f"job {name} is not changed:", *reasons]))
    return answer


def _answered_request(answer: JobChanged | ChangeRejected) -> int:
    """Return the sequence of the request that a message answers."""
    return answer.answers if isinstance(answer, JobChanged) else answer.uid
