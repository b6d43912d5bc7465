"""`weir change JOB`: give an open job another priority, or other bounds.

Asking for a change of an open job, and waiting for the answer to this very request. Edge.
"""

from __future__ import annotations

import argparse
import re
import uuid

from services.cli import connection, job_status, parameters
from services.cli.cancel import require_open
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


def arguments(parser: argparse.ArgumentParser) -> None:
    job_arguments(parser)
    parser.add_argument("--priority", type=priority, metavar="N", help="the larger, the earlier")
    parser.add_argument(
        "--workers", type=bounds, metavar="MIN..MAX", help="how many workers it may have"
    )
    parser.add_argument("--ps", type=bounds, metavar="MIN..MAX", help="how many ps it may have")


def run(args: argparse.Namespace) -> int:
    return connection.on_bus(args, change)


def priority(text: str) -> int:
    """Read an argument."""
    if not re.fullmatch(r"-?\d{1,10}", text) or abs(int(text)) > HIGHEST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from -{HIGHEST} to {HIGHEST}"
        )
    return int(text)


def bounds(text: str) -> Bounds:
    """Read an argument: `1..8`, or `4` for exactly so many."""
    found = re.fullmatch(r"(\d{1,7})(?:\.\.(\d{1,7}))?", text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= MOST_OF_SPAN:
        raise argparse.ArgumentTypeError(f"{text!r} is not MIN..MAX, such as 1..8, or one number")
    return Bounds(min=least, max=most)


async def change(bus: Bus, args: argparse.Namespace) -> int:
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
    now = await ask_for(bus, order, args.timeout)
    name = f"{args.namespace}/{args.job}"
    print(
        f"job {name} has priority {now.priority}, {_least(now.ps)}{now.ps.max} ps and {_workers(now.workers)}"
    )
    return DONE


def _workers(span: Span) -> str:
    return f"{_least(span)}{format_count(span.max, 'worker')}"


def _least(span: Span) -> str:
    return "" if span.min == span.max else f"{span.min} to "


ANSWER_S = 30.0
ANSWERS: tuple[type[JobChanged | ChangeRejected], ...] = (JobChanged, ChangeRejected)


def job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every such command takes: the bus, the job, and how long to wait for the answer."""
    connection.arguments(parser)
    parameters.namespace_argument(parser)
    parser.add_argument("job", type=parameters.job_name, metavar="JOB", help="the job's name")
    said = f"how long to wait for the answer (default: {ANSWER_S:g}s)"
    parser.add_argument(
        "--timeout", type=parameters.duration, default=ANSWER_S, metavar="TIME", help=said
    )


async def ask_for(bus: Bus, change: Change, within_s: float) -> JobChanged:
    """Return what the job is from now on; raise `Trouble` with every reason against it."""
    name = f"{change.namespace}/{change.job}"
    await require_open(bus, name, change.key())
    asked = await bus.request(change)
    answer = await job_status.first(
        bus, ANSWERS, asked, lambda each: _answers(each) == asked, within_s, change.key()
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


def _answers(answer: JobChanged | ChangeRejected) -> int:
    """The sequence of the request that it answers."""
    return answer.answers if isinstance(answer, JobChanged) else answer.uid
