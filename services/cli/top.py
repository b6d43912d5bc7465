"""`weir top`: nodes with their load by job, jobs, and the last decisions, live from the bus.

On a terminal the picture is updated in place until Ctrl-C; elsewhere it is printed once, as plain
text.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from rich.console import Group
from rich.live import Live

from services.cli import connection
from services.cli.command_line import DURATION, Arguments, command, flag, nats_option, option
from services.console.board.board import Board
from services.console.board.figures import is_ended
from services.console.page.watch import Watch
from services.console.text.cells import Terminal, letters, table_console
from services.console.top.screen import ScreenOptions, draw_screen
from services.console.trouble import DONE
from shared.bus.bus import Bus
from shared.runtime.process import cancel_tasks

EXAMPLES = ("weir top", "weir top --every 5s", "weir top --once > screen.txt")
EVERY_S, WORDS_S = 1.0, 1.0
"""Seconds between two pictures, and seconds that a single picture waits for the allocator's reason
for each job.
"""


@command(EXAMPLES)
@nats_option
@flag("--once", help="print once and end; the default if the output is not a terminal")
@option(
    "--every",
    type=DURATION,
    default=EVERY_S,
    metavar="TIME",
    help=f"the time between two updates (default: {EVERY_S:g}s)",
)
def run(args: Arguments) -> int:
    return connection.on_bus(args, show_top)


async def show_top(bus: Bus, args: Arguments) -> int:
    await bus.verify()  # the watch waits for a missing stream for ever
    watch, where = Watch(bus), connection.current_connection(args).public_address
    watching = asyncio.ensure_future(watch.run())
    try:
        console = table_console()
        if args.once or not console.is_terminal:
            await _await_while_watching(watching, watch.wait_until_caught_up())
            await _await_reasons(watch)
            console.put(Picture(where).draw(watch, console.width, None))
        else:
            await _show_live(watch, watching, console, Picture(where), args.every)
    finally:
        await cancel_tasks(watching)
    return DONE


class Picture:
    """The picture of a board. A job keeps its letter from one picture to the next."""

    def __init__(self, where: str) -> None:
        self.where, self.known = where, dict[str, str]()

    def draw(self, watch: Watch, width: int, height: int | None) -> Group:
        self.known = letters(self.known, _lettered_jobs(watch.board))
        look = ScreenOptions(time.time(), self.where, watch.cut_s, reading=not watch.caught_up)
        return draw_screen(watch.board, look, self.known, width, height)


def _lettered_jobs(board: Board) -> list[str]:
    """Return the keys of jobs with a letter: those that are not over or still hold cores, oldest
    first.
    """
    shown = [job for job in board.jobs.values() if not is_ended(job.view) or job.held_cpu]
    return [job.key for job in sorted(shown, key=lambda job: job.uid)]


async def _show_live(
    watch: Watch,
    watching: asyncio.Future[None],
    console: Terminal,
    picture: Picture,
    every_s: float,
) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not watching.done():
            live.update(picture.draw(watch, *console.size), refresh=True)
            await asyncio.wait({watching}, timeout=every_s)
    watching.result()


async def _await_reasons(watch: Watch) -> None:
    """Wait for the allocator's reason for each job. Reasons are in a bucket, which is read
    separately from the messages.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WORDS_S):
            while any(key not in watch.board.whys for key in _lettered_jobs(watch.board)):
                await watch.changed.wait()


async def _await_while_watching(watching: asyncio.Future[None], wanted: object) -> None:
    """Wait for an awaitable. Raise the error of the watch if it ends first."""
    waiting = asyncio.ensure_future(wanted)  # type: ignore[call-overload]
    try:
        await asyncio.wait({watching, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
    finally:
        await cancel_tasks(waiting)
