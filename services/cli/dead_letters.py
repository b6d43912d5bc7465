"""`weir dead-letters`: what nobody could use, and why; and putting it back, once somebody can."""

from __future__ import annotations

import sys
import time

import click
import msgspec
from nats.js.errors import NotFoundError

from services.cli import connection
from services.cli.command_line import (
    DURATION,
    Arguments,
    argument,
    command,
    flag,
    nats_option,
    option,
)
from services.cli.terminal import Terminal
from services.console.log_entry import Entry, entry_filters
from services.console.log_reader import read_entries
from services.console.text.event_lines import (
    encode_dead_letter,
    format_dead_letter,
    format_dead_letter_fields,
)
from services.console.trouble import DONE, WRONG_USE, Trouble
from shared.bus import dead_letters, subjects
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import DEAD, FACTS, ORDERS
from shared.messages import DeadLetter

EXAMPLES = ("weir dead-letters", "weir dead-letters show 3", "weir dead-letters put-back 3")
WHAT = """\
list: one line each, with the number by which the others ask for it; show N: all that is kept of it;
put-back N: say the message again, on its own subject, if it can be read by now. The letter itself stays for a month."""


@command(EXAMPLES)
@nats_option
@argument(
    "what",
    type=click.Choice(("list", "show", "put-back")),
    required=False,
    default="list",
    help=WHAT,
)
@argument("number", type=int, required=False, metavar="[N]", help="the letter's number")
@option("--since", type=DURATION, metavar="AGE", help="list nothing older than, e.g., 2h or 1d")
@flag("--json", help="one JSON object a letter, on a line")
def run(args: Arguments) -> int:
    if (args.number is None) != (args.what == "list"):
        said = (
            "takes no number"
            if args.what == "list"
            else "takes a letter's number; `weir dead-letters` lists them"
        )
        raise Trouble(f"{args.what} {said}", WRONG_USE)
    return connection.on_bus(
        args, {"list": list_all, "show": show_letter, "put-back": put_back}[args.what]
    )


# ---------------------------------------------------------------- looking


async def list_all(bus: Bus, args: Arguments) -> int:
    console, found = Terminal(highlight=False, soft_wrap=True), 0
    since_s = None if args.since is None else time.time() - args.since
    async for entry in read_entries(
        bus, [StreamQuery(DEAD, entry_filters(DEAD), since_s=since_s)], follow=False
    ):
        found += 1
        if args.json:
            print(encode_dead_letter(entry), flush=True)
        elif isinstance(entry.message, DeadLetter):
            console.print(format_dead_letter(entry.sequence, entry.message, entry.stored_s, None))
    if not found:
        print("there are no dead letters", file=sys.stderr)
    return DONE


async def show_letter(bus: Bus, args: Arguments) -> int:
    entry = await read_letter(bus, args.number)
    assert isinstance(entry.message, DeadLetter)
    print(encode_dead_letter(entry) if args.json else format_dead_letter_fields(entry.message))
    return DONE


async def read_letter(bus: Bus, number: int) -> Entry:
    try:
        raw = await bus.js.get_msg(DEAD, number)
    except NotFoundError as error:
        raise Trouble(
            f"there is no dead letter {number}; `weir dead-letters` lists them"
        ) from error
    said = msgspec.json.decode(raw.data or b"", type=DeadLetter)
    stored_s = raw.time.timestamp() if raw.time else 0.0
    return Entry(said, raw.subject or "", DEAD, number, stored_s)


# ---------------------------------------------------------------- putting back


async def put_back(bus: Bus, args: Arguments) -> int:
    """Its id is the letter's: within the stream's duplicate window it is stored once, however often
    one asks.
    """
    said = (await read_letter(bus, args.number)).message
    assert isinstance(said, DeadLetter)
    if said.stream not in (ORDERS, FACTS):
        raise Trouble(
            f"{said.subject} is an entry of a bucket: whoever keeps it has written on, so nothing has to be done"
        )
    body = await _original_body(bus, said)
    try:
        subjects.decode_message(said.subject, body)
    except subjects.UnreadableMessage as error:
        look = f"`weir dead-letters show {args.number}` shows it whole"
        raise Trouble(f"it still cannot be read, and is not put back: {error}; {look}") from error
    ack = await bus.js.publish(
        said.subject, body, headers=dead_letters.headers_to_put_back(said, args.number, bus.name)
    )
    print(f"put back: {said.subject} is number {ack.seq} of {ack.stream}")
    return DONE


async def _original_body(bus: Bus, said: DeadLetter) -> bytes:
    """All of it, where it still lies; otherwise what the letter has of it, and that may not be
    all.
    """
    try:
        raw = await bus.js.get_msg(said.stream, said.sequence)
    except NotFoundError:
        return said.body.encode()
    return raw.data or b"" if raw.subject == said.subject else said.body.encode()
