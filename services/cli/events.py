"""`weir events`: what happened, one line a fact, across the streams, in the order in which it was stored."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import aclosing

from services.cli import connection, words
from services.cli.entry import Entry
from services.cli.event_line import document, line
from services.cli.filters import filters
from services.cli.reader import Wanted
from services.cli.reading import read
from services.cli.terminal import Terminal
from services.cli.trouble import DONE
from shared.bus import Bus
from shared.subjects import DEAD, FACTS, ORDERS

Show = Callable[[Entry], None]


def arguments(parser: argparse.ArgumentParser) -> None:
    connection.arguments(parser)
    words.namespace_argument(parser, default=None)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument("--job", type=words.name, help="only what is about this job")
    parser.add_argument("--since", type=words.duration, metavar="AGE", help="nothing older than, e.g., 10m, 2h or 1d")
    parser.add_argument("--dead", action="store_true", help="dead letters too: what could not be read, and why")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    return connection.on_bus(args, show)


async def show(bus: Bus, args: argparse.Namespace) -> int:
    put = printer(args.json)
    async with aclosing(read(bus, wanted(args, time.time()), args.follow)) as entries:
        async for entry in entries:
            put(entry)
    return DONE


def wanted(args: argparse.Namespace, now: float) -> list[Wanted]:
    since_s = None if args.since is None else now - args.since
    streams = (ORDERS, FACTS, DEAD) if args.dead else (ORDERS, FACTS)
    return [Wanted(stream, filters(stream, args.job, args.namespace), since_s=since_s) for stream in streams]


def printer(as_json: bool) -> Show:
    """Lines are never folded, whatever the width: one fact stays one line."""
    console = Terminal(highlight=False, soft_wrap=True)

    def put_line(entry: Entry) -> None:
        console.print(line(entry, None))

    def put_document(entry: Entry) -> None:
        print(document(entry), flush=True)

    return put_document if as_json else put_line
