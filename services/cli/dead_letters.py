"""`weir dead-letters`: list, show and put back the messages that no receiver could use."""

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
from services.console.bus_reader import read_entries
from services.console.log_entry import Entry, entry_filters
from services.console.text.cells import Terminal
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
list: one line each, with its number; show N: the whole letter; put-back N: publish the message again, on its own
subject, if this version can read it. The letter itself is kept for a month."""


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
    if args.what == "list" and args.number is not None:
        raise Trouble("list takes no number", WRONG_USE)
    if args.what != "list" and args.number is None:
        raise Trouble(
            f"{args.what} takes a letter's number; `weir dead-letters` lists them", WRONG_USE
        )
    actions = {"list": list_all, "show": show_letter, "put-back": put_back}
    return connection.on_bus(args, actions[args.what])


# ---------------------------------------------------------------- list and show


async def list_all(bus: Bus, args: Arguments) -> int:
    console = Terminal(highlight=False, soft_wrap=True)
    since_s = None if args.since is None else time.time() - args.since
    query = StreamQuery(DEAD, entry_filters(DEAD), since_s=since_s)
    count = 0
    async for entry in read_entries(bus, [query], follow=False):
        count += 1
        if args.json:
            print(encode_dead_letter(entry), flush=True)
        elif isinstance(entry.message, DeadLetter):
            console.print(format_dead_letter(entry.sequence, entry.message, entry.stored_s, None))
    if not count:
        print("there are no dead letters", file=sys.stderr)
    return DONE


async def show_letter(bus: Bus, args: Arguments) -> int:
    entry = await read_letter(bus, args.number)
    assert isinstance(entry.message, DeadLetter)
    print(encode_dead_letter(entry) if args.json else format_dead_letter_fields(entry.message))
    return DONE


async def read_letter(bus: Bus, number: int) -> Entry:
    """Return the dead letter with this sequence. Raise `Trouble` if there is none."""
    try:
        raw = await bus.js.get_msg(DEAD, number)
    except NotFoundError as error:
        raise Trouble(
            f"there is no dead letter {number}; `weir dead-letters` lists them"
        ) from error
    letter = msgspec.json.decode(raw.data or b"", type=DeadLetter)
    stored_s = raw.time.timestamp() if raw.time else 0.0
    return Entry(letter, raw.subject or "", DEAD, number, stored_s)


# ---------------------------------------------------------------- put back


async def put_back(bus: Bus, args: Arguments) -> int:
    """Publish the message again. Its id is the letter's, so that the stream stores it once in its
    duplicate window, however often this is repeated.
    """
    letter = (await read_letter(bus, args.number)).message
    assert isinstance(letter, DeadLetter)
    if letter.stream not in (ORDERS, FACTS):
        raise Trouble(
            f"{letter.subject} is an entry of a bucket that its writer has replaced since: "
            "there is nothing to put back"
        )
    body = await _original_body(bus, letter)
    try:
        subjects.decode_message(letter.subject, body)
    except subjects.UnreadableMessage as error:
        look = f"`weir dead-letters show {args.number}` shows all of it"
        raise Trouble(f"it still cannot be read, and is not put back: {error}; {look}") from error
    headers = dead_letters.headers_to_put_back(letter, args.number, bus.name)
    ack = await bus.js.publish(letter.subject, body, headers=headers)
    print(f"put back: {letter.subject} is number {ack.seq} of {ack.stream}")
    return DONE


async def _original_body(bus: Bus, letter: DeadLetter) -> bytes:
    """Return the body from the stream if it is still there, else the part of it in the letter."""
    try:
        raw = await bus.js.get_msg(letter.stream, letter.sequence)
    except NotFoundError:
        return letter.body.encode()
    if raw.subject != letter.subject:
        return letter.body.encode()
    return raw.data or b""
