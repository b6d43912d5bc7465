"""Asking for a change of an open job, and waiting for the answer to this very request. Edge."""

from __future__ import annotations

import argparse

from services.cli import answers, connection, words
from services.cli.cancel import require_open
from services.cli.trouble import Trouble
from shared.bus.bus import Bus
from shared.messages import Change, ChangeRejected, JobChanged
from shared.text import single_line

ANSWER_S = 30.0
ANSWERS: tuple[type[JobChanged | ChangeRejected], ...] = (JobChanged, ChangeRejected)


def job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every such command takes: the bus, the job, and how long to wait for the answer."""
    connection.arguments(parser)
    words.namespace_argument(parser)
    parser.add_argument("job", type=words.job_name, metavar="JOB", help="the job's name")
    said = f"how long to wait for the answer (default: {ANSWER_S:g}s)"
    parser.add_argument(
        "--timeout", type=words.duration, default=ANSWER_S, metavar="TIME", help=said
    )


async def ask_for(bus: Bus, change: Change, within_s: float) -> JobChanged:
    """Return what the job is from now on; raise `Trouble` with every reason against it."""
    name = f"{change.namespace}/{change.job}"
    await require_open(bus, name, change.key())
    asked = await bus.request(change)
    answer = await answers.first(
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
