"""`weir why EVENT`: the causes and the effects of an event.

An event is given by its name in `weir events` (`o12`, `f345`), or by its id in `weir events
--json`. All orders are read; of the facts only those about jobs and nodes in the chain.
"""

from __future__ import annotations

from contextlib import aclosing

import msgspec

from services.cli import connection
from services.cli.command_line import (
    Arguments,
    argument,
    command,
    flag,
    namespace_option,
    nats_option,
)
from services.console.bus_reader import CLUSTER_CLOCKS_S, read_entries
from services.console.log_entry import Entry, entry_filters, event_name, parse_event_name
from services.console.text.cells import Terminal
from services.console.text.event_lines import event_fields
from services.console.trouble import DONE, Trouble
from services.console.why.chain import (
    Chain,
    Lack,
    Step,
    build_chain,
    causes,
    chain_table,
    lacks,
    root_kind,
)
from services.console.why.rules import Known
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import BY_TAG, FACTS, ORDERS, pattern, stream_holding
from shared.messages import CapacityChanged, Message
from shared.text import single_line

EXAMPLES = ("weir why o12", "weir why f345 --all", "weir why 7.training.resumed.2.-.120 --json")
ROWS = 20
"""Rows of causes, and of effects, without --all."""
AROUND_S = 600.0
"""Seconds before a decision in which the change of a node that it names is searched."""
READS_MOST = 24
"""At most this number of jobs and nodes is read; causes beyond them stay unknown."""


@command(EXAMPLES)
@nats_option
@namespace_option(default=None)
@argument(
    "event",
    metavar="EVENT",
    help="its name in `weir events` (o12, f345), or its id in `weir events --json`",
)
@flag("--all", help=f"show every row (default: {ROWS} causes and {ROWS} effects)")
@flag("--json", help="one JSON object a line: causes, the event, effects")
def run(args: Arguments) -> int:
    return connection.on_bus(args, print_chain)


async def print_chain(bus: Bus, args: Arguments) -> int:
    found = await read_chain(bus, await find_event(bus, args.event, args.namespace), args.namespace)
    if args.json:
        sections = (("cause", found.before), ("event", [found.event]), ("effect", found.after))
        for role, steps in sections:
            for step in steps:
                print(_document(role, step), flush=True)
        return DONE
    console = Terminal(highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else None
    for line in chain_table(found, None, width, None if args.all else ROWS):
        console.print(line)
    return DONE


def _document(role: str, step: Step) -> str:
    """Return a step as JSON. `because`: the names of its causes; of a root its kind."""
    because = [event_name(entry) for entry in step.because] or [root_kind(step)]
    return msgspec.json.encode(
        {"part": role, "because": because, **event_fields(step.entry)}
    ).decode()


# ---------------------------------------------------------------- the event


async def find_event(bus: Bus, text: str, namespace: str | None) -> Entry:
    """Return the event of this name or id. Raise `Trouble` if there is none."""
    place = parse_event_name(text)
    wanted = _query_by_place(*place, namespace) if place else _query_by_id(text, namespace)
    async with aclosing(read_entries(bus, [wanted], follow=False)) as entries:
        async for entry in entries:
            if place is None and isinstance(entry.message, Message) and entry.message.id() == text:
                return entry
            if place is not None:
                if (entry.stream, entry.sequence) == place:
                    return entry
                break
    remedy = "`weir events` shows the name of each event (o12, f345), with --json also its id"
    raise Trouble(
        f"there is no event {single_line(text)!r} in the log; {remedy}. "
        "For a job, use `weir explain JOB`."
    )


def _query_by_place(stream: str, sequence: int, namespace: str | None) -> StreamQuery:
    return StreamQuery(stream, entry_filters(stream, None, namespace), after=sequence - 1)


def _query_by_id(text: str, namespace: str | None) -> StreamQuery:
    """Return the query for an id. An id contains the tag of its kind, except that of a node's
    change.
    """
    tag = next((tag for tag in BY_TAG if f".{tag}." in f"{text}."), None)
    if tag is None:
        return StreamQuery(FACTS, [pattern(CapacityChanged)])
    stream = stream_holding(pattern(BY_TAG[tag]))
    return StreamQuery(stream, entry_filters(stream, None, namespace, [tag]))


# ---------------------------------------------------------------- the log, as far as it is needed


async def read_chain(bus: Bus, event: Entry, namespace: str | None) -> Chain:
    """Read messages until none is missing in the chain. With a `namespace`, only messages of its
    jobs are read, and none about nodes.
    """
    entries = [
        event,
        *await _read_query(bus, StreamQuery(ORDERS, entry_filters(ORDERS, None, namespace))),
    ]
    known, asked = Known(entries), set[Lack]()
    while lacking := _next_lacks(event, known, asked, namespace):
        asked |= lacking
        for lack in lacking:
            entries += await _read_lack(bus, lack)
        known = Known(entries)
    return build_chain(event, known)


def _next_lacks(event: Entry, known: Known, asked: set[Lack], namespace: str | None) -> set[Lack]:
    """Return the missing messages of the causes, and of the jobs with a decision that the event
    caused.
    """
    back = [step.entry for step in causes(event, known).values()]
    on = [step.entry for step in build_chain(event, known).after]
    found = set(lacks(back, known))
    for lack in lacks(on, known):
        if lack.of == "job":
            found.add(lack)
    new = []
    for lack in sorted(found - asked, key=msgspec.json.encode):
        if namespace is None or _is_in(lack, namespace):
            new.append(lack)
    return set(new[: READS_MOST - len(asked)])


def _is_in(lack: Lack, namespace: str) -> bool:
    return lack.of == "job" and lack.whose.startswith(f"{namespace}.")


async def _read_lack(bus: Bus, lack: Lack) -> list[Entry]:
    until_s = lack.at_s + CLUSTER_CLOCKS_S if lack.of == "nodes" else lack.at_s or float("inf")
    return await _read_query(bus, _query_for_lack(lack), until_s)


def _query_for_lack(lack: Lack) -> StreamQuery:
    if lack.of == "job":
        namespace, _, job = lack.whose.partition(".")
        return StreamQuery(FACTS, entry_filters(FACTS, job, namespace))
    if lack.of == "node":
        return StreamQuery(FACTS, [pattern(CapacityChanged, lack.whose)])
    return StreamQuery(FACTS, [pattern(CapacityChanged)], since_s=lack.at_s - AROUND_S)


async def _read_query(bus: Bus, wanted: StreamQuery, until_s: float = float("inf")) -> list[Entry]:
    found: list[Entry] = []
    async with aclosing(read_entries(bus, [wanted], follow=False)) as entries:
        async for entry in entries:
            if entry.stored_s > until_s:
                break
            found.append(entry)
    return found
