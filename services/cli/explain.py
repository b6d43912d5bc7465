"""`weir explain JOB`: the reasons for a job's size at any moment in the log, and the ways to get
more.

The log is read up to that moment and folded as the allocator folds it. The rules are the
allocator's own, read from the environment as it reads them.
"""

from __future__ import annotations

import time
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from services.cli import connection
from services.cli.command_line import (
    MOMENT,
    MOMENT_FORMATS,
    Arguments,
    command,
    job_argument,
    json_option,
    namespace_option,
    nats_option,
    option,
)
from services.console.bus_reader import follow_views
from services.console.dry_run import rules_from_environment
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
    help=f"{MOMENT_FORMATS}; default: now",
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
        raise Trouble("this time is in the future: give a time in the past", WRONG_USE)
    past, notes = await read_past(bus, key, at_s, rules)
    explanation = explain_job(past, key, rules)
    if explanation is None:
        stored = await bus.last_message(JobAccepted, key)
        reason = no_job_to_explain(past, key, stored.message if stored else None)
        raise Trouble("\n".join([reason, *notes]))
    ground = await with_event(bus, explanation.ground)
    explanation = replace(explanation, ground=ground, notes=notes)
    if explanation.unasked and at_s == now:
        why = await _allocator_reason(bus, args.namespace, explanation.uid)
        explanation = replace(explanation, why=why)
    if args.json:
        print(msgspec.json.encode(explanation).decode())
    else:
        print("\n".join(format_explanation(explanation, None)))
    return DONE


async def _allocator_reason(bus: Bus, namespace: str, uid: int) -> str:
    """Return the allocator's own reason for the present state of a job; empty if it has none."""
    async with aclosing(follow_views(bus, namespace)) as changes:
        views = await anext(changes)
    for view in views.values():
        if view.uid == uid:
            return view.why
    return ""
