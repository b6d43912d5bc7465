"""`weir report JOB`: write one page about one job, for a browser. The page needs no other file.

The messages about the job and about nodes are read from the beginning of the log, and folded as
`weir top` and `weir page` fold them.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path

from services.cli import connection
from services.cli.command_line import (
    JOB_NAME,
    Arguments,
    argument,
    command,
    namespace_option,
    nats_option,
    option,
)
from services.console.board.board import Board, apply, initial_board
from services.console.bus_reader import read_entries
from services.console.log_entry import entry_filters
from services.console.log_history import beginning_notes
from services.console.report.account import Passes, fold_epochs
from services.console.report.page import contents, report_page
from services.console.trouble import DONE, WRONG_USE, Trouble
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import FACTS, ORDERS, pattern
from shared.messages import CapacityChanged

EXAMPLES = (
    "weir report digits",
    "weir report digits -o digits.html",
    "weir report digits -o - | less",
)
STDOUT = "-"


@command(EXAMPLES)
@nats_option
@namespace_option()
@argument(
    "job", type=JOB_NAME, metavar="JOB", help="the job's name; the newest job of this name is used"
)
@option("-o", "--output", metavar="FILE", help=f"default: JOB.html; {STDOUT}: standard output")
def run(args: Arguments) -> int:
    return connection.on_bus(args, write_report)


async def write_report(bus: Bus, args: Arguments) -> int:
    board, passes = await fold_log(bus, args.namespace, args.job)
    story = board.jobs.get(f"{args.namespace}.{args.job}")
    if story is None:
        raise Trouble(
            f"the log has no accepted job {args.namespace}/{args.job}; `weir jobs` lists all jobs"
        )
    notes = await beginning_notes(bus)
    epochs = passes.seconds if passes.uid == story.uid else []
    shown = contents(board, story, epochs, time.time(), notes)
    write_page(report_page(shown), args.output or f"{args.job}.html")
    return DONE


async def fold_log(bus: Bus, namespace: str, job: str) -> tuple[Board, Passes]:
    """Return the board and the epochs of the job, from all messages about the job and nodes."""
    of_nodes = pattern(CapacityChanged)
    wanted = [
        StreamQuery(ORDERS, entry_filters(ORDERS, job, namespace)),
        StreamQuery(FACTS, [*entry_filters(FACTS, job, namespace), of_nodes]),
    ]
    board, passes = initial_board(), Passes()
    async with aclosing(read_entries(bus, wanted, follow=False)) as entries:
        async for entry in entries:
            if told := entry.as_log_entry:
                board, passes = apply(board, told), fold_epochs(passes, told)
    return board, passes


def write_page(text: str, to: str) -> None:
    if to == STDOUT:
        print(text, end="")
        return
    try:
        Path(to).write_text(text)
    except OSError as error:
        raise Trouble(
            f"cannot write {to}: {error.strerror}; choose another file with -o", WRONG_USE
        ) from error
    print(f"{to}: open it in a browser")
