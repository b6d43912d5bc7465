"""`weir resume JOB`: let a suspended job continue from its checkpoint."""

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
from shared.messages import ResumeRequested

EXAMPLES = ("weir resume digits", "weir resume digits -n team-a")


@command(EXAMPLES)
@job_request_options(ANSWER_S, "how long to wait for the answer")
def run(args: Arguments) -> int:
    return connection.on_bus(args, resume_job)


async def resume_job(bus: Bus, args: Arguments) -> int:
    order = ResumeRequested(job=args.job, namespace=args.namespace, request_id=uuid.uuid4().hex)
    await request_change(bus, order, args.timeout)
    print(f"job {args.namespace}/{args.job} continues as soon as there is room for it")
    return DONE
