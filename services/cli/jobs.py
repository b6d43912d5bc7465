"""`weir jobs`: list all jobs, from the views that the allocator publishes. The table also shows the
pods that starting jobs wait for, read from the messages of those jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, aclosing

import msgspec
from rich.live import Live

from services.allocator.job_views import JobView
from services.cli import connection
from services.cli.command_line import Arguments, command, flag, namespace_option, nats_option
from services.console.bus_reader import Views, stored_views, views_with_starts
from services.console.text.cells import table_console
from services.console.top.job_tables import jobs_table
from services.console.trouble import DONE
from shared.bus.bus import Bus
from shared.messages import JobAccepted

EXAMPLES = ("weir jobs", "weir jobs --watch", "weir jobs -n team-a --json")
Show = Callable[[Views], Coroutine[None, None, None]]


@command(EXAMPLES)
@nats_option
@namespace_option(default=None)
@flag("-w", "--watch", help="keep running, and show every change")
@flag("--json", help="one JSON object a line: all jobs, then each that changes")
def run(args: Arguments) -> int:
    return connection.on_bus(args, print_jobs)


async def print_jobs(bus: Bus, args: Arguments) -> int:
    read_views = stored_views if args.json else views_with_starts
    with ExitStack() as screen:
        show = _json_printer() if args.json else _table_printer(bus, args.watch, screen)
        async with aclosing(read_views(bus, args.namespace, args.watch)) as changes:
            async for views in changes:
                await show(views)
    return DONE


def _json_printer() -> Show:
    shown: Views = {}

    async def show(views: Views) -> None:
        for key, view in views.items():
            if shown.get(key) != view:
                print(msgspec.json.encode(view).decode(), flush=True)
        shown.update(views)

    return show


def _table_printer(bus: Bus, watch: bool, screen: ExitStack) -> Show:
    """On a terminal a watched table is updated in place; elsewhere each change prints it again."""
    console = table_console()
    live = screen.enter_context(Live(console=console)) if watch and console.is_terminal else None
    epochs: dict[int, int] = {}

    async def show(views: Views) -> None:
        for view in views.values():
            if view.uid not in epochs:
                epochs[view.uid] = await _total_epochs(bus, view)
        drawn = jobs_table(views.values(), epochs, console.width)
        if live:
            live.update(drawn, refresh=True)
        elif views:
            console.put(drawn)
        else:
            print("there are no jobs; `weir submit FILE` submits one", file=sys.stderr)

    return show


async def _total_epochs(bus: Bus, view: JobView) -> int:
    """Return the requested number of epochs; 0 if the request is no longer stored."""
    heard = await bus.last_message(JobAccepted, f"{view.namespace}.{view.job}")
    said = heard.message if heard else None
    return said.request.epochs if isinstance(said, JobAccepted) and said.uid == view.uid else 0
