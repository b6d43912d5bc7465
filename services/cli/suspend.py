"""`weir suspend JOB`: let a job save and release its capacity, until `weir resume`."""

from __future__ import annotations

import uuid

from services.cli import connection
from services.cli.change import ANSWER_S, request_change
from services.cli.command_line import (
    Arguments,
    command,
    job_request_options,
)
from services.console.trouble import DONE
from shared.bus.bus import Bus
from shared.messages import SuspendRequested

EXAMPLES = ("weir suspend digits", "weir suspend digits -n team-a")


@command(EXAMPLES)
@job_request_options(ANSWER_S, "how long to wait for the answer")
def run(args: Arguments) -> int:
    return connection.on_bus(args, suspend_job)


async def suspend_job(bus: Bus, args: Arguments) -> int:
    order = SuspendRequested(job=args.job, namespace=args.namespace, request_id=uuid.uuid4().hex)
    await request_change(bus, order, args.timeout)
    print(f"job {args.namespace}/{args.job} saves and releases its resources")
    print(f"when `weir jobs` shows Suspended, `weir resume {args.job}` continues it")
    return DONE
