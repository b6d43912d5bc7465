"""`weir explain JOB`: why it has what it has, at any moment that the log tells of, and what would
get it more.

The log is read up to the moment and folded as the allocator folds it; by the allocator's own rules,
which are read from the environment, as it reads them.
"""

from __future__ import annotations

import time
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from services.cli import connection, parameters
from services.cli.command_line import (
    MOMENT,
    Arguments,
    command,
    job_argument,
    json_option,
    namespace_option,
    nats_option,
    option,
)
from services.console.dry_run import rules_from_environment
from services.console.job_view_reader import follow_views
from services.console.log_history import read_past, with_event
from services.console.trouble import DONE, WRONG_USE, Trouble
from services.console.why.explanation import format_explanation, no_job_to_explain
from services.whatif.explain.explain import explain_job
from shared.bus.bus import Bus
from shared.messages import JobAccepted

EXAMPLES = (
    "weir explain digits",
    "weir explain digits --at '10m ago'",
    "weir explain digits --at 13:45 --json",
)


@command(EXAMPLES)
@nats_option
@namespace_option()
@job_argument
@option(
    "--at",
    type=MOMENT,
    default="now",
    metavar="TIME",
    help=f"{parameters.MOMENT_FORMATS}; default: now",
)
@json_option
def run(args: Arguments) -> int:
    return connection.on_bus(args, print_explanation)


async def print_explanation(bus: Bus, args: Arguments) -> int:
    now = time.time()
    key = f"{args.namespace}.{args.job}"
    at_s = args.at(now)
    rules = rules_from_environment(connection.current_connection(args).limits)
    if at_s > now:
        raise Trouble("that moment has not come yet: give one that has passed", WRONG_USE)
    there, notes = await read_past(bus, key, at_s, rules)
    found = explain_job(there, key, rules)
    if found is None:
        later = await bus.last_message(JobAccepted, key)
        raise Trouble(
            "\n".join([no_job_to_explain(there, key, later.message if later else None), *notes])
        )
    found = replace(found, ground=await with_event(bus, found.ground), notes=notes)
    if found.unasked and at_s == now:
        found = replace(found, why=await _allocator_reason(bus, args.namespace, found.uid))
    print(
        msgspec.json.encode(found).decode()
        if args.json
        else "\n".join(format_explanation(found, None))
    )
    return DONE


async def _allocator_reason(bus: Bus, namespace: str, uid: int) -> str:
    """The allocator's own, of why a job is as it is now; empty where it has none."""
    async with aclosing(follow_views(bus, namespace)) as changes:
        return next((view.why for view in (await anext(changes)).values() if view.uid == uid), "")
