"""`weir events`: the facts of all streams, one a line, in the order in which they were stored."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import aclosing

from rich.rule import Rule

from services.cli import connection
from services.cli.command_line import (
    JOB_NAME,
    KIND_WORDS,
    MOMENT,
    Arguments,
    Value,
    command,
    flag,
    namespace_option,
    nats_option,
    option,
    parse_kinds,
)
from services.console.bus_reader import follow_views, read_entries
from services.console.log_entry import Entry, entry_filters
from services.console.text.cells import Terminal
from services.console.text.event_lines import (
    date_and_time,
    event_json,
    event_line,
    short_event_line,
)
from services.console.text.sentences import describe_missing_log
from services.console.trouble import DONE, WRONG_USE, Trouble
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import DEAD, FACTS, ORDERS

EXAMPLES = (
    "weir events --follow",
    "weir events --job digits --kind allocation,resumed --since 10m",
    "weir events --since 13:45 --until 14:00 --json",
)
Show = Callable[[Entry], None]


@command(EXAMPLES, exclusive=("follow", "until"))
@nats_option
@namespace_option(default=None)
@flag("-f", "--follow", help="continue with new events")
@option("--until", type=MOMENT, metavar="TIME", help="nothing newer than this")
@option("--job", type=JOB_NAME, metavar="JOB", help="only events of this job")
@option(
    "--kind",
    type=Value(parse_kinds, offers=KIND_WORDS),
    default=(),
    metavar="A,B",
    help="only these: job.requested, all of training, or resumed; separated by commas",
)
@option(
    "--since",
    type=MOMENT,
    metavar="TIME",
    help="nothing older: 10m, 2h, 13:45, 2026-11-21",
)
@flag("--dead", help="dead letters too: messages that could not be read, and the reason")
@flag("--json", help="one JSON object a line")
def run(args: Arguments) -> int:
    return connection.on_bus(args, show_events)


async def show_events(bus: Bus, args: Arguments) -> int:
    now = time.time()
    print_event = event_printer(args.json)
    until_s = float("inf") if args.until is None else args.until(now)
    queries = stream_queries(args, now)
    if args.job and (missing := await describe_missing_job(bus, args)):
        if not args.follow:
            raise Trouble(missing)
        print(f"weir events: {missing}; waiting for one", file=sys.stderr)
    async with aclosing(read_entries(bus, queries, args.follow)) as entries:
        async for entry in entries:
            if entry.stored_s > until_s:
                break
            print_event(entry)
    return DONE


async def describe_missing_job(bus: Bus, args: Arguments) -> str:
    """Return the error for a job that neither the log nor the allocator knows; empty if one of them
    does.
    """
    queries = []
    for stream in selected_streams(args):
        queries.append(StreamQuery(stream, entry_filters(stream, args.job, args.namespace)))
    async with aclosing(read_entries(bus, queries, follow=False)) as entries:
        async for _ in entries:
            return ""
    async with aclosing(follow_views(bus, args.namespace)) as changes:
        views = await anext(changes)
    if any(view.job == args.job for view in views.values()):
        return ""
    name = f"{args.namespace}.{args.job}" if args.namespace else args.job
    return describe_missing_log(name, views)


def stream_queries(args: Arguments, now: float) -> list[StreamQuery]:
    """Return a query for each stream that can have the chosen events. Raise `Trouble` if none
    can.
    """
    since_s = None if args.since is None else args.since(now)
    queries = []
    for stream in selected_streams(args):
        subjects = entry_filters(stream, args.job, args.namespace, args.kind)
        if subjects:
            queries.append(StreamQuery(stream, subjects, since_s=since_s))
    if not queries:
        kinds = ", ".join(args.kind)
        raise Trouble(
            f"{kinds} is about nodes or services, not jobs: leave out --job and --namespace",
            WRONG_USE,
        )
    return queries


def selected_streams(args: Arguments) -> tuple[str, ...]:
    return (ORDERS, FACTS, DEAD) if args.dead else (ORDERS, FACTS)


def event_printer(as_json: bool) -> Show:
    """Return a function that prints one event. Only lines at a terminal are folded: in a file or a
    pipe, one fact stays one line.
    """
    if as_json:
        return lambda entry: print(event_json(entry), flush=True)
    console = Terminal(highlight=False, soft_wrap=True)
    if console.is_terminal:
        return print_by_day(console)
    return lambda entry: console.print(event_line(entry, None))


def print_by_day(console: Terminal) -> Show:
    """Return a function for a terminal: it prints the day once, above the events of that day."""
    printed_day = ""

    def print_entry(entry: Entry) -> None:
        nonlocal printed_day
        day, _ = date_and_time(entry.stored_s, None)
        if day != printed_day:
            console.print(Rule(day, style="dim", align="left"))
        printed_day = day
        console.print(short_event_line(entry, None, console.width))

    return print_entry
