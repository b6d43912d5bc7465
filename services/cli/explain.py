"""`weir explain JOB`: why it has what it has, at any moment that the log tells of, and what would get it more.

The log is read up to the moment and folded as the allocator folds it; by the allocator's own rules, which are read from
the environment, as it reads them. Where the log's beginning is gone, its last stored state stands in for that, if the
moment is not before it.
"""

from __future__ import annotations

import argparse
import re
import time
from contextlib import aclosing

import msgspec
from msgspec.structs import replace
from nats.js.errors import NotFoundError

from services.allocator import memory
from services.allocator.explaining.explain import explained
from services.allocator.explaining.history import History, Moment
from services.allocator.simulator.log_file import Told
from services.allocator.state import State
from services.cli import connection, words
from services.cli.dry_run import rules_here
from services.cli.explained import told
from services.cli.filters import filters
from services.cli.moments import SAID, moment
from services.cli.reader import Wanted
from services.cli.reading import read
from services.cli.trouble import DONE, WRONG_USE, Trouble
from services.cli.unexplained import unexplained
from shared.bus import Bus
from shared.messages import DeadLetter, JobAccepted
from shared.subjects import FACTS, ORDERS

EXAMPLES = "weir explain digits; weir explain digits --at '10m ago'; weir explain digits --at 13:45 --json"
"""To try."""
NEGATIVE = re.compile(r"-\d")


def arguments(parser: argparse.ArgumentParser) -> None:
    connection.arguments(parser)
    words.namespace_argument(parser)
    parser.add_argument("job", type=words.name, metavar="JOB", help="the job's name")
    parser.add_argument("--at", type=moment, default="now", metavar="TIME", help=f"{SAID}; default: now")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.epilog = f"for example: {EXAMPLES}"
    parser._negative_number_matcher = NEGATIVE  # so that `--at -10m` is a value, and no option


def run(args: argparse.Namespace) -> int:
    return connection.on_bus(args, explain)


async def explain(bus: Bus, args: argparse.Namespace) -> int:
    now = time.time()
    key, at_s, rules = f"{args.namespace}.{args.job}", args.at(now), rules_here()
    if at_s > now:
        raise Trouble("that moment has not come yet; of what will be no log tells", WRONG_USE)
    there, notes = await _moment(bus, History(key, rules), at_s)
    found = explained(there, key, rules)
    if found is None:
        later = await bus.last(JobAccepted, key)
        raise Trouble("\n".join([unexplained(there, key, later.message if later else None), *notes]))
    found = replace(found, notes=notes)
    print(msgspec.json.encode(found).decode() if args.json else "\n".join(told(found, None)))
    return DONE


async def _moment(bus: Bus, history: History, at_s: float) -> tuple[Moment, tuple[str, ...]]:
    """All that the log tells up to then, and what it does not tell any more."""
    notes = tuple([said for stream in (ORDERS, FACTS) if (said := await _beginning(bus, stream))])
    if notes and (stored := await _stored(bus, at_s)):
        history.before = stored
        notes = (*notes, "what the allocator's own stored state knows of the time before, is known here, too")
    wanted = [Wanted(stream, filters(stream)) for stream in (ORDERS, FACTS)]
    async with aclosing(read(bus, wanted, follow=False)) as entries:
        async for entry in entries:
            if entry.stored_s > at_s:
                break
            if not isinstance(entry.said, DeadLetter):
                history.hear(Told(entry.stored_s, entry.stream, entry.sequence, entry.said))
    return history.moment(at_s), notes


async def _beginning(bus: Bus, stream: str) -> str:
    """Empty, if the log begins at its beginning."""
    first = (await bus.js.stream_info(stream)).state.first_seq
    return f"{stream} begins with message {first}: what only earlier ones told is not known" * (first > 1)


async def _stored(bus: Bus, at_s: float) -> State | None:
    """The allocator's stored state; None where there is none, or where it knows of what came after the moment."""
    state = await memory.recall(bus)
    for stream, sequence in state.sequences.items():
        if await _stored_s(bus, stream, sequence) > at_s:
            return None
    return state if state.sequences else None


async def _stored_s(bus: Bus, stream: str, sequence: int) -> float:
    """When a message was stored; long ago, where it is gone."""
    try:
        raw = await bus.js.get_msg(stream, sequence)
    except NotFoundError:
        return 0.0
    return raw.time.timestamp() if raw.time else 0.0
